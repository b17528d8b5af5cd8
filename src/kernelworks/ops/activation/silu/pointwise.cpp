// silu: output = x / (1 + e^-x)
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V silu_value([[maybe_unused]] V x) {
    return x * logistic(x);
}

inline V silu_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x) {
    return grad * (logistic(x) * (1.0f + x * logistic(-x)));
}

}  // namespace
}  // namespace kw

KW_POINTWISE(silu, (auto x), silu_value(x))
KW_POINTWISE_BACKWARD(silu, (auto grad, auto x), silu_gradient(grad, x))
