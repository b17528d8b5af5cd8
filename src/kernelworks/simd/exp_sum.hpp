// The maximum of a row and the sum of e^(x - maximum) over it: what softmax and cross-entropy are made of.
//
// Sums run in 4 LANES float32 accumulators over at most PIECE elements and are carried on in float64, so the relative
// error of a sum of positive terms stays under (PIECE / (4 LANES) + 8) 2^-24 however long the row is.
#pragma once

#include "exp.hpp"

namespace kw {

constexpr int64_t PIECE = 4096;

struct FourSums {
    vf a = {}, b = {}, c = {}, d = {};
    double total() const { return reduce_add((a + b) + (c + d)); }
};

// The largest element, -inf for none. A NaN may be passed over: the exponentials find it again.
template <class T>
inline float row_max(const T* x, int64_t n) {
    const vf low = splat(-INFINITY);
    vf a = low, b = low, c = low, d = low;
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        a = max(load(x + i), a);
        b = max(load(x + i + LANES), b);
        c = max(load(x + i + 2 * LANES), c);
        d = max(load(x + i + 3 * LANES), d);
    }
    for (; i + LANES <= n; i += LANES) a = max(load(x + i), a);
    if (i < n) {
        const int k = static_cast<int>(n - i);
        b = max(keep_first(load(x + i, k), k, -INFINITY), b);
    }
    vf v = max(max(a, b), max(c, d));
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float m = v[0];
    for (int i = 1; i < LANES; ++i) m = v[i] > m ? v[i] : m;
    return m;
#endif
}

// The sum of e^(x - m) over n <= PIECE elements, m no less than any of them. KEEP: each is also stored at e. The
// elements at `ahead` (as many) are on their way into the cache afterwards.
template <bool KEEP, class T>
inline double exp_sum(float* e, const T* x, float m, int64_t n, const T* ahead) {
    FourSums s;
    int64_t i = 0;
    auto one = [&](int64_t at) {
        vf v = exp_nonpositive(load(x + at) - m);
        if constexpr (KEEP) store(e + at, v);
        return v;
    };
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        for (int64_t byte = 0; byte < 4 * LANES * static_cast<int64_t>(sizeof(T)); byte += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(ahead + i) + byte);
        s.a += one(i);
        s.b += one(i + LANES);
        s.c += one(i + 2 * LANES);
        s.d += one(i + 3 * LANES);
    }
    for (; i + LANES <= n; i += LANES) s.a += one(i);
    if (i < n) {
        const int k = static_cast<int>(n - i);
        vf v = exp_nonpositive(load(x + i, k) - m);
        if constexpr (KEEP) store(e + i, v, k);
        s.b += keep_first(v, k, 0.0f);
    }
    return s.total();
}

struct ExpSum {
    float max;
    double sum;  // of e^(x - max)
};

// One pass over a row of any length: piece by piece, the sum rescaled when a piece raises the maximum.
template <class T>
inline ExpSum running_exp_sum(const T* x, int64_t n) {
    ExpSum r{-INFINITY, 0.0};
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t k = n - i < PIECE ? n - i : PIECE;
        const float top = row_max(x + i, k);
        if (top > r.max) {
            r.sum *= std::exp(static_cast<double>(r.max) - static_cast<double>(top));
            r.max = top;
        }
        // While nothing but -inf (or NaN) came by, any finite base does: each term is 0 (or NaN).
        r.sum += exp_sum<false>(nullptr, x + i, r.max > -INFINITY ? r.max : 0.0f, k, x + i + k);
    }
    return r;
}

}  // namespace kw
