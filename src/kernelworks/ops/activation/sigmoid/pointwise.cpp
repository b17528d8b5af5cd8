// sigmoid: output = 1 / (1 + e^-x)
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V sigmoid_value([[maybe_unused]] V x) {
    return logistic(x);
}

inline V sigmoid_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x) {
    return grad * (logistic(x) * logistic(-x));
}

}  // namespace
}  // namespace kw

KW_POINTWISE(sigmoid, (auto x), sigmoid_value(x))
KW_POINTWISE_BACKWARD(sigmoid, (auto grad, auto x), sigmoid_gradient(grad, x))
