// irfft and its gradient, to be read: see scalar_fft.hpp.
#include "scalar_fft.hpp"

KW_EXPORT(irfft) { kw::fft::run<false>(args); }
KW_EXPORT(irfft_backward) { kw::fft::run<true>(args); }
