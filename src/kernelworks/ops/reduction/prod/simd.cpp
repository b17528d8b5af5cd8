// Products along dimensions in stages, for every instruction set. A stage of stage_reduction.hpp is a sum, a maximum or a
// minimum; a product is one more, which is said here: there it would change the sources of all ops that have none.
#include "stage_reduction.hpp"

namespace kw {

constexpr Combine PRODUCT = static_cast<Combine>(3);

template <>
constexpr double start_of<PRODUCT>() {
    return 1.0;
}
template <>
inline double combined<PRODUCT, double>(double before, double x) {
    return before * x;
}
#if KW_VECTORS
template <>
inline W combined<PRODUCT, W>(W before, W x) {
    return before * x;
}
#endif

namespace {

struct Product {
    static constexpr int OPERANDS = 1, STAGES = 1, NUMBERS = 0, RESULTS = 0;
    static constexpr Combine COMBINES[] = {PRODUCT};
    template <int>
    static W term(const W* x, const W*, W, const W*) {
        return x[0];
    }
    template <int>
    static double finish(double s, const double*, double, const double*) {
        return s;
    }
};

// Stages: how many zeros there are, and the product of all else.
struct Gradient {
    static constexpr int OPERANDS = 1, STAGES = 2, NUMBERS = 0, RESULTS = 1;
    static constexpr Combine COMBINES[] = {Combine::SUM, PRODUCT};
    template <int S>
    static W term(const W* x, const W*, W, const W*) {
        if constexpr (S == 0) return where(x[0] == 0.0, 1.0, 0.0);
        else return where(x[0] == 0.0, 1.0, x[0]);
    }
    template <int>
    static double finish(double s, const double*, double, const double*) {
        return s;
    }
    static double coefficient(double grad, const double* found, double, const double*) { return grad * found[1]; }
    // The product of the others: without a zero a quotient, with one 0 but in its place, with more 0.
    static void elements(W* result, const W* x, const W* found, W, W coefficient, const W*) {
        const W others = where(x[0] == 0.0, coefficient, where(found[0] == 0.0, coefficient / x[0], 0.0));
        result[0] = where(found[0] > 1.0, 0.0, others);
    }
};

}  // namespace
}  // namespace kw

KW_EXPORT(prod) { kw::run_stages<kw::Product>(args); }
KW_EXPORT(prod_backward) { kw::run_stages<kw::Gradient>(args); }
