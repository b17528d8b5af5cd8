// selu: output = scale (x where x > 0, else alpha (e^x - 1))
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V selu_value([[maybe_unused]] V x) {
    return where(x > 0.0f, 1.0507009873554805f * x, 1.7580993408473766f * exponential_less_one(x));
}

inline V selu_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x) {
    return where(x <= 0.0f, grad * (1.7580993408473766f * exponential(x)), grad * 1.0507009873554805f);
}

}  // namespace
}  // namespace kw

KW_POINTWISE(selu, (auto x), selu_value(x))
KW_POINTWISE_BACKWARD(selu, (auto grad, auto x), selu_gradient(grad, x))
