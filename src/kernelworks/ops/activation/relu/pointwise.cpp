// relu, and its gradient: 0 at 0, and NaN is let through by both, as by torch's.
#include "pointwise.hpp"

KW_POINTWISE(relu, (auto x), max(0.0f, x))
KW_POINTWISE_BACKWARD(relu, (auto grad, auto x), x <= 0.0f ? 0.0f : grad)
