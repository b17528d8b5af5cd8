// tanhshrink: output = x - tanh(x)
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V tanhshrink_value([[maybe_unused]] V x) {
    return x - hyperbolic_tangent(x);
}

inline V tanhshrink_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x) {
    return grad * (hyperbolic_tangent(x) * hyperbolic_tangent(x));
}

}  // namespace
}  // namespace kw

KW_POINTWISE(tanhshrink, (auto x), tanhshrink_value(x))
KW_POINTWISE_BACKWARD(tanhshrink, (auto grad, auto x), tanhshrink_gradient(grad, x))
