// hardshrink: output = 0 where -lambd <= x <= lambd, else x
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V hardshrink_value([[maybe_unused]] V x, [[maybe_unused]] V lambd) {
    return where((x >= -lambd) & (x <= lambd), 0.0f, x);
}

inline V hardshrink_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x, [[maybe_unused]] V lambd) {
    return where((x >= -lambd) & (x <= lambd), 0.0f, grad);
}

}  // namespace
}  // namespace kw

KW_NUMBERS(hardshrink, 1, (auto x, auto lambd), hardshrink_value(x, lambd))
KW_NUMBERS_BACKWARD(hardshrink, 1, (auto grad, auto x, auto lambd), hardshrink_gradient(grad, x, lambd))
