// Sums over all pairs of a row and a column, output[i] = sum_j k(|x_i - y_j| / l) v[j]: the matrix K is never stored.
//
//     KW_PAIRWISE(kernel_matmul, Rbf)
//
// exports NAME(output, a, b, weights, length_scale, threads) and NAME_gradient(grad_a or None, sums or None, a, b,
// flows, weights, length_scale, threads). Both take contiguous float32: a [N, D], b [M, D], flows [N, E],
// weights [M, E]; sums are N doubles. They serve every pass, for K of (y, x) is K of (x, y) transposed.
//
// A profile says k and its slope of q, the squared distance in units of the length scale times `unit`:
//
//     template <bool FINITE>             // for exp2_nonpositive
//     struct Rbf {
//         explicit Rbf(double inverse);  // 1 / unit^2
//         V value(V q) const;            // k
//         V slope(V q) const;            // -2 dk / d(r^2 / l^2)
//     };
//
// On vectors a lane is a row, and columns are broadcast: no sum runs across a vector. Distances are sums of squared
// differences, which are exact between points that lie close together however far they are from the origin. Before
// that, points are multiplied with a power of two that brings the length scale to [1, 2): squares then leave float32's
// range only where k is 0 or 1. Sums run in float32 over PART columns and go on in float64.
#pragma once

#include "functions.hpp"
#if KW_VECTORS
#include <cstdlib>
#include <type_traits>

#include "exp2.hpp"
#endif

namespace kw::pairwise {

struct Problem {
    const float *a, *b, *flows, *weights;  // flows: null for a forward
    int64_t N, M, D, E;
    double length_scale;
};

#if KW_VECTORS

using Factor = float;                            // of a profile's constants

constexpr int64_t PART = 256;                    // columns whose sum is float32
constexpr int VECTORS = LANES == 16 ? 2 : 1;     // of rows that pass a column together, if their points are long
constexpr int64_t PAIR_FLOP = 32;                // about, for the share of threads
constexpr int64_t GRAIN = 1 << 18;               // flop that make a second thread worth waking

// 2^w for w <= 0, relative error under 3 2^-24 where the result is normal: w = n + f with n whole, 2^f by a minimax
// polynomial of degree 5 (1.6 2^-24), one degree less than exp2() of simd.hpp has, for the multipliers are what bounds
// these kernels. NaN is kept. FINITE: w is no infinity, so that a clamp is spared where 2^n is an instruction.
template <bool FINITE>
inline vf exp2_nonpositive(vf w) {
    if constexpr (!FINITE || LANES != 16) w = max(splat(-150.0f), w);
    const vf n = nearest_integer(w), f = w - n;
    vf p = fma(f, splat(1.326472731e-3f), splat(9.671512991e-3f));
    p = fma(p, f, splat(5.550733581e-2f));
    p = fma(p, f, splat(2.402224242e-1f));
    p = fma(p, f, splat(6.931470036e-1f));
    return scale_by_power_of_two(fma(p, f, splat(1.0f)), n);
}

inline vf root(vf q) { return sqrt(q); }
inline vf bounded(vf z) { return min(splat(1e30f), z); }  // of what is multiplied with a k that is 0

struct Scale {
    float first, second;  // powers of two that points are multiplied with, one after the other
    double factor;        // their product
    double inverse;       // 1 / (length scale times that)^2
    bool in_range = false;  // whether a squared distance times `inverse` is finite

    Scale(double l, float largest) {
        if (!(std::fabs(l) > 0.0) || std::isinf(l)) {  // what the definition makes of 0, an infinity and NaN
            factor = std::isinf(l) ? 0.0 : 1.0;
            inverse = std::isinf(l) ? 1.0 : 1.0 / (l * l);
            first = static_cast<float>(factor);
            second = 1.0f;
            return;
        }
        int power = -std::ilogb(l);
        const int top = largest > 0.0f ? power + std::ilogb(largest) : 0;
        in_range = top < 56;  // and a thousand squares of differences are below 2^127
        if (top > 125) power -= top - 125;
        const int half = power / 2;
        first = static_cast<float>(std::ldexp(1.0, half));
        second = static_cast<float>(std::ldexp(1.0, power - half));
        factor = std::ldexp(1.0, power);
        const double unit = std::ldexp(l, power);
        inverse = std::fmin(1.0 / (unit * unit), 3e38);
    }
};

struct Magnitude {
    float largest;  // of the finite numbers
    bool finite;    // whether all are

    Magnitude(const float* p, int64_t n) {
        vf most = {};
        vi outside = {};
        for (int64_t i = 0; i < n; i += LANES) {
            const vf v = abs(n - i < LANES ? load(p + i, static_cast<int>(n - i)) : load(p + i));
            const vi good = v <= 3.4028235e38f;
            most = good ? max(v, most) : most;
            outside |= ~good;
        }
        largest = reduce_max(most);
        finite = true;
        for (int i = 0; i < LANES; ++i) finite &= outside[i] == 0;
    }
};

struct Buffer {
    float* data;
    explicit Buffer(int64_t n)
        : data(static_cast<float*>(aligned_alloc(64, static_cast<size_t>((n * 4 + 127) / 64 * 64)))) {}
    ~Buffer() { free(data); }
    Buffer(const Buffer&) = delete;
};

inline void scale_points(float* to, const float* from, int64_t n, const Scale& scale) {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i] * scale.first * scale.second;
}

// to[c][row] = from[first + row][c], rows beyond the last as zero.
inline void turn(float* to, const float* from, int64_t first, int64_t N, int64_t C, int64_t rows, const Scale* scale) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < C; ++c) {
            const float v = first + r < N ? from[(first + r) * C + c] : 0.0f;
            to[c * rows + r] = scale ? v * scale->first * scale->second : v;
        }
}

// Adds a part's float32 sums to those in float64, and starts the next part at zero.
inline void carry(double* totals, float* sums, int64_t n) {
    for (int64_t i = 0; i < n; ++i) totals[i] += static_cast<double>(sums[i]);
    std::memset(sums, 0, sizeof(float) * static_cast<size_t>(n));
}

// ---------------------------------------------------------------- short points: all of a row in registers

// NV vectors of rows, whose points have D numbers, against columns [begin, end) of one weight each.
template <class Profile, int D, int NV>
inline void short_values(vf (&sums)[NV], const vf (&x)[NV][D], const float* b, const float* weights, int64_t begin,
                         int64_t end, const Profile& profile) {
    for (int64_t j = begin; j < end; ++j) {
        const vf weight = splat(weights[j]);
#pragma GCC unroll 8
        for (int n = 0; n < NV; ++n) {
            vf q = {};
#pragma GCC unroll 8
            for (int d = 0; d < D; ++d) {
                const vf apart = x[n][d] - splat(b[j * D + d]);
                q = d ? fma(apart, apart, q) : apart * apart;
            }
            sums[n] = fma(profile.value(q), weight, sums[n]);
        }
    }
}

template <class Profile, int D>
void short_rows(float* out, const Problem& p, const float* b, const Scale& scale, const Profile& profile, Range rows) {
    constexpr int NV = LANES == 16 ? 4 : 2;
    constexpr int64_t ROWS = NV * LANES;
    alignas(64) float turned[D * ROWS], sums[ROWS];
    for (int64_t first = rows.begin; first < rows.end; first += ROWS) {
        turn(turned, p.a, first, p.N, D, ROWS, &scale);
        vf x[NV][D];
        for (int n = 0; n < NV; ++n)
            for (int d = 0; d < D; ++d) x[n][d] = load(turned + d * ROWS + n * LANES);
        double totals[ROWS] = {};
        for (int64_t j = 0; j < p.M; j += PART) {
            vf part[NV] = {};
            short_values<Profile, D, NV>(part, x, b, p.weights, j, j + PART < p.M ? j + PART : p.M, profile);
            for (int n = 0; n < NV; ++n) store(sums + n * LANES, part[n]);
            carry(totals, sums, ROWS);
        }
        for (int64_t r = 0; r < ROWS && first + r < p.N; ++r) out[first + r] = static_cast<float>(totals[r]);
    }
}

// ---------------------------------------------------------------- points of any length, any number of weights

constexpr int64_t ROWS = VECTORS * LANES;

// The squared distances of a tile of rows, x[d][row], to C columns.
template <int C>
inline void distances(vf (&q)[C][VECTORS], const float* x, const float* b, int64_t D) {
    for (int c = 0; c < C; ++c)
        for (int n = 0; n < VECTORS; ++n) q[c][n] = vf{};
    for (int64_t d = 0; d < D; ++d) {
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
            const vf y = splat(b[c * D + d]);
#pragma GCC unroll 2
            for (int n = 0; n < VECTORS; ++n) {
                const vf apart = load(x + d * ROWS + n * LANES) - y;
                q[c][n] = fma(apart, apart, q[c][n]);
            }
        }
    }
}

// sums[e][row] += k weights[column][e]
template <class Profile, int C>
inline void value_columns(float* sums, const float* x, const float* b, const float* weights, const Problem& p,
                          const Profile& profile) {
    vf k[C][VECTORS];
    distances<C>(k, x, b, p.D);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
#pragma GCC unroll 2
        for (int n = 0; n < VECTORS; ++n) k[c][n] = profile.value(k[c][n]);
    for (int64_t e = 0; e < p.E; ++e)
#pragma GCC unroll 2
        for (int n = 0; n < VECTORS; ++n) {
            float* at = sums + e * ROWS + n * LANES;
            vf sum = load(at);
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) sum = fma(k[c][n], splat(weights[c * p.E + e]), sum);
            store(at, sum);
        }
}

template <class Profile>
void value_rows(float* out, const Problem& p, const float* b, const Scale& scale, const Profile& profile, Range rows) {
    const Buffer x(p.D * ROWS), sums(p.E * ROWS), wide(2 * p.E * ROWS);
    double* totals = reinterpret_cast<double*>(wide.data);
    for (int64_t first = rows.begin; first < rows.end; first += ROWS) {
        turn(x.data, p.a, first, p.N, p.D, ROWS, &scale);
        std::memset(totals, 0, sizeof(double) * static_cast<size_t>(p.E * ROWS));
        std::memset(sums.data, 0, sizeof(float) * static_cast<size_t>(p.E * ROWS));
        for (int64_t begin = 0; begin < p.M; begin += PART) {
            const int64_t end = begin + PART < p.M ? begin + PART : p.M;
            int64_t j = begin;
            for (; j + 4 <= end; j += 4)
                value_columns<Profile, 4>(sums.data, x.data, b + j * p.D, p.weights + j * p.E, p, profile);
            for (; j < end; ++j)
                value_columns<Profile, 1>(sums.data, x.data, b + j * p.D, p.weights + j * p.E, p, profile);
            carry(totals, sums.data, p.E * ROWS);
        }
        for (int64_t r = 0; r < ROWS && first + r < p.N; ++r)
            for (int64_t e = 0; e < p.E; ++e)
                out[(first + r) * p.E + e] = static_cast<float>(totals[e * ROWS + r]);
    }
}

// With u = slope (flows . weights[column]): sums[d][row] += u (x - y)[d], and behind them u q.
template <class Profile, int C>
inline void slope_columns(float* sums, const float* x, const float* flows, const float* b, const float* weights,
                          const Problem& p, const Profile& profile) {
    vf q[C][VECTORS], u[C][VECTORS];
    distances<C>(q, x, b, p.D);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
#pragma GCC unroll 2
        for (int n = 0; n < VECTORS; ++n) {
            vf flow = {};
            for (int64_t e = 0; e < p.E; ++e)
                flow = fma(load(flows + e * ROWS + n * LANES), splat(weights[c * p.E + e]), flow);
            u[c][n] = flow * profile.slope(q[c][n]);
            q[c][n] = min(splat(1e30f), q[c][n]);  // where u is 0, so that u q is
        }
    for (int64_t d = 0; d < p.D; ++d)
#pragma GCC unroll 2
        for (int n = 0; n < VECTORS; ++n) {
            float* at = sums + d * ROWS + n * LANES;
            const vf own = load(x + d * ROWS + n * LANES);
            vf sum = load(at);
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) sum = fma(u[c][n], own - splat(b[c * p.D + d]), sum);
            store(at, sum);
        }
#pragma GCC unroll 2
    for (int n = 0; n < VECTORS; ++n) {
        float* at = sums + p.D * ROWS + n * LANES;
        vf sum = load(at);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sum = fma(u[c][n], q[c][n], sum);
        store(at, sum);
    }
}

template <class Profile>
void slope_rows(float* grad, double* stretch, const Problem& p, const float* b, const Scale& scale,
                const Profile& profile, Range rows) {
    const int64_t each = (p.D + 1) * ROWS;
    const Buffer x(p.D * ROWS), flows(p.E * ROWS), sums(each), wide(2 * each);
    double* totals = reinterpret_cast<double*>(wide.data);
    for (int64_t first = rows.begin; first < rows.end; first += ROWS) {
        turn(x.data, p.a, first, p.N, p.D, ROWS, &scale);
        turn(flows.data, p.flows, first, p.N, p.E, ROWS, nullptr);
        std::memset(totals, 0, sizeof(double) * static_cast<size_t>(each));
        std::memset(sums.data, 0, sizeof(float) * static_cast<size_t>(each));
        for (int64_t begin = 0; begin < p.M; begin += PART) {
            const int64_t end = begin + PART < p.M ? begin + PART : p.M;
            int64_t j = begin;
            for (; j + 4 <= end; j += 4)
                slope_columns<Profile, 4>(sums.data, x.data, flows.data, b + j * p.D, p.weights + j * p.E, p, profile);
            for (; j < end; ++j)
                slope_columns<Profile, 1>(sums.data, x.data, flows.data, b + j * p.D, p.weights + j * p.E, p, profile);
            carry(totals, sums.data, each);
        }
        for (int64_t r = 0; r < ROWS && first + r < p.N; ++r) {
            if (grad)
                for (int64_t d = 0; d < p.D; ++d)
                    grad[(first + r) * p.D + d] =
                        static_cast<float>(-totals[d * ROWS + r] * scale.inverse * scale.factor);
            if (stretch) stretch[first + r] = totals[p.D * ROWS + r] * scale.inverse / p.length_scale;
        }
    }
}

// ---------------------------------------------------------------- the passes

template <class F>
void with_scaled(const Problem& p, int64_t asked, F f) {
    const Magnitude one(p.a, p.N * p.D), other(p.b, p.M * p.D);
    Scale scale(p.length_scale, one.largest > other.largest ? one.largest : other.largest);
    scale.in_range &= one.finite && other.finite && p.D < 1000;
    const Buffer b(p.M * p.D);
    scale_points(b.data, p.b, p.M * p.D, scale);
    const int64_t threads = worth(asked, p.N * p.M * (PAIR_FLOP + 3 * p.D + 2 * p.E), GRAIN);
    parallel(threads, [&](int64_t ith, int64_t nth) { f(b.data, scale, slice(p.N, ith, nth, 4 * LANES)); });
}

template <template <bool> class Profile>
void values(float* out, const Problem& p, int64_t threads) {
    with_scaled(p, threads, [&](const float* b, const Scale& scale, Range rows) {
        auto with = [&](const auto& profile) {
            using P = std::remove_cvref_t<decltype(profile)>;
            if (p.E == 1 && p.D == 1) return short_rows<P, 1>(out, p, b, scale, profile, rows);
            if (p.E == 1 && p.D == 2) return short_rows<P, 2>(out, p, b, scale, profile, rows);
            if (p.E == 1 && p.D == 3) return short_rows<P, 3>(out, p, b, scale, profile, rows);
            value_rows<P>(out, p, b, scale, profile, rows);
        };
        scale.in_range ? with(Profile<true>(scale.inverse)) : with(Profile<false>(scale.inverse));
    });
}

template <template <bool> class Profile>
void slopes(float* grad, double* stretch, const Problem& p, int64_t threads) {
    with_scaled(p, threads, [&](const float* b, const Scale& scale, Range rows) {
        slope_rows<Profile<false>>(grad, stretch, p, b, scale, Profile<false>(scale.inverse), rows);
    });
}

#else  // the definition, pair by pair

using Factor = double;

inline double root(double q) { return std::sqrt(q); }
inline double bounded(double z) { return z > 1e30 ? 1e30 : z; }

template <bool FINITE>
inline double exp2_nonpositive(double w) { return std::exp2(w); }

inline double squared_distance(const Problem& p, int64_t i, int64_t j) {
    double q = 0.0;
    for (int64_t d = 0; d < p.D; ++d) {
        const double apart = static_cast<double>(p.a[i * p.D + d]) - static_cast<double>(p.b[j * p.D + d]);
        q += apart * apart;
    }
    return q;
}

template <template <bool> class Profile>
void values(float* out, const Problem& p, int64_t) {
    const Profile<false> profile(1.0 / (p.length_scale * p.length_scale));
    for (int64_t i = 0; i < p.N; ++i)
        for (int64_t e = 0; e < p.E; ++e) {
            double sum = 0.0;
            for (int64_t j = 0; j < p.M; ++j)
                sum += profile.value(squared_distance(p, i, j)) * static_cast<double>(p.weights[j * p.E + e]);
            out[i * p.E + e] = static_cast<float>(sum);
        }
}

template <template <bool> class Profile>
void slopes(float* grad, double* stretch, const Problem& p, int64_t) {
    const double inverse = 1.0 / (p.length_scale * p.length_scale);
    const Profile<false> profile(inverse);
    for (int64_t i = 0; i < p.N; ++i) {
        double sum = 0.0;
        for (int64_t d = 0; d < p.D; ++d) {
            double moved = 0.0;
            sum = 0.0;
            for (int64_t j = 0; j < p.M; ++j) {
                double flow = 0.0;
                for (int64_t e = 0; e < p.E; ++e)
                    flow += static_cast<double>(p.flows[i * p.E + e]) * static_cast<double>(p.weights[j * p.E + e]);
                const double q = squared_distance(p, i, j), u = flow * profile.slope(q);
                sum += u * q;
                moved += u * (static_cast<double>(p.a[i * p.D + d]) - static_cast<double>(p.b[j * p.D + d]));
            }
            if (grad) grad[i * p.D + d] = static_cast<float>(-moved * inverse);
        }
        if (stretch) stretch[i] = sum * inverse / p.length_scale;
    }
}

#endif

inline Problem problem(const Tensor& a, const Tensor& b, const float* flows, const Tensor& weights, const Tensor& l) {
    return Problem{a.ptr<float>(), b.ptr<float>(), flows,      weights.ptr<float>(),
                   a.shape[0],     b.shape[0],     a.shape[1], weights.shape[1],
                   static_cast<double>(*l.ptr<float>())};
}

}  // namespace kw::pairwise

#define KW_PAIRWISE(name, Profile)                                                                                  \
    KW_EXPORT(name) {                                                                                               \
        const kw::pairwise::Problem p =                                                                             \
            kw::pairwise::problem(args.tensor(1), args.tensor(2), nullptr, args.tensor(3), args.tensor(4));         \
        kw::pairwise::values<Profile>(args.tensor(0).ptr<float>(), p, args.integer(5));                             \
    }                                                                                                               \
    KW_EXPORT(name##_gradient) {                                                                                    \
        const kw::pairwise::Problem p = kw::pairwise::problem(args.tensor(2), args.tensor(3),                       \
                                                              args.tensor(4).ptr<float>(), args.tensor(5),          \
                                                              args.tensor(6));                                      \
        kw::pairwise::slopes<Profile>(args.none(0) ? nullptr : args.tensor(0).ptr<float>(),                         \
                                      args.none(1) ? nullptr : args.tensor(1).ptr<double>(), p, args.integer(7));   \
    }
