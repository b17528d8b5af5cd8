// The Gaussian (RBF) kernel: k = e^(-r^2 / (2 l^2)). It is its own slope.
#include "pairwise.hpp"

namespace {

template <bool FINITE>
struct Rbf {
    kw::pairwise::Factor rate;  // of q, in powers of two: -log2(e) / 2
    explicit Rbf(double inverse) : rate(static_cast<kw::pairwise::Factor>(-0.72134752044448170 * inverse)) {}
    kw::V value(kw::V q) const { return kw::pairwise::exp2_nonpositive<FINITE>(q * rate); }
    kw::V slope(kw::V q) const { return value(q); }
};

}  // namespace

KW_PAIRWISE(kernel_matmul, Rbf)
