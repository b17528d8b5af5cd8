// logsigmoid: output = log(1 / (1 + e^-x))
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V logsigmoid_value([[maybe_unused]] V x) {
    return where(x < 0.0f, x, 0.0f) - log_one_more(exponential(-abs(x)));
}

inline V logsigmoid_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x) {
    return grad * logistic(-x);
}

}  // namespace
}  // namespace kw

KW_POINTWISE(logsigmoid, (auto x), logsigmoid_value(x))
KW_POINTWISE_BACKWARD(logsigmoid, (auto grad, auto x), logsigmoid_gradient(grad, x))
