// The normal distribution on vectors, accurate relative to its value in the far negative tail too, where
// 1 + erf(x / sqrt 2) would have cancelled to nothing.
//
//     distribution(x) = erfc(-x / sqrt 2) / 2
//
// With t = |x|, erfc(t / sqrt 2) / 2 = e^(-t^2 / 2) g(t), and the scaled tail g falls so slowly that with
// r = 1 / (1 + 0.3 t) it is r times a polynomial of degree 9 in r: minimax for the relative error on 0 <= t <= 14.6,
// 3.5e-9 before rounding. Beyond t = 14.6 the exponential is 0 in float32. Relative error of the distribution:
// at most (14 + 2.5 x^2) 2^-24 for x < 0, the second part from rounding x^2 before the exponential.
#pragma once

#include "exp2.hpp"

namespace kw {

// g(t) = e^(t^2 / 2) erfc(t / sqrt 2) / 2 for 0 <= t <= 14.6.
inline vf scaled_normal_tail(vf t) {
    const vf r = 1.0f / fma(t, splat(0.3f), splat(1.0f));
    const vf q = r - 0.5929368f, qq = q * q;
    const vf c01 = fma(q, splat(3.993257801e-1f), splat(2.557316841e-1f));
    const vf c23 = fma(q, splat(2.257009705e-1f), splat(4.089658405e-1f));
    const vf c45 = fma(q, splat(-9.067944731e-2f), splat(-1.061070840e-2f));
    const vf c67 = fma(q, splat(4.410019340e-2f), splat(-9.737040601e-3f));
    const vf c89 = fma(q, splat(-2.062498181e-2f), splat(2.380297133e-3f));
    vf p = fma(c89, qq, c67);
    p = fma(p, qq, c45);
    p = fma(p, qq, c23);
    p = fma(p, qq, c01);
    return r * p;
}

struct Normal {
    vf distribution;
    vf kernel;  // e^(-x^2 / 2): the density without its constant
};

inline Normal normal(vf x) {
    const vf t = min(splat(14.6f), abs(x));  // in this order a NaN survives
    const vf s = t * 0.849321800f;           // sqrt(log2(e) / 2)
    const vf e = exp2(-(s * s));
    const vf tail = e * scaled_normal_tail(t);
    return Normal{x < 0.0f ? tail : 1.0f - tail, e};
}

}  // namespace kw
