// softplus: output = log(1 + e^(beta x)) / beta, and x where beta x > threshold
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V softplus_value([[maybe_unused]] V x, [[maybe_unused]] V beta, [[maybe_unused]] V threshold) {
    const V b = x * beta;
    return where(b > threshold, x, (where(b > 0.0f, b, 0.0f) + log_one_more(exponential(-abs(b)))) / beta);
}

inline V softplus_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x, [[maybe_unused]] V beta, [[maybe_unused]] V threshold) {
    const V b = x * beta;
    return where(b > threshold, grad, grad * logistic(b));
}

}  // namespace
}  // namespace kw

KW_NUMBERS(softplus, 2, (auto x, auto beta, auto threshold), softplus_value(x, beta, threshold))
KW_NUMBERS_BACKWARD(softplus, 2, (auto grad, auto x, auto beta, auto threshold), softplus_gradient(grad, x, beta, threshold))
