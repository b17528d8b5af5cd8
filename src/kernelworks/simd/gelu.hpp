// gelu and its slope in both forms, for operands as functions.hpp has them.
//
//     tanh: x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3), which is x (1 + tanh u) / 2
//     none: x Phi(x), Phi(x) = erfc(-x / sqrt 2) / 2 the normal distribution function
//
// On vectors both are written around one decaying exponential, so that the negative tail keeps its relative accuracy.
#pragma once

#include "functions.hpp"
#include "sigmoid.hpp"
#if KW_VECTORS
#include "normal.hpp"
#endif

namespace kw {

constexpr float INVERSE_ROOT_TWO_PI = 0.3989422804f;
constexpr float TWO_ROOT_TWO_OVER_PI = 1.595769122f;  // 2 sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;

struct Gelu {
    V value, slope;
};

#if KW_VECTORS

// -|2 u| / ln 2: what 2 is raised to
inline V tanh_exponent(V x) {
    constexpr float linear = LOG2_E * TWO_ROOT_TWO_OVER_PI, cubic = linear * CUBIC;
    vf w = x * fma(x * x, splat(cubic), splat(linear));
    return max(splat(-151.0f), (vf)((vu)w | 0x80000000u));  // in this order a NaN survives
}

// With e = exp(-|2 u|) neither side overflows or cancels.
inline V gelu_tanh(V x) {
    vf e = exp2(tanh_exponent(x));
    return x * (x < 0.0f ? e : splat(1.0f)) / (1.0f + e);
}

inline Gelu gelu_tanh_both(V x) {
    vf c = min(splat(20.0f), max(splat(-20.0f), x));  // 0 or 1 long before; x^3 must not overflow
    vf e = exp2(tanh_exponent(c)), r = 1.0f / (1.0f + e);
    vf up = x < 0.0f ? e * r : r, down = x < 0.0f ? r : e * r;  // sigmoid(2 u) and sigmoid(-2 u)
    vf slope = fma(c * c, splat(3.0f * TWO_ROOT_TWO_OVER_PI * CUBIC), splat(TWO_ROOT_TWO_OVER_PI));
    return Gelu{x * up, fma(up * down * slope, x, up)};  // in this order a huge x meets a 0
}

inline V gelu_none(V x) { return x * normal(x).distribution; }

inline Gelu gelu_none_both(V x) {
    Normal n = normal(x);
    return Gelu{x * n.distribution, fma(x * INVERSE_ROOT_TWO_PI, n.kernel, n.distribution)};
}

#else

inline Gelu gelu_tanh_both(V x) {
    const Sigmoids s = sigmoids(TWO_ROOT_TWO_OVER_PI * (x + CUBIC * x * x * x));
    return Gelu{x * s.up, s.up + s.up * s.down * TWO_ROOT_TWO_OVER_PI * (1.0 + 3.0 * CUBIC * x * x) * x};
}
inline Gelu gelu_none_both(V x) {
    const V distribution = 0.5 * std::erfc(-x / std::sqrt(2.0));
    return Gelu{x * distribution, distribution + x * std::exp(-0.5 * x * x) * INVERSE_ROOT_TWO_PI};
}
inline V gelu_tanh(V x) { return gelu_tanh_both(x).value; }
inline V gelu_none(V x) { return gelu_none_both(x).value; }

#endif

}  // namespace kw
