// The cosine between two lines: three stages of float64, and both gradients of them. For every instruction set.
#include "stage_reduction.hpp"

namespace kw {
namespace {

// Stages: |x|, |y|, and x.y, which a forward divides. The number is eps.
template <int GRADIENTS>
struct Cosine {
    static constexpr int OPERANDS = 2, STAGES = 3, NUMBERS = 1, RESULTS = GRADIENTS;
    static constexpr Combine COMBINES[] = {Combine::SUM, Combine::SUM, Combine::SUM};

    template <int S>
    static W term(const W* x, const W*, W, const W*) {
        return x[S == 1 ? 1 : 0] * x[S == 0 ? 0 : 1];
    }
    template <int S>
    static double finish(double s, const double* found, double, const double* eps) {
        if constexpr (S < 2) return root(s);
        else if constexpr (GRADIENTS) return s;
        else return s / (limited(found[0], *eps) * limited(found[1], *eps));
    }
    static double coefficient(double grad, const double*, double, const double*) { return grad; }
    static void elements(W* result, const W* x, const W* found, W, W grad, const W* eps) {
        const W one = limited(found[0], *eps), other = limited(found[1], *eps), both = one * other;
        for (int i = 0; i < GRADIENTS; ++i) {
            const W norm = found[i], mine = i ? other : one;
            const W along = where(norm == 0.0, 0.0, x[i] * (found[2] / (both * mine * norm)));
            result[i] = grad * (x[1 - i] / both - along);
        }
    }

    // At least eps; a NaN stays.
    template <class N>
    static N limited(N norm, N eps) {
        return where(norm < eps, eps, norm);
    }
};

}  // namespace
}  // namespace kw

KW_EXPORT(cosine_similarity) { kw::run_stages<kw::Cosine<0>>(args); }
KW_EXPORT(cosine_similarity_backward) { kw::run_stages<kw::Cosine<2>>(args); }
