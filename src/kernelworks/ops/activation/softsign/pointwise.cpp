// softsign: output = x / (1 + |x|)
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V softsign_value([[maybe_unused]] V x) {
    return x / (1.0f + abs(x));
}

inline V softsign_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x) {
    return grad / (1.0f + abs(x)) / (1.0f + abs(x));
}

}  // namespace
}  // namespace kw

KW_POINTWISE(softsign, (auto x), softsign_value(x))
KW_POINTWISE_BACKWARD(softsign, (auto grad, auto x), softsign_gradient(grad, x))
