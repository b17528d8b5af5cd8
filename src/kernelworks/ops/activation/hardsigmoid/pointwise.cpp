// hardsigmoid: output = min(max(x + 3, 0), 6) / 6
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V hardsigmoid_value([[maybe_unused]] V x) {
    return where(x < -3.0f, 0.0f, where(x > 3.0f, 6.0f, x + 3.0f)) / 6.0f;
}

inline V hardsigmoid_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x) {
    return where((x > -3.0f) & (x < 3.0f), grad / 6.0f, 0.0f);
}

}  // namespace
}  // namespace kw

KW_POINTWISE(hardsigmoid, (auto x), hardsigmoid_value(x))
KW_POINTWISE_BACKWARD(hardsigmoid, (auto grad, auto x), hardsigmoid_gradient(grad, x))
