// Layer normalisation of rows; simd/norm.hpp says how, for every norm.
#include "norm.hpp"

KW_EXPORT(layer_norm) { kw::norm<kw::Variance>(args); }
KW_EXPORT(layer_norm_backward) { kw::norm_backward<kw::Variance>(args); }
