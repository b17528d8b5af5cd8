// Root mean square normalisation of rows; simd/norm.hpp says how, for every norm.
#include "norm.hpp"

KW_EXPORT(rms_norm) { kw::norm<kw::RootMeanSquare>(args); }
KW_EXPORT(rms_norm_backward) { kw::norm_backward<kw::RootMeanSquare>(args); }
