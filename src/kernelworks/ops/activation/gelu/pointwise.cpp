// gelu in both forms. See README.md for how they are computed.
#include "gelu.hpp"
#include "pointwise.hpp"

KW_POINTWISE_HEAVY(gelu_tanh, (auto x), gelu_tanh(x))
KW_POINTWISE_HEAVY(gelu_none, (auto x), gelu_none(x))
KW_POINTWISE_BACKWARD(gelu_tanh, (auto grad, auto x), grad * gelu_tanh_both(x).slope)
KW_POINTWISE_BACKWARD(gelu_none, (auto grad, auto x), grad * gelu_none_both(x).slope)
