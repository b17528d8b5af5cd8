// The sigmoid and what is made of it, for operands as functions.hpp has them.
#pragma once

#include "functions.hpp"
#if KW_VECTORS
#include "exp2.hpp"
#endif

namespace kw {

struct Sigmoids {
    V up, down;  // sigmoid(x), sigmoid(-x): neither cancels
};

#if KW_VECTORS
constexpr float LOG2_E = 1.442695041f;

inline V silu(V x) {
    const vf w = max(splat(-151.0f), min(splat(151.0f), x * -LOG2_E));  // in this order a NaN survives
    return x / (1.0f + exp2(w));
}

inline Sigmoids sigmoids(V x) {
    const vf e = exp2(max(splat(-151.0f), abs(x) * -LOG2_E)), r = 1.0f / (1.0f + e), s = e * r;
    return Sigmoids{x < 0.0f ? s : r, x < 0.0f ? r : s};
}
#else
inline Sigmoids sigmoids(V x) { return Sigmoids{1.0 / (1.0 + std::exp(-x)), 1.0 / (1.0 + std::exp(x))}; }
inline V silu(V x) { return x * sigmoids(x).up; }
#endif

}  // namespace kw
