// Layer normalisation of a sum, which is the second output; simd/norm.hpp says how, for every norm.
#include "norm.hpp"

KW_EXPORT(add_layer_norm) { kw::norm<kw::Variance>(args); }
KW_EXPORT(add_layer_norm_backward) { kw::norm_backward<kw::Variance>(args); }
