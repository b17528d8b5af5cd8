// e^d for d <= 0, as softmax and its relatives need it: the argument is a distance from the row's maximum.
//
// Cheaper and shorter in latency than exp() of simd.hpp, because a distance that was itself rounded carries a relative
// error of |d| 2^-24 into the result anyway: ln 2 is subtracted in one part (0.05 |d| 2^-24 more), and the polynomial
// is evaluated as a tree. Relative error under (2.5 + 0.05 |d|) 2^-24 where the result is normal, absolute error under
// 2^-149 below that. -inf and everything below -104.5 give 0; NaN stays NaN.
#pragma once

#include "simd.hpp"

namespace kw {

inline vf exp_nonpositive(vf d) {
    // Below -104.5 as at -104.5, where the result is 0. In this order of operands a NaN in d survives.
#if defined(__AVX512F__)
    d = (vf)_mm512_max_ps(_mm512_set1_ps(-104.5f), (__m512)d);
    const vf n = (vf)_mm512_roundscale_ps((__m512)(d * 1.44269504f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    d = (vf)_mm256_max_ps(_mm256_set1_ps(-104.5f), (__m256)d);
    const vf n = (vf)_mm256_round_ps((__m256)(d * 1.44269504f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    d = max(splat(-104.5f), d);
    const vf n = round_nearest(d * 1.44269504f);
#endif
    const vf r = fma(n, splat(-0.693147181f), d);  // |r| <= ln2 / 2 and a little
    // e^r = 1 + r + r^2 q(r), q of degree 4 (minimax): 1 + r is ready long before q is.
    const vf r2 = r * r, first = r + 1.0f;
    const vf low = fma(splat(1.6666430e-1f), r, splat(4.9999997e-1f));
    const vf high = fma(splat(1.3898866e-3f), r2, fma(splat(8.3750887e-3f), r, splat(4.1668225e-2f)));
    return scale_by_power_of_two(fma(fma(high, r2, low), r2, first), n);
}

}  // namespace kw
