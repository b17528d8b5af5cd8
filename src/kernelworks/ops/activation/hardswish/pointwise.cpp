// hardswish: output = x min(max(x + 3, 0), 6) / 6
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V hardswish_value([[maybe_unused]] V x) {
    return x * (where(x < -3.0f, 0.0f, where(x > 3.0f, 6.0f, x + 3.0f)) / 6.0f);
}

inline V hardswish_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x) {
    return where(x <= -3.0f, 0.0f, where(x < 3.0f, grad * (x / 3.0f + 0.5f), grad));
}

}  // namespace
}  // namespace kw

KW_POINTWISE(hardswish, (auto x), hardswish_value(x))
KW_POINTWISE_BACKWARD(hardswish, (auto grad, auto x), hardswish_gradient(grad, x))
