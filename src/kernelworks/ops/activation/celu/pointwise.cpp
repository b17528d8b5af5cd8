// celu: output = x where x > 0, else alpha (e^(x / alpha) - 1)
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V celu_value([[maybe_unused]] V x, [[maybe_unused]] V alpha) {
    return where(x > 0.0f, x, alpha * exponential_less_one(x / alpha));
}

inline V celu_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x, [[maybe_unused]] V alpha) {
    return where(x > 0.0f, grad, grad * exponential(x / alpha));
}

}  // namespace
}  // namespace kw

KW_NUMBERS(celu, 1, (auto x, auto alpha), celu_value(x, alpha))
KW_NUMBERS_BACKWARD(celu, 1, (auto grad, auto x, auto alpha), celu_gradient(grad, x, alpha))
