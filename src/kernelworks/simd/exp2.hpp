// 2^w for kernels that can fold log2(e) into a constant of their own: three operations fewer than e^x.
//
// w = n + f with n the nearest integer, so |f| <= 1/2 and both are exact; 2^f = 1 + f q(f) with q a minimax polynomial
// of degree 5, 2e-9 relative before rounding. -inf is not accepted (clamp w); NaN is kept.
#pragma once

#include "simd.hpp"

namespace kw {

inline vf nearest_integer(vf x) {
#if defined(__AVX512F__)
    return (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    return (vf)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    return round_nearest(x);
#endif
}

inline vf exp2(vf w) {  // |w| <= 252
    vf n = nearest_integer(w);
    vf f = w - n, ff = f * f;
    vf low = fma(f, splat(2.402264791e-1f), splat(6.931472029e-1f));
    vf middle = fma(f, splat(9.618437358e-3f), splat(5.550332471e-2f));
    vf high = fma(f, splat(1.535336191e-4f), splat(1.339887441e-3f));
    vf q = fma(fma(high, ff, middle), ff, low);
    return scale_by_power_of_two(fma(f, q, splat(1.0f)), n);
}

}  // namespace kw
