// silu_mul. The forward is gate / (1 + e^-gate) up: where e^-gate overflows, the result is the 0 that float32 has for it.
// The derivative needs both sigmoids, which come from e^-|gate| without cancelling.
#include "pointwise.hpp"
#include "sigmoid.hpp"

namespace {

using kw::V;

// silu'(x) = s + x s (1 - s)
kw::Several<2> slopes(V grad, V gate, V up) {
    const kw::Sigmoids s = kw::sigmoids(gate);
    return kw::both(grad * up * kw::fma(s.up * s.down, gate, s.up), grad * (gate * s.up));
}

}  // namespace

KW_POINTWISE(silu_mul, (auto gate, auto up), silu(gate) * up)
KW_POINTWISE_BACKWARD(silu_mul, (auto grad, auto gate, auto up), slopes(grad, gate, up))
