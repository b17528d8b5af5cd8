// The normal distribution on vectors: its density and its distribution function to about two units in the last place,
// in the far negative tail too, where 1 + erf(x / sqrt 2) would have cancelled to nothing.
//
//     density(x)      = e^(-x^2 / 2) / sqrt(2 pi)
//     distribution(x) = erfc(-x / sqrt 2) / 2
//
// Both come from one exponential. With t = |x|, erfc(t / sqrt 2) / 2 = e^(-t^2 / 2) g(t), and the scaled tail g falls so
// slowly that with r = 1 / (1 + 0.3 t) it is r times a polynomial of degree 9 in r: minimax for the relative error on
// 0 <= t <= 14.6, 3.5e-9 before rounding. Beyond t = 14.6 the exponential is 0 in float32.
#pragma once

#include "exp.hpp"

namespace kw {

// g(t) = e^(t^2 / 2) erfc(t / sqrt 2) / 2 for 0 <= t <= 14.6.
inline vf scaled_normal_tail(vf t) {
    vf r = 1.0f / fma(t, splat(0.3f), splat(1.0f));
    vf q = r - 0.5929368f;
    vf p = splat(-2.062498181e-2f);
    p = fma(p, q, splat(2.380297133e-3f));
    p = fma(p, q, splat(4.410019340e-2f));
    p = fma(p, q, splat(-9.737040601e-3f));
    p = fma(p, q, splat(-9.067944731e-2f));
    p = fma(p, q, splat(-1.061070840e-2f));
    p = fma(p, q, splat(2.257009705e-1f));
    p = fma(p, q, splat(4.089658405e-1f));
    p = fma(p, q, splat(3.993257801e-1f));
    p = fma(p, q, splat(2.557316841e-1f));
    return r * p;
}

struct Normal {
    vf distribution;
    vf kernel;  // e^(-x^2 / 2): the density without its constant
};

inline Normal normal(vf x) {
    vf t = abs(x);
    t = t > 14.6f ? splat(14.6f) : t;  // keeps a NaN
    vf square = t * t;
    vf lost = fma(t, t, -square);  // what rounding took from the square: e^(-t^2 / 2) would magnify it by t^2 / 2
    vf e = exp_nonpositive(-0.5f * square);
    e = fma(e, -0.5f * lost, e);
    vf tail = e * scaled_normal_tail(t);
    return Normal{x < 0.0f ? tail : 1.0f - tail, e};
}

}  // namespace kw
