// tanh: output = (e^x - e^-x) / (e^x + e^-x)
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V tanh_value([[maybe_unused]] V x) {
    return hyperbolic_tangent(x);
}

inline V tanh_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x) {
    const V e = exponential(-2.0f * abs(x));
    return grad * (4.0f * (e / (1.0f + e)) / (1.0f + e));
}

}  // namespace
}  // namespace kw

KW_POINTWISE(tanh, (auto x), tanh_value(x))
KW_POINTWISE_BACKWARD(tanh, (auto grad, auto x), tanh_gradient(grad, x))
