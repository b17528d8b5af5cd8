// rfft and its gradient, to be read: see scalar_fft.hpp.
#include "scalar_fft.hpp"

KW_EXPORT(rfft) { kw::fft::run<true>(args); }
KW_EXPORT(rfft_backward) { kw::fft::run<false>(args); }
