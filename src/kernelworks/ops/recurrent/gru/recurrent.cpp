// The GRU's cell. How its products are made, and steps follow each other, is in recurrent.hpp; the products of the input
// are linear's.
#include "recurrent.hpp"
#if KW_VECTORS
#include "../../linear/linear/simd.cpp"
#else
#include "../../linear/linear/scalar.cpp"
#endif

namespace {

struct Gru {
    static constexpr int GATES = 3, STATES = 1;
    static void step(const kw::V* x, const kw::V* h, kw::V* state) {
        const kw::V reset = kw::logistic(x[0] + h[0]), update = kw::logistic(x[1] + h[1]);
        const kw::V made = kw::hyperbolic_tangent(kw::fma(reset, h[2], x[2]));
        state[0] = kw::fma(update, state[0], (1.0f - update) * made);
    }
};

}  // namespace

KW_RECURRENT(gru, Gru)
