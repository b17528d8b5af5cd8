// relu6: output = min(max(x, 0), 6)
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V relu6_value([[maybe_unused]] V x) {
    return where(x < 0.0f, 0.0f, where(x > 6.0f, 6.0f, x));
}

inline V relu6_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x) {
    return where((x <= 0.0f) | (x >= 6.0f), 0.0f, grad);
}

}  // namespace
}  // namespace kw

KW_POINTWISE(relu6, (auto x), relu6_value(x))
KW_POINTWISE_BACKWARD(relu6, (auto grad, auto x), relu6_gradient(grad, x))
