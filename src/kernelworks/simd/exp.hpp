// e^d for d <= 0, as softmax and its relatives need it: the argument is a distance from the row's maximum.
//
// What the general exp() of simd.hpp spends on the upper end is left out. -inf and everything below -104.5 give 0, NaN
// stays NaN. Relative error under 2 * 2^-24 where the result is normal, absolute error under 2^-149 below that
// (measured over every float32 in [-104.5, 0] against float64).
#pragma once

#include "simd.hpp"

namespace kw {

inline vf exp_nonpositive(vf d) {
    d = max(splat(-104.5f), d);  // in this order a NaN in d survives
    vf n = round_nearest(d * 1.44269504f);
    vf r = fma(n, splat(-0.693359375f), d);  // exact: 0.693359375 has 9 significant bits and |n| < 2^8
    r = fma(n, splat(2.12194440e-4f), r);
    vf p = splat(1.3898866e-3f);
    p = fma(p, r, splat(8.3750887e-3f));
    p = fma(p, r, splat(4.1668225e-2f));
    p = fma(p, r, splat(1.6666430e-1f));
    p = fma(p, r, splat(4.9999997e-1f));
    p = fma(p * r, r, r) + 1.0f;
    return scale_by_power_of_two(p, n);
}

}  // namespace kw
