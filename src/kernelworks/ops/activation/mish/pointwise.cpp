// mish: output = x tanh(log(1 + e^x))
// Written by `make docs` from ops/activation/table.py: changes are lost.
#include "activation.hpp"

namespace kw {
namespace {

inline V mish_value([[maybe_unused]] V x) {
    const V e = exponential(-abs(x));
    const V up = where(x < 0.0f, e * (e + 2.0f), 1.0f + 2.0f * e);
    const V rest = where(x < 0.0f, 2.0f, 2.0f * (e * e));
    const V all = up + rest;
    return x * (up / all);
}

inline V mish_gradient([[maybe_unused]] V grad, [[maybe_unused]] V x) {
    const V e = exponential(-abs(x));
    const V up = where(x < 0.0f, e * (e + 2.0f), 1.0f + 2.0f * e);
    const V rest = where(x < 0.0f, 2.0f, 2.0f * (e * e));
    const V all = up + rest;
    const V s = where(x < 0.0f, e, 1.0f) / (1.0f + e);
    return grad * (up / all + x * (s * ((rest / all) * ((up + all) / all))));
}

}  // namespace
}  // namespace kw

KW_POINTWISE(mish, (auto x), mish_value(x))
KW_POINTWISE_BACKWARD(mish, (auto grad, auto x), mish_gradient(grad, x))
