// The matrices of kernels that are no function of the Euclidean distance: of dot products, k = (gamma x . y + c)^p, and of L1
// distances, k = e^(-gamma sum_d |x_d - y_d|).
//
// On vectors lanes are columns: four rows at a time meet a block of LANES points of y, which lie coordinate by coordinate.
// Points are multiplied with a power of two first, as in pairwise.hpp, so that no unit leaves float32's range on the way.
#include "pairwise.hpp"

namespace {

using kw::V;
using kw::pairwise::Factor;

#if KW_VECTORS
inline V all(double a) { return kw::splat(static_cast<float>(a)); }
// -1, 0 or 1; NaN where a coordinate is.
inline V sign(V x, V y) {
    const V apart = x - y;
    const V size = apart > 0.0f ? all(1.0) : all(-1.0);
    return (apart > 0.0f) | (apart < 0.0f) ? size : apart;
}
#else
inline V all(double a) { return a; }
inline V sign(V x, V y) { return x > y ? 1.0 : x < y ? -1.0 : x - y; }
#endif

// Each says q of a pair coordinate by coordinate, k and its slope of q, and what the gradient of x is a sum of. `unit` is the
// length scale that gamma stands for; `inverse` is 1 / unit^2 in units of the scaled points.
struct Dot {
    V factor, offset;
    int64_t degree;
    Dot(double inverse, int64_t degree, double offset) : factor(all(inverse)), offset(all(offset)), degree(degree) {}
    static double unit(double gamma) { return 1.0 / std::sqrt(gamma); }
    static V step(V q, V x, V y) { return kw::fma(x, y, q); }
    static V direction(V, V y) { return y; }
    V at(V q) const { return kw::fma(q, factor, offset); }
    static V power(V t, int64_t p) {
        V made = all(1.0);
        for (; p > 0; p >>= 1, t = t * t)
            if (p & 1) made = made * t;
        return made;
    }
    V value(V q) const { return power(at(q), degree); }
    V slope(V q) const { return power(at(q), degree - 1) * all(static_cast<double>(degree)); }
    static double moved(double gamma, double scale) { return gamma / scale; }
};

struct Laplacian {
    Factor rate;  // of q, in powers of two
    Laplacian(double inverse, int64_t, double) : rate(static_cast<Factor>(-1.4426950408889634 * std::sqrt(inverse))) {}
    static double unit(double gamma) { return 1.0 / gamma; }
    static V step(V q, V x, V y) { return q + kw::abs(x - y); }
    static V direction(V x, V y) { return sign(x, y); }
    V value(V q) const { return kw::pairwise::exp2_nonpositive<false>(q * rate); }
    V slope(V q) const { return value(q); }
    static double moved(double gamma, double) { return -gamma; }
};

struct Problem {
    const float *a, *b;
    int64_t N, M, D, threads, degree;
    double gamma, offset;
    Problem(kw::Args& args, int x)
        : a(args.tensor(x).ptr<float>()), b(args.tensor(x + 1).ptr<float>()), N(args.tensor(x).shape[0]),
          M(args.tensor(x + 1).shape[0]), D(args.tensor(x).shape[1]), threads(args.integer(x + 2)),
          degree(args.integer(x + 3)), gamma(args.real(x + 4)), offset(args.real(x + 5)) {}
};

#if KW_VECTORS

using kw::LANES;
using kw::vf;
using kw::pairwise::Buffer;
using kw::pairwise::Scale;

// f(y by blocks of LANES points, [block][D][LANES]; the scale; the profile; rows)
template <class Profile, class F>
void with_scaled(const Problem& p, F f) {
    const kw::pairwise::Magnitude one(p.a, p.N * p.D), other(p.b, p.M * p.D);
    const Scale scale(Profile::unit(p.gamma), one.largest > other.largest ? one.largest : other.largest);
    const int64_t blocks = (p.M + LANES - 1) / LANES;
    const Buffer b(blocks * LANES * p.D);
    for (int64_t j = 0; j < blocks; ++j)
        kw::pairwise::turn(b.data + j * LANES * p.D, p.b, j * LANES, p.M, p.D, LANES, &scale);
    const Profile profile(scale.inverse, p.degree, p.offset);
    const int64_t flop = p.N * p.M * (kw::pairwise::PAIR_FLOP + 3 * p.D);
    kw::parallel(kw::worth(p.threads, flop, kw::pairwise::GRAIN),
                 [&](int64_t ith, int64_t nth) { f(b.data, scale, profile, kw::slice(p.N, ith, nth)); });
}

// R rows against a block of points.
template <class Profile, int R>
inline void reach(vf (&q)[R], const float* x, const float* b, int64_t D) {
    for (int r = 0; r < R; ++r) q[r] = vf{};
    for (int64_t d = 0; d < D; ++d) {
        const vf y = kw::load(b + d * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) q[r] = Profile::step(q[r], kw::splat(x[r * D + d]), y);
    }
}

template <class Profile, int R, class T>
inline void value_rows(T* out, float* x, const float* b, const Problem& p, const Scale& scale, const Profile& profile,
                       int64_t i) {
    kw::pairwise::scale_points(x, p.a + i * p.D, R * p.D, scale);
    for (int64_t j = 0; j < p.M; j += LANES) {
        vf q[R];
        reach<Profile, R>(q, x, b + j * p.D, p.D);
        const int64_t left = p.M - j;
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            T* at = out + (i + r) * p.M + j;
            if (left < LANES) kw::store(at, profile.value(q[r]), static_cast<int>(left));
            else kw::store(at, profile.value(q[r]));
        }
    }
}

template <class Profile, class T>
void values(T* out, const Problem& p) {
    with_scaled<Profile>(p, [&](const float* b, const Scale& scale, const Profile& profile, kw::Range rows) {
        const Buffer x(4 * p.D);
        int64_t i = rows.begin;
        for (; i + 4 <= rows.end; i += 4) value_rows<Profile, 4>(out, x.data, b, p, scale, profile, i);
        for (; i < rows.end; ++i) value_rows<Profile, 1>(out, x.data, b, p, scale, profile, i);
    });
}

template <class Profile, class T>
void slopes(float* grad, const T* flows, const Problem& p) {
    with_scaled<Profile>(p, [&](const float* b, const Scale& scale, const Profile& profile, kw::Range rows) {
        const Buffer x(p.D), sums(p.D * LANES);
        const double moved = Profile::moved(p.gamma, scale.factor);
        for (int64_t i = rows.begin; i < rows.end; ++i) {
            kw::pairwise::scale_points(x.data, p.a + i * p.D, p.D, scale);
            std::memset(sums.data, 0, sizeof(float) * static_cast<size_t>(p.D * LANES));
            for (int64_t j = 0; j < p.M; j += LANES) {
                const int64_t left = p.M - j;
                const T* from = flows + i * p.M + j;
                const float* y = b + j * p.D;
                const vf flow = left < LANES ? kw::load(from, static_cast<int>(left)) : kw::load(from);
                vf q[1];
                reach<Profile, 1>(q, x.data, y, p.D);
                // Columns that are not there may meet an infinite point in NaN.
                const vf u = kw::keep_first(flow * profile.slope(q[0]), static_cast<int>(left < LANES ? left : LANES), 0.0f);
                for (int64_t d = 0; d < p.D; ++d) {
                    float* at = sums.data + d * LANES;
                    kw::store(at, kw::fma(u, Profile::direction(kw::splat(x.data[d]), kw::load(y + d * LANES)), kw::load(at)));
                }
            }
            for (int64_t d = 0; d < p.D; ++d)
                grad[i * p.D + d] =
                    static_cast<float>(static_cast<double>(kw::reduce_add(kw::load(sums.data + d * LANES))) * moved);
        }
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

template <class Profile>
Profile unscaled(const Problem& p) {
    const double unit = Profile::unit(p.gamma);
    return Profile(1.0 / (unit * unit), p.degree, p.offset);
}

template <class Profile, class T>
void values(T* out, const Problem& p) {
    const Profile profile = unscaled<Profile>(p);
    for (int64_t i = 0; i < p.N; ++i)
        for (int64_t j = 0; j < p.M; ++j)
            out[i * p.M + j] = kw::from_float<T>(static_cast<float>(profile.value(reach<Profile>(p, i, j))));
}

template <class Profile, class T>
void slopes(float* grad, const T* flows, const Problem& p) {
    const Profile profile = unscaled<Profile>(p);
    for (int64_t i = 0; i < p.N; ++i)
        for (int64_t d = 0; d < p.D; ++d) {
            double sum = 0.0;
            for (int64_t j = 0; j < p.M; ++j)
                sum += static_cast<double>(kw::to_float(flows[i * p.M + j])) * profile.slope(reach<Profile>(p, i, j)) *
                       Profile::direction(static_cast<double>(p.a[i * p.D + d]), static_cast<double>(p.b[j * p.D + d]));
            grad[i * p.D + d] = static_cast<float>(sum * Profile::moved(p.gamma, 1.0));
        }
}

#endif

}  // namespace

// NAME: out [N, M], x [N, D], y [M, D], threads, degree, gamma, offset. NAME_gradient: grad of x, flows [N, M], and the same from
// x on. Contiguous; all but out and flows float32.
#define KW_MATRIX(name, Profile)                                                                                        \
    KW_EXPORT(name) {                                                                                                   \
        const kw::Tensor out = args.tensor(0);                                                                          \
        const Problem p(args, 1);                                                                                       \
        kw::with_dtype(out.dtype, [&](auto zero) { values<Profile>(out.ptr<decltype(zero)>(), p); });                   \
    }                                                                                                                   \
    KW_EXPORT(name##_gradient) {                                                                                        \
        const kw::Tensor grad = args.tensor(0), flows = args.tensor(1);                                                 \
        const Problem p(args, 2);                                                                                       \
        kw::with_dtype(flows.dtype, [&](auto zero) {                                                                    \
            slopes<Profile>(grad.ptr<float>(), flows.ptr<const decltype(zero)>(), p);                                   \
        });                                                                                                             \
    }

KW_MATRIX(linear_kernel, Dot)
KW_MATRIX(polynomial_kernel, Dot)
KW_MATRIX(laplacian_kernel, Laplacian)
