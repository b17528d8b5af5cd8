// Sums over all pairs of a row and a column, output[i] = sum_j k(x_i, y_j) v[j], of kernels that are no function of the
// Euclidean distance: of the sum of absolute differences (L1), or of the dot product. K is never stored.
//
//     KW_PAIRWISE_METRIC(laplacian_matmul, Laplacian)
//
// exports NAME and NAME_gradient as KW_PAIRWISE of pairwise.hpp does, with two numbers (a degree and an offset, for
// whoever reads them) behind the threads. A profile says
//
//     Laplacian(double inverse, int64_t degree, double offset);   // inverse = 1 / l^2, in units of the scaled points
//     static V step(V q, V x, V y);         // q and what one coordinate adds to it
//     static V direction(V x, V y);         // what the gradient of x's coordinate is a sum of, times the slope
//     V value(V q) const, slope(V q) const; // k and the derivative that goes with `direction`
//     V reach(V q) const;                   // q where the slope is not 0, for the length scale's gradient
//     double moved() const, stretched() const;  // what both sums are multiplied with
//
// Such loops would serve squared distances too. These keep pairwise.hpp, whose points of one to three coordinates stay in
// registers over all columns: kernel_matmul/README.md has what that was measured to bring.
#pragma once

#include "pairwise.hpp"

namespace kw::pairwise::metric {

#if KW_VECTORS

template <class Profile, int C>
inline void reach_columns(vf (&q)[C][VECTORS], const float* x, const float* b, int64_t D) {
    for (int c = 0; c < C; ++c)
        for (int n = 0; n < VECTORS; ++n) q[c][n] = vf{};
    for (int64_t d = 0; d < D; ++d) {
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
            const vf y = splat(b[c * D + d]);
#pragma GCC unroll 2
            for (int n = 0; n < VECTORS; ++n) q[c][n] = Profile::step(q[c][n], load(x + d * ROWS + n * LANES), y);
        }
    }
}

// sums[e][row] += k weights[column][e]
template <class Profile, int C>
inline void value_columns(float* sums, const float* x, const float* b, const float* weights, const Problem& p,
                          const Profile& profile) {
    vf k[C][VECTORS];
    reach_columns<Profile, C>(k, x, b, p.D);
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

// With u = slope (flows . weights[column]): sums[d][row] += u direction[d], and behind them u q.
template <class Profile, int C>
inline void slope_columns(float* sums, const float* x, const float* flows, const float* b, const float* weights,
                          const Problem& p, const Profile& profile) {
    vf q[C][VECTORS], u[C][VECTORS];
    reach_columns<Profile, C>(q, x, b, p.D);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
#pragma GCC unroll 2
        for (int n = 0; n < VECTORS; ++n) {
            vf flow = {};
            for (int64_t e = 0; e < p.E; ++e)
                flow = fma(load(flows + e * ROWS + n * LANES), splat(weights[c * p.E + e]), flow);
            u[c][n] = flow * profile.slope(q[c][n]);
            q[c][n] = profile.reach(q[c][n]);
        }
    for (int64_t d = 0; d < p.D; ++d)
#pragma GCC unroll 2
        for (int n = 0; n < VECTORS; ++n) {
            float* at = sums + d * ROWS + n * LANES;
            const vf own = load(x + d * ROWS + n * LANES);
            vf sum = load(at);
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) sum = fma(u[c][n], Profile::direction(own, splat(b[c * p.D + d])), sum);
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

// What passes all columns four at a time, in parts whose sums are float32: f(columns, first).
template <class Four, class One>
void all_columns(int64_t M, double* totals, float* sums, int64_t n, Four four, One one) {
    std::memset(totals, 0, sizeof(double) * static_cast<size_t>(n));
    std::memset(sums, 0, sizeof(float) * static_cast<size_t>(n));
    for (int64_t begin = 0; begin < M; begin += PART) {
        const int64_t end = begin + PART < M ? begin + PART : M;
        int64_t j = begin;
        for (; j + 4 <= end; j += 4) four(j);
        for (; j < end; ++j) one(j);
        carry(totals, sums, n);
    }
}

template <class Profile>
void value_rows(float* out, const Problem& p, const float* b, const Scale& scale, const Profile& profile, Range rows) {
    const Buffer x(p.D * ROWS), sums(p.E * ROWS), wide(2 * p.E * ROWS);
    double* totals = reinterpret_cast<double*>(wide.data);
    for (int64_t first = rows.begin; first < rows.end; first += ROWS) {
        turn(x.data, p.a, first, p.N, p.D, ROWS, &scale);
        const auto take = [&]<int C>(int64_t j) {
            metric::value_columns<Profile, C>(sums.data, x.data, b + j * p.D, p.weights + j * p.E, p, profile);
        };
        all_columns(p.M, totals, sums.data, p.E * ROWS, [&](int64_t j) { take.template operator()<4>(j); },
                    [&](int64_t j) { take.template operator()<1>(j); });
        for (int64_t r = 0; r < ROWS && first + r < p.N; ++r)
            for (int64_t e = 0; e < p.E; ++e) out[(first + r) * p.E + e] = static_cast<float>(totals[e * ROWS + r]);
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
        const auto take = [&]<int C>(int64_t j) {
            metric::slope_columns<Profile, C>(sums.data, x.data, flows.data, b + j * p.D, p.weights + j * p.E, p, profile);
        };
        all_columns(p.M, totals, sums.data, each, [&](int64_t j) { take.template operator()<4>(j); },
                    [&](int64_t j) { take.template operator()<1>(j); });
        for (int64_t r = 0; r < ROWS && first + r < p.N; ++r) {
            if (grad)
                for (int64_t d = 0; d < p.D; ++d)
                    grad[(first + r) * p.D + d] =
                        static_cast<float>(totals[d * ROWS + r] * profile.moved() * scale.factor);
            if (stretch) stretch[first + r] = totals[p.D * ROWS + r] * profile.stretched() / p.length_scale;
        }
    }
}

template <template <bool> class Profile>
void values(float* out, const Problem& p, int64_t threads, int64_t degree, double offset) {
    with_scaled(p, threads, [&](const float* b, const Scale& scale, Range rows) {
        const Profile<false> profile(scale.inverse, degree, offset);
        metric::value_rows<Profile<false>>(out, p, b, scale, profile, rows);
    });
}

template <template <bool> class Profile>
void slopes(float* grad, double* stretch, const Problem& p, int64_t threads, int64_t degree, double offset) {
    with_scaled(p, threads, [&](const float* b, const Scale& scale, Range rows) {
        const Profile<false> profile(scale.inverse, degree, offset);
        metric::slope_rows<Profile<false>>(grad, stretch, p, b, scale, profile, rows);
    });
}

#else  // the definition, pair by pair

template <class Profile>
inline double reach(const Problem& p, int64_t i, int64_t j) {
    double q = 0.0;
    for (int64_t d = 0; d < p.D; ++d)
        q = Profile::step(q, static_cast<double>(p.a[i * p.D + d]), static_cast<double>(p.b[j * p.D + d]));
    return q;
}

template <template <bool> class Profile>
void values(float* out, const Problem& p, int64_t, int64_t degree, double offset) {
    const Profile<false> profile(1.0 / (p.length_scale * p.length_scale), degree, offset);
    for (int64_t i = 0; i < p.N; ++i)
        for (int64_t e = 0; e < p.E; ++e) {
            double sum = 0.0;
            for (int64_t j = 0; j < p.M; ++j)
                sum += profile.value(reach<Profile<false>>(p, i, j)) * static_cast<double>(p.weights[j * p.E + e]);
            out[i * p.E + e] = static_cast<float>(sum);
        }
}

template <template <bool> class Profile>
void slopes(float* grad, double* stretch, const Problem& p, int64_t, int64_t degree, double offset) {
    using P = Profile<false>;
    const P profile(1.0 / (p.length_scale * p.length_scale), degree, offset);
    for (int64_t i = 0; i < p.N; ++i) {
        double sum = 0.0;
        for (int64_t d = 0; d < p.D; ++d) {
            double moved = 0.0;
            sum = 0.0;
            for (int64_t j = 0; j < p.M; ++j) {
                double flow = 0.0;
                for (int64_t e = 0; e < p.E; ++e)
                    flow += static_cast<double>(p.flows[i * p.E + e]) * static_cast<double>(p.weights[j * p.E + e]);
                const double q = reach<P>(p, i, j), u = flow * profile.slope(q);
                sum += u * profile.reach(q);
                moved += u * P::direction(static_cast<double>(p.a[i * p.D + d]), static_cast<double>(p.b[j * p.D + d]));
            }
            if (grad) grad[i * p.D + d] = static_cast<float>(moved * profile.moved());
        }
        if (stretch) stretch[i] = sum * profile.stretched() / p.length_scale;
    }
}

#endif

}  // namespace kw::pairwise::metric

#define KW_PAIRWISE_METRIC(name, Profile)                                                                           \
    KW_EXPORT(name) {                                                                                               \
        const kw::pairwise::Problem p =                                                                             \
            kw::pairwise::problem(args.tensor(1), args.tensor(2), nullptr, args.tensor(3), args.tensor(4));         \
        kw::pairwise::metric::values<Profile>(args.tensor(0).ptr<float>(), p, args.integer(5), args.integer(6),     \
                                              args.real(7));                                                        \
    }                                                                                                               \
    KW_EXPORT(name##_gradient) {                                                                                    \
        const kw::pairwise::Problem p = kw::pairwise::problem(args.tensor(2), args.tensor(3),                       \
                                                              args.tensor(4).ptr<float>(), args.tensor(5),          \
                                                              args.tensor(6));                                      \
        kw::pairwise::metric::slopes<Profile>(args.none(0) ? nullptr : args.tensor(0).ptr<float>(),                 \
                                              args.none(1) ? nullptr : args.tensor(1).ptr<double>(), p,             \
                                              args.integer(7), args.integer(8), args.real(9));                      \
    }
