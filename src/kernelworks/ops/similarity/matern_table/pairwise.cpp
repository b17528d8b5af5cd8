// Matern kernels of order 1/2, k = e^-z with z = r / l and the slope e^-z / z (0 where points meet), and of order 5/2,
// k = (1 + z + z^2 / 3) e^-z with z = sqrt(5) r / l and the slope (5 / 3) (1 + z) e^-z.
#include "pairwise.hpp"

namespace {

using kw::pairwise::Factor;

#if KW_VECTORS
inline kw::V zero_at_zero(kw::V z, kw::V value) { return z > 0.0f ? value : kw::V{} * z; }  // and NaN of NaN
#else
inline double zero_at_zero(double z, double value) { return z > 0.0 ? value : 0.0 * z; }
#endif

template <bool FINITE>
struct Matern12 {
    Factor unit;  // z of sqrt(q)
    explicit Matern12(double inverse) : unit(static_cast<Factor>(std::sqrt(inverse))) {}
    kw::V z(kw::V q) const { return kw::pairwise::root(q) * unit; }
    kw::V e(kw::V z) const { return kw::pairwise::exp2_nonpositive<FINITE>(z * -1.44269504f); }
    kw::V value(kw::V q) const { return e(z(q)); }
    kw::V slope(kw::V q) const {
        const kw::V at = z(q);
        return zero_at_zero(at, e(at) / at);
    }
};

template <bool FINITE>
struct Matern52 {
    Factor unit;
    explicit Matern52(double inverse) : unit(static_cast<Factor>(std::sqrt(5.0 * inverse))) {}
    kw::V z(kw::V q) const { return kw::pairwise::root(q) * unit; }
    kw::V e(kw::V z) const { return kw::pairwise::exp2_nonpositive<FINITE>(z * -1.44269504f); }
    kw::V value(kw::V q) const {
        const kw::V at = z(q), decay = e(at), some = bounded(at);
        return kw::fma(kw::fma(some * some, kw::V{} + 0.333333333f, some), decay, decay);
    }
    kw::V slope(kw::V q) const {
        const kw::V at = z(q), decay = e(at) * 1.66666667f;
        return kw::fma(bounded(at), decay, decay);
    }
    // Of an infinite distance, so that its square times a k that is 0 is 0.
    static kw::V bounded(kw::V z) {
#if KW_VECTORS
        return kw::min(kw::splat(1e15f), z);
#else
        return z > 1e15 ? 1e15 : z;
#endif
    }
};

}  // namespace

KW_PAIRWISE(matern12_matmul, Matern12)
KW_PAIRWISE(matern52_matmul, Matern52)
