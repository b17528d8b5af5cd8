// Mean and spread of a row of x, or of x + residual: the statistics of norm.hpp.
#pragma once

#include "functions.hpp"
#if KW_VECTORS
#include "stream.hpp"
#endif

namespace kw {

struct Moments {
    double mean, rstd;
    bool exact;  // float32 does not carry this row: work in float64
};

// A row of x, or of x + residual.
template <class T, bool ADD>
struct Input {
    const T *x, *residual;

    double exact(int64_t j) const {
        double v = to_float(x[j]);
        if constexpr (ADD) v += to_float(residual[j]);
        return v;
    }
#if KW_VECTORS
    Input from(int64_t j) const { return {x + j, ADD ? residual + j : nullptr}; }
    vf at(int64_t j) const {
        if constexpr (ADD) return load(x + j) + load(residual + j);
        else return load(x + j);
    }
    vf at(int64_t j, int k) const {
        if constexpr (ADD) return load(x + j, k) + load(residual + j, k);
        else return load(x + j, k);
    }
    // The 4 LANES elements from j on are on their way into the cache afterwards.
    void prefetch(int64_t j) const {
        for (int64_t byte = 0; byte < 4 * LANES * static_cast<int64_t>(sizeof(T)); byte += 64) {
            __builtin_prefetch(reinterpret_cast<const char*>(x + j) + byte);
            if constexpr (ADD) __builtin_prefetch(reinterpret_cast<const char*>(residual + j) + byte);
        }
    }
#endif
};

template <class In>
Moments exact_moments(In in, int64_t n, double eps, bool centred) {
    double sum = 0, squares = 0;
    if (centred)
        for (int64_t j = 0; j < n; ++j) sum += in.exact(j);
    const double mean = centred ? sum / static_cast<double>(n) : 0.0;
    for (int64_t j = 0; j < n; ++j) squares += (in.exact(j) - mean) * (in.exact(j) - mean);
    return {mean, 1.0 / std::sqrt(squares / static_cast<double>(n) + eps), true};
}

#if KW_VECTORS

constexpr int64_t PIECE = 4096;            // the longest run that is summed in float32 before sums move on to float64

#define KW_INLINE __attribute__((always_inline))  // accumulators that a call would have to keep in memory

// Sums of four accumulators over n elements: whole(accumulator, at) adds LANES elements, part the last few.
template <class Whole, class Part>
inline void four_ways(int64_t n, Whole whole, Part part) {
    int64_t j = 0;
    for (; j + 4 * LANES <= n; j += 4 * LANES) {
        whole(0, j);
        whole(1, j + LANES);
        whole(2, j + 2 * LANES);
        whole(3, j + 3 * LANES);
    }
    for (; j + LANES <= n; j += LANES) whole(0, j);
    if (j < n) part(1, j, static_cast<int>(n - j));
}

struct RootMeanSquare {
    static constexpr bool CENTRED = false;
    static constexpr bool STREAMS = false;  // the next kernel of a network reads this output, mostly from cache

    template <class In>
    static Moments of(In in, int64_t n, double eps, In) {
        vf s[4] = {};
        four_ways(
            n,
            [&](int i, int64_t j) KW_INLINE {
                const vf v = in.at(j);
                s[i] = fma(v, v, s[i]);
            },
            [&](int i, int64_t j, int k) KW_INLINE {
                const vf v = in.at(j, k);
                s[i] = fma(v, v, s[i]);
            });
        const float square = reduce_add((s[0] + s[1]) + (s[2] + s[3])) / static_cast<float>(n) + static_cast<float>(eps);
        if (square > 0x1p-90f && square < 0x1p120f) return {0.0, 1.0f / std::sqrt(square), false};  // NaN fails too
        return exact_moments(in, n, eps, CENTRED);
    }
};

struct Variance {
    static constexpr bool CENTRED = true;
    static constexpr bool STREAMS = true;

    template <class In>
    static double piece_sum(In in, int64_t n) {
        vf s[4] = {};
        four_ways(
            n, [&](int i, int64_t j) KW_INLINE { s[i] += in.at(j); },
            [&](int i, int64_t j, int k) KW_INLINE { s[i] += in.at(j, k); });
        return reduce_add((s[0] + s[1]) + (s[2] + s[3]));
    }

    struct Deviations {
        double sum = 0, squares = 0;
    };

    // The elements of `next` (as many as there are here) are on their way into the cache afterwards.
    template <class In>
    static void piece_deviations(Deviations& to, In in, int64_t n, float centre, In next) {
        vf s[4] = {}, q[4] = {};
        auto add = [&](int i, vf d) KW_INLINE {
            s[i] += d;
            q[i] = fma(d, d, q[i]);
        };
        four_ways(
            n,
            [&](int i, int64_t j) KW_INLINE {
                if (i == 0) next.prefetch(j);
                add(i, in.at(j) - centre);
            },
            [&](int i, int64_t j, int k) KW_INLINE { add(i, keep_first(in.at(j, k) - centre, k, 0.0f)); });
        to.sum += reduce_add((s[0] + s[1]) + (s[2] + s[3]));
        to.squares += reduce_add((q[0] + q[1]) + (q[2] + q[3]));
    }

    template <class In>
    static Moments of(In in, int64_t n, double eps, In next) {
        const double inverse = 1.0 / static_cast<double>(n);
        double total = 0;
        for (int64_t j = 0; j < n; j += PIECE) total += piece_sum(in.from(j), n - j < PIECE ? n - j : PIECE);
        const float centre = static_cast<float>(total * inverse);
        Deviations d;
        for (int64_t j = 0; j < n; j += PIECE)
            piece_deviations(d, in.from(j), n - j < PIECE ? n - j : PIECE, centre, next.from(j));
        const double correction = d.sum * inverse, off = correction * correction;
        const double spread = d.squares * inverse - off + eps;
        if (spread > 0x1p-90 && spread < 0x1p100 && off <= spread * 0x1p-6)  // NaN fails too
            return {static_cast<double>(centre) + correction, 1.0 / std::sqrt(spread), false};
        return exact_moments(in, n, eps, CENTRED);
    }
};

// (x - mean) rstd for a row of moments that float32 carries. The mean as two float32 numbers: x - centre comes first.
template <bool CENTRED>
struct Normalise {
    float centre, rstd, shift;

    explicit Normalise(const Moments& m)
        : centre(static_cast<float>(m.mean)), rstd(static_cast<float>(m.rstd)),
          shift(static_cast<float>((static_cast<double>(centre) - m.mean) * m.rstd)) {}
    vf operator()(vf x) const {
        if constexpr (CENTRED) return fma(x - centre, splat(rstd), splat(shift));
        else return x * rstd;
    }
};

#else

struct RootMeanSquare {
    static constexpr bool CENTRED = false;
};
struct Variance {
    static constexpr bool CENTRED = true;
};

#endif

}  // namespace kw
