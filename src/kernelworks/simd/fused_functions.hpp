// What a fused expression may call beside the functions of the table of activations (activation.hpp), for an operand V
// as functions.hpp has it. Unlike those, these take any argument.
#pragma once

#include "activation.hpp"
#if KW_VECTORS
#include "normal.hpp"
#endif

namespace kw {

// Of two operands the larger, or NaN where either is.
inline V larger(V a, V b) { return where((a > b) | (a != a), a, b); }
inline V smaller(V a, V b) { return where((a < b) | (a != a), a, b); }

#if KW_VECTORS

inline V exponential_any(V x) { return exp(x); }

inline V exponential_less_one_any(V x) {
    const V below = exponential_less_one(min(splat(10.0f), x));  // in this order a NaN survives
    return x > 10.0f ? exp(x) - 1.0f : below;
}

// m = x / 2^n - 1 with m from sqrt(1/2) - 1 to sqrt(2) - 1; log(1 + m) is m - m^2 / 2 + m^3 p(m), and n ln 2 in two parts.
inline V logarithm(V x) {
    const vi small = x < 1.17549435e-38f;
    const vf scaled = small ? x * 8388608.0f : x;
    const vi bits = (vi)scaled - 0x3f3504f3;
    const vf n = __builtin_convertvector(bits >> 23, vf) - (small ? splat(23.0f) : vf{});
    const vf m = (vf)((bits & 0x7fffff) + 0x3f3504f3) - 1.0f, mm = m * m;
    vf p = fma(m, splat(7.0376836292e-2f), splat(-1.1514610310e-1f));
    p = fma(p, m, splat(1.1676998740e-1f));
    p = fma(p, m, splat(-1.2420140846e-1f));
    p = fma(p, m, splat(1.4249322787e-1f));
    p = fma(p, m, splat(-1.6668057665e-1f));
    p = fma(p, m, splat(2.0000714765e-1f));
    p = fma(p, m, splat(-2.4999993993e-1f));
    p = fma(p, m, splat(3.3333331174e-1f));
    p = fma(p * m, mm, fma(n, splat(-2.12194440e-4f), -0.5f * mm));
    vf r = fma(n, splat(0.693359375f), m + p);
    r = x == 0.0f ? splat(-INFINITY) : r;
    r = x < 0.0f ? splat(NAN) : r;
    return x < INFINITY ? r : x;
}

// log(1 + x): the logarithm of the rounded 1 + x, and what the rounding lost over it.
inline V logarithm_one_more_any(V x) {
    vf u = 1.0f + x;
    __asm__("" : "+v"(u));
    const vf lost = x - (u - 1.0f);
    const vf r = logarithm(u) + lost / u;
    return u == 1.0f ? x : x == INFINITY ? x : r;
}

inline V square_root(V x) { return sqrt(x); }

// A rational function of x, as Eigen has it, up to |x| = 4, from where on float32 has no more than 1.
inline V error_function(V x) {
    x = min(splat(4.0f), max(splat(-4.0f), x));  // in this order a NaN survives
    const vf z = x * x;
    vf p = fma(z, splat(-2.72614225801306e-10f), splat(2.77068142495902e-08f));
    p = fma(p, z, splat(-2.10102402082508e-06f));
    p = fma(p, z, splat(-5.69250639462346e-05f));
    p = fma(p, z, splat(-7.34990630326855e-04f));
    p = fma(p, z, splat(-2.95459980854025e-03f));
    p = fma(p, z, splat(-1.60960333262415e-02f));
    vf q = fma(z, splat(-1.45660718464996e-05f), splat(-2.13374055278905e-04f));
    q = fma(q, z, splat(-1.68282697438203e-03f));
    q = fma(q, z, splat(-7.37332916720468e-03f));
    q = fma(q, z, splat(-1.42647390514189e-02f));
    return x * (p / q);  // in this order a subnormal x is rounded once
}

inline V normal_distribution(V x) { return normal(x).distribution; }

inline V nearest_whole(V x) { return nearest_integer(x); }

inline V rounded_to_bfloat16(V x) { return widen(round_bf16(x)); }
inline V rounded_to_float16(V x) { return widen(round_f16(x)); }

#else

inline V exponential_any(V x) { return std::exp(x); }
inline V exponential_less_one_any(V x) { return std::expm1(x); }
inline V logarithm(V x) { return std::log(x); }
inline V logarithm_one_more_any(V x) { return std::log1p(x); }
inline V square_root(V x) { return std::sqrt(x); }
inline V error_function(V x) { return std::erf(x); }
inline V normal_distribution(V x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
inline V nearest_whole(V x) { return std::nearbyint(x); }
inline V rounded_to_bfloat16(V x) { return to_float(from_float<bf16>(static_cast<float>(x))); }
inline V rounded_to_float16(V x) { return to_float(from_float<f16>(static_cast<float>(x))); }

#endif

inline V greatest_whole(V x) {  // the floor
    const V n = nearest_whole(x);
    return where(n > x, n - 1.0f, n);
}
inline V least_whole(V x) {  // the ceiling; -0 where it rounds up to 0
    const V n = nearest_whole(x);
    return where(n < x, n + 1.0f, n);
}

}  // namespace kw
