// gelu_mul in both forms: gelu(gate) up. A gradient needs gelu and its slope, which come from one exponential.
#include "gelu.hpp"
#include "pointwise.hpp"

namespace {

kw::Several<2> slopes(kw::V grad, kw::Gelu gelu, kw::V up) {
    return kw::both(grad * up * gelu.slope, grad * gelu.value);
}

}  // namespace

KW_POINTWISE(gelu_mul_none, (auto gate, auto up), gelu_none(gate) * up)
KW_POINTWISE(gelu_mul_tanh, (auto gate, auto up), gelu_tanh(gate) * up)
KW_POINTWISE_BACKWARD(gelu_mul_none, (auto grad, auto gate, auto up), slopes(grad, gelu_none_both(gate), up))
KW_POINTWISE_BACKWARD(gelu_mul_tanh, (auto grad, auto gate, auto up), slopes(grad, gelu_tanh_both(gate), up))
