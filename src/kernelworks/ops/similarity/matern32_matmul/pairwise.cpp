// The Matern kernel of order 3/2: k = (1 + z) e^-z with z = sqrt(3) r / l, whose slope is 3 e^-z.
#include "pairwise.hpp"

namespace {

template <bool FINITE>
struct Matern32 {
    kw::pairwise::Factor unit;  // z of sqrt(q)
    explicit Matern32(double inverse) : unit(static_cast<kw::pairwise::Factor>(std::sqrt(3.0 * inverse))) {}
    kw::V z(kw::V q) const { return kw::pairwise::root(q) * unit; }
    kw::V e(kw::V z) const { return kw::pairwise::exp2_nonpositive<FINITE>(z * -1.44269504f); }
    kw::V value(kw::V q) const {
        const kw::V at = z(q), decay = e(at);
        return kw::fma(kw::pairwise::bounded(at), decay, decay);
    }
    kw::V slope(kw::V q) const { return e(z(q)) * 3.0f; }
};

}  // namespace

KW_PAIRWISE(matern32_matmul, Matern32)
