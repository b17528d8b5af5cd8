// irfft and its gradient: see fft.hpp.
#include "fft.hpp"

KW_EXPORT(irfft) { kw::fft::run<false>(args); }
KW_EXPORT(irfft_backward) { kw::fft::run<true>(args); }
