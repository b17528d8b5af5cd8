// The LSTM's cell. How its products are made, and steps follow each other, is in recurrent.hpp; the products of the input
// are linear's.
#include "recurrent.hpp"
#if KW_VECTORS
#include "../../linear/linear/simd.cpp"
#else
#include "../../linear/linear/scalar.cpp"
#endif

namespace {

struct Lstm {
    static constexpr int GATES = 4, STATES = 2;
    static void step(const kw::V* x, const kw::V* h, kw::V* state) {
        const kw::V input = kw::logistic(x[0] + h[0]), forget = kw::logistic(x[1] + h[1]);
        const kw::V written = kw::hyperbolic_tangent(x[2] + h[2]), output = kw::logistic(x[3] + h[3]);
        state[1] = kw::fma(forget, state[1], input * written);
        state[0] = output * kw::hyperbolic_tangent(state[1]);
    }
};

}  // namespace

KW_RECURRENT(lstm, Lstm)
