// threshold: output = x where x > threshold, else value
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V threshold_value([[maybe_unused]] V x, [[maybe_unused]] V threshold, [[maybe_unused]] V value) {
    return where(x <= threshold, value, x);
}

inline V threshold_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x, [[maybe_unused]] V threshold, [[maybe_unused]] V value) {
    return where(x <= threshold, 0.0f, grad);
}

}  // namespace
}  // namespace kw

KW_NUMBERS(threshold, 2, (auto x, auto threshold, auto value), threshold_value(x, threshold, value))
KW_NUMBERS_BACKWARD(threshold, 2, (auto grad, auto x, auto threshold, auto value), threshold_gradient(grad, x, threshold, value))
