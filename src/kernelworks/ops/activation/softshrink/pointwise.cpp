// softshrink: output = x - lambd where x > lambd, x + lambd where x < -lambd, else 0
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V softshrink_value([[maybe_unused]] V x, [[maybe_unused]] V lambd) {
    return where(x > lambd, x - lambd, where(x < -lambd, x + lambd, x * 0.0f));
}

inline V softshrink_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x, [[maybe_unused]] V lambd) {
    return where((x >= -lambd) & (x <= lambd), 0.0f, grad);
}

}  // namespace
}  // namespace kw

KW_NUMBERS(softshrink, 1, (auto x, auto lambd), softshrink_value(x, lambd))
KW_NUMBERS_BACKWARD(softshrink, 1, (auto grad, auto x, auto lambd), softshrink_gradient(grad, x, lambd))
