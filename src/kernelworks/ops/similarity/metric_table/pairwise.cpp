// The Laplacian kernel, k = e^-q with q = sum_d |x_d - y_d| / l, whose slope is itself, and polynomial kernels,
// k = (q + c)^p with q = x . y / l^2 and the slope p (q + c)^(p - 1).
#include "pairwise_metric.hpp"

namespace {

using kw::V;
using kw::pairwise::Factor;

#if KW_VECTORS
inline V all(float a) { return kw::splat(a); }
// -1, 0 or 1; NaN where a coordinate is.
inline V sign(V x, V y) {
    const V apart = x - y;
    const V size = apart > 0.0f ? all(1.0f) : all(-1.0f);
    return (apart > 0.0f) | (apart < 0.0f) ? size : apart;
}
inline V finite(V q) { return kw::min(kw::splat(1e30f), q); }
#else
inline V all(double a) { return a; }
inline V sign(V x, V y) { return x > y ? 1.0 : x < y ? -1.0 : x - y; }
inline V finite(V q) { return q > 1e30 ? 1e30 : q; }
#endif

template <bool FINITE>
struct Laplacian {
    double unit;  // 1 / l
    Factor rate;  // of q, in powers of two
    Laplacian(double inverse, int64_t, double)
        : unit(std::sqrt(inverse)), rate(static_cast<Factor>(-1.4426950408889634 * unit)) {}
    static V step(V q, V x, V y) { return q + kw::abs(x - y); }
    static V direction(V x, V y) { return sign(x, y); }
    V value(V q) const { return kw::pairwise::exp2_nonpositive<FINITE>(q * rate); }
    V slope(V q) const { return value(q); }
    V reach(V q) const { return finite(q); }
    double moved() const { return -unit; }
    double stretched() const { return unit; }
};

template <bool FINITE>
struct Polynomial {
    double inverse;
    Factor factor, offset;
    int64_t degree;
    Polynomial(double inverse, int64_t degree, double offset)
        : inverse(inverse), factor(static_cast<Factor>(inverse)), offset(static_cast<Factor>(offset)), degree(degree) {}
    static V step(V q, V x, V y) { return kw::fma(x, y, q); }
    static V direction(V, V y) { return y; }
    V at(V q) const { return kw::fma(q, all(factor), all(offset)); }
    static V power(V t, int64_t p) {
        V made = all(1.0f);
        for (; p > 0; p >>= 1, t = t * t)
            if (p & 1) made = made * t;
        return made;
    }
    V value(V q) const { return power(at(q), degree); }
    V slope(V q) const { return power(at(q), degree - 1) * all(static_cast<Factor>(degree)); }
    V reach(V q) const { return q; }
    double moved() const { return inverse; }
    double stretched() const { return -2.0 * inverse; }
};

}  // namespace

KW_PAIRWISE_METRIC(laplacian_matmul, Laplacian)
KW_PAIRWISE_METRIC(polynomial_matmul, Polynomial)
