// hardtanh: output = min(max(x, min_val), max_val)
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V hardtanh_value([[maybe_unused]] V x, [[maybe_unused]] V min_val, [[maybe_unused]] V max_val) {
    return where(x < min_val, min_val, where(x > max_val, max_val, x));
}

inline V hardtanh_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x, [[maybe_unused]] V min_val, [[maybe_unused]] V max_val) {
    return where((x <= min_val) | (x >= max_val), 0.0f, grad);
}

}  // namespace
}  // namespace kw

KW_NUMBERS(hardtanh, 2, (auto x, auto min_val, auto max_val), hardtanh_value(x, min_val, max_val))
KW_NUMBERS_BACKWARD(hardtanh, 2, (auto grad, auto x, auto min_val, auto max_val), hardtanh_gradient(grad, x, min_val, max_val))
