// Convolutions of lines, pictures and volumes, in portable vectors: window.hpp does all of it.
#include "window.hpp"

KW_EXPORT(convolve) { kw::convolve(args); }
KW_EXPORT(filters_gradient) { kw::filters_gradient(args); }
