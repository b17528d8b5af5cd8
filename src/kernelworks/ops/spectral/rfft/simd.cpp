// rfft and its gradient: see fft.hpp.
#include "fft.hpp"

KW_EXPORT(rfft) { kw::fft::run<true>(args); }
KW_EXPORT(rfft_backward) { kw::fft::run<false>(args); }
