// elu: output = x where x > 0, else alpha (e^x - 1)
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V elu_value([[maybe_unused]] V x, [[maybe_unused]] V alpha) {
    return where(x > 0.0f, x, alpha * exponential_less_one(x));
}

inline V elu_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x, [[maybe_unused]] V alpha) {
    return where(x <= 0.0f, grad * (alpha * exponential(x)), grad);
}

}  // namespace
}  // namespace kw

KW_NUMBERS(elu, 1, (auto x, auto alpha), elu_value(x, alpha))
KW_NUMBERS_BACKWARD(elu, 1, (auto grad, auto x, auto alpha), elu_gradient(grad, x, alpha))
