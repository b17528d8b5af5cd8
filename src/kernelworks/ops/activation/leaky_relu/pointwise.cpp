// leaky_relu: output = x where x > 0, else negative_slope x
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V leaky_relu_value([[maybe_unused]] V x, [[maybe_unused]] V negative_slope) {
    return where(x > 0.0f, x, negative_slope * x);
}

inline V leaky_relu_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x, [[maybe_unused]] V negative_slope) {
    return where(x > 0.0f, grad, negative_slope * grad);
}

}  // namespace
}  // namespace kw

KW_NUMBERS(leaky_relu, 1, (auto x, auto negative_slope), leaky_relu_value(x, negative_slope))
KW_NUMBERS_BACKWARD(leaky_relu, 1, (auto grad, auto x, auto negative_slope), leaky_relu_gradient(grad, x, negative_slope))
