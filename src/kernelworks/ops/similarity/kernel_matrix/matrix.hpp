// kernel_matrix: K of functions of the distance, and what flows back from it. On vectors lanes are columns: a row's point is
// broadcast, and points of y lie coordinate by coordinate.
#pragma once

#include "pairwise.hpp"

namespace {

using kw::V;
using kw::pairwise::Factor;

constexpr double LOG2E = 1.4426950408889634;

#if KW_VECTORS
inline V zero_at_zero(V z, V value) { return z > 0.0f ? value : V{} * z; }  // and NaN of NaN
#else
inline double zero_at_zero(double z, double value) { return z > 0.0 ? value : 0.0 * z; }
#endif

// Each says k and -2 dk / d(r^2 / l^2) of q, the squared distance whose unit has this inverse square.
struct Rbf {
    Factor rate;
    explicit Rbf(double inverse) : rate(static_cast<Factor>(-0.5 * LOG2E * inverse)) {}
    V value(V q) const { return kw::pairwise::exp2_nonpositive<false>(q * rate); }
    V slope(V q) const { return value(q); }
};

// Matern functions are polynomials of z = sqrt(2 order) r / l times e^-z.
template <int TWICE>
struct Matern {
    Factor unit;
    explicit Matern(double inverse) : unit(static_cast<Factor>(std::sqrt(TWICE * inverse))) {}
    V z(V q) const { return kw::pairwise::root(q) * unit; }
    V decay(V z) const { return kw::pairwise::exp2_nonpositive<false>(z * static_cast<Factor>(-LOG2E)); }
    V value(V q) const {
        const V at = z(q), e = decay(at);
        if constexpr (TWICE == 1) return e;
        const V some = bounded(at);
        if constexpr (TWICE == 3) return kw::fma(some, e, e);
        return kw::fma(kw::fma(some * some, V{} + static_cast<Factor>(1.0 / 3.0), some), e, e);
    }
    V slope(V q) const {
        const V at = z(q), e = decay(at);
        if constexpr (TWICE == 1) return zero_at_zero(at, e / at);
        if constexpr (TWICE == 3) return e * static_cast<Factor>(3.0);
        const V some = e * static_cast<Factor>(5.0 / 3.0);
        return kw::fma(bounded(at), some, some);
    }
    // Of an infinite distance, so that its square times a k that is 0 is 0.
    static V bounded(V z) {
#if KW_VECTORS
        return kw::min(kw::splat(1e15f), z);
#else
        return z > 1e15 ? 1e15 : z;
#endif
    }
};

template <class F>
void with_function(int64_t which, double inverse, F f) {
    switch (which) {
        case 0: return f(Rbf(inverse));
        case 1: return f(Matern<1>(inverse));
        case 2: return f(Matern<3>(inverse));
        default: return f(Matern<5>(inverse));
    }
}

struct Points {
    const float *a, *b;
    int64_t N, M, D;
    double length_scale;
    Points(kw::Tensor x, kw::Tensor y, kw::Tensor l)
        : a(x.ptr<float>()), b(y.ptr<float>()), N(x.shape[0]), M(y.shape[0]), D(x.shape[1]),
          length_scale(static_cast<double>(*l.ptr<float>())) {}
};

#if KW_VECTORS

using kw::LANES;
using kw::vf;
using kw::pairwise::Buffer;
using kw::pairwise::Scale;

// f(points of b by coordinate, the power of two in them, the columns that a coordinate has room for, rows)
template <class F>
void with_scaled(const Points& p, int64_t asked, F f) {
    const kw::pairwise::Magnitude one(p.a, p.N * p.D), other(p.b, p.M * p.D);
    const Scale scale(p.length_scale, one.largest > other.largest ? one.largest : other.largest);
    const int64_t room = (p.M + LANES - 1) / LANES * LANES;
    const Buffer b(room * p.D);
    kw::pairwise::turn(b.data, p.b, 0, p.M, p.D, room, &scale);
    const int64_t pairs = p.N * p.M * (kw::pairwise::PAIR_FLOP + 3 * p.D);
    kw::parallel(kw::worth(asked, pairs, kw::pairwise::GRAIN), [&](int64_t ith, int64_t nth) {
        f(b.data, scale, room, kw::slice(p.N, ith, nth));
    });
}

inline vf squared_distance(const float* x, const float* b, int64_t room, int64_t D) {
    vf q = {};
    for (int64_t d = 0; d < D; ++d) {
        const vf apart = kw::splat(x[d]) - kw::load(b + d * room);
        q = kw::fma(apart, apart, q);
    }
    return q;
}

template <class T>
void values(T* out, const Points& p, int64_t which, int64_t threads) {
    with_scaled(p, threads, [&](const float* b, const Scale& scale, int64_t room, kw::Range rows) {
        const Buffer x(p.D);
        with_function(which, scale.inverse, [&](const auto& function) {
            for (int64_t i = rows.begin; i < rows.end; ++i) {
                kw::pairwise::scale_points(x.data, p.a + i * p.D, p.D, scale);
                for (int64_t j = 0; j < p.M; j += LANES) {
                    const vf k = function.value(squared_distance(x.data, b + j, room, p.D));
                    const int64_t left = p.M - j;
                    if (left < LANES) kw::store(out + i * p.M + j, k, static_cast<int>(left));
                    else kw::store(out + i * p.M + j, k);
                }
            }
        });
    });
}

template <class T>
void slopes(float* grad, double* stretch, const Points& p, const T* flows, int64_t which, int64_t threads) {
    with_scaled(p, threads, [&](const float* b, const Scale& scale, int64_t room, kw::Range rows) {
        const Buffer x(p.D), sums((p.D + 1) * LANES);
        with_function(which, scale.inverse, [&](const auto& function) {
            for (int64_t i = rows.begin; i < rows.end; ++i) {
                kw::pairwise::scale_points(x.data, p.a + i * p.D, p.D, scale);
                std::memset(sums.data, 0, sizeof(float) * static_cast<size_t>((p.D + 1) * LANES));
                for (int64_t j = 0; j < p.M; j += LANES) {
                    const int64_t left = p.M - j;
                    const T* from = flows + i * p.M + j;
                    const vf flow = left < LANES ? kw::load(from, static_cast<int>(left)) : kw::load(from);
                    const vf q = squared_distance(x.data, b + j, room, p.D);
                    // Columns that are not there may be infinitely far from a point.
                    const vf u = kw::keep_first(flow * function.slope(q), static_cast<int>(left < LANES ? left : LANES), 0.0f);
                    for (int64_t d = 0; d < p.D; ++d) {
                        float* at = sums.data + d * LANES;
                        kw::store(at, kw::fma(u, kw::splat(x.data[d]) - kw::load(b + d * room + j), kw::load(at)));
                    }
                    float* at = sums.data + p.D * LANES;
                    kw::store(at, kw::fma(u, kw::pairwise::bounded(q), kw::load(at)));
                }
                const auto total = [&](int64_t d) { return static_cast<double>(kw::reduce_add(kw::load(sums.data + d * LANES))); };
                for (int64_t d = 0; grad && d < p.D; ++d)
                    grad[i * p.D + d] = static_cast<float>(-total(d) * scale.inverse * scale.factor);
                if (stretch) stretch[i] = total(p.D) * scale.inverse / p.length_scale;
            }
        });
    });
}

#else  // the definition, pair by pair

inline double squared_distance(const Points& p, int64_t i, int64_t j) {
    double q = 0.0;
    for (int64_t d = 0; d < p.D; ++d) {
        const double apart = static_cast<double>(p.a[i * p.D + d]) - static_cast<double>(p.b[j * p.D + d]);
        q += apart * apart;
    }
    return q;
}

template <class T>
void values(T* out, const Points& p, int64_t which, int64_t) {
    with_function(which, 1.0 / (p.length_scale * p.length_scale), [&](const auto& function) {
        for (int64_t i = 0; i < p.N; ++i)
            for (int64_t j = 0; j < p.M; ++j)
                out[i * p.M + j] = kw::from_float<T>(static_cast<float>(function.value(squared_distance(p, i, j))));
    });
}

template <class T>
void slopes(float* grad, double* stretch, const Points& p, const T* flows, int64_t which, int64_t) {
    const double inverse = 1.0 / (p.length_scale * p.length_scale);
    with_function(which, inverse, [&](const auto& function) {
        for (int64_t i = 0; i < p.N; ++i) {
            double sum = 0.0;
            for (int64_t d = 0; d < p.D; ++d) {
                double moved = 0.0;
                sum = 0.0;
                for (int64_t j = 0; j < p.M; ++j) {
                    const double q = squared_distance(p, i, j);
                    const double u = static_cast<double>(kw::to_float(flows[i * p.M + j])) * function.slope(q);
                    sum += u * q;
                    moved += u * (static_cast<double>(p.a[i * p.D + d]) - static_cast<double>(p.b[j * p.D + d]));
                }
                if (grad) grad[i * p.D + d] = static_cast<float>(-moved * inverse);
            }
            if (stretch) stretch[i] = sum * inverse / p.length_scale;
        }
    });
}

#endif

}  // namespace

// out [N, M], x [N, D], y [M, D], length scale, which function, threads; contiguous, all but out float32
KW_EXPORT(kernel_matrix) {
    const kw::Tensor out = args.tensor(0);
    const Points p(args.tensor(1), args.tensor(2), args.tensor(3));
    kw::with_dtype(out.dtype, [&](auto zero) { values(out.ptr<decltype(zero)>(), p, args.integer(4), args.integer(5)); });
}

// grad of x or None, each row's part of the length scale's (doubles) or None, x, y, flows [N, M], length scale, which, threads
KW_EXPORT(kernel_matrix_gradient) {
    const Points p(args.tensor(2), args.tensor(3), args.tensor(5));
    kw::with_dtype(args.tensor(4).dtype, [&](auto zero) {
        slopes(args.none(0) ? nullptr : args.tensor(0).ptr<float>(), args.none(1) ? nullptr : args.tensor(1).ptr<double>(), p,
               args.tensor(4).ptr<const decltype(zero)>(), args.integer(6), args.integer(7));
    });
}
