"""The table of activations on the GPU. Written by `make docs`: changes are lost."""

import triton.language as tl

from kernelworks.build.triton import kernel
from kernelworks.tile.activation import exp_less_one, functions, log_one_more, sigmoid, tanh
from kernelworks.tile.exp import exp


@kernel
def celu_value(x, alpha):
    return tl.where(x > 0.0, x, alpha * exp_less_one(tl.div_rn(x, alpha)))


@kernel
def celu_gradient(grad, x, alpha):
    return tl.where(x > 0.0, grad, grad * exp(tl.div_rn(x, alpha)))


celu_forward, celu_backward = functions(__file__, celu_value, celu_gradient)


@kernel
def elu_value(x, alpha):
    return tl.where(x > 0.0, x, alpha * exp_less_one(x))


@kernel
def elu_gradient(grad, x, alpha):
    return tl.where(x <= 0.0, grad * (alpha * exp(x)), grad)


elu_forward, elu_backward = functions(__file__, elu_value, elu_gradient)


@kernel
def hardshrink_value(x, lambd):
    return tl.where((x >= -lambd) & (x <= lambd), 0.0, x)


@kernel
def hardshrink_gradient(grad, x, lambd):
    return tl.where((x >= -lambd) & (x <= lambd), 0.0, grad)


hardshrink_forward, hardshrink_backward = functions(__file__, hardshrink_value, hardshrink_gradient)


@kernel
def hardsigmoid_value(x):
    return tl.where(x < -3.0, 0.0, tl.where(x > 3.0, 6.0, x + 3.0)) / 6.0


@kernel
def hardsigmoid_gradient(grad, x):
    return tl.where((x > -3.0) & (x < 3.0), grad / 6.0, 0.0)


hardsigmoid_forward, hardsigmoid_backward = functions(__file__, hardsigmoid_value, hardsigmoid_gradient)


@kernel
def hardswish_value(x):
    return x * (tl.where(x < -3.0, 0.0, tl.where(x > 3.0, 6.0, x + 3.0)) / 6.0)


@kernel
def hardswish_gradient(grad, x):
    return tl.where(x <= -3.0, 0.0, tl.where(x < 3.0, grad * (x / 3.0 + 0.5), grad))


hardswish_forward, hardswish_backward = functions(__file__, hardswish_value, hardswish_gradient)


@kernel
def hardtanh_value(x, min_val, max_val):
    return tl.where(x < min_val, min_val, tl.where(x > max_val, max_val, x))


@kernel
def hardtanh_gradient(grad, x, min_val, max_val):
    return tl.where((x <= min_val) | (x >= max_val), 0.0, grad)


hardtanh_forward, hardtanh_backward = functions(__file__, hardtanh_value, hardtanh_gradient)


@kernel
def leaky_relu_value(x, negative_slope):
    return tl.where(x > 0.0, x, negative_slope * x)


@kernel
def leaky_relu_gradient(grad, x, negative_slope):
    return tl.where(x > 0.0, grad, negative_slope * grad)


leaky_relu_forward, leaky_relu_backward = functions(__file__, leaky_relu_value, leaky_relu_gradient)


@kernel
def logsigmoid_value(x):
    return tl.where(x < 0.0, x, 0.0) - log_one_more(exp(-tl.abs(x)))


@kernel
def logsigmoid_gradient(grad, x):
    return grad * sigmoid(-x)


logsigmoid_forward, logsigmoid_backward = functions(__file__, logsigmoid_value, logsigmoid_gradient)


@kernel
def mish_value(x):
    e = exp(-tl.abs(x))
    up = tl.where(x < 0.0, e * (e + 2.0), 1.0 + 2.0 * e)
    rest = tl.where(x < 0.0, 2.0, 2.0 * (e * e))
    all = up + rest
    return x * tl.div_rn(up, all)


@kernel
def mish_gradient(grad, x):
    e = exp(-tl.abs(x))
    up = tl.where(x < 0.0, e * (e + 2.0), 1.0 + 2.0 * e)
    rest = tl.where(x < 0.0, 2.0, 2.0 * (e * e))
    all = up + rest
    return grad * (tl.div_rn(up, all) + x * (sigmoid(x) * (tl.div_rn(rest, all) * tl.div_rn(up + all, all))))


mish_forward, mish_backward = functions(__file__, mish_value, mish_gradient)


@kernel
def quick_gelu_value(x):
    return x * sigmoid(1.702 * x)


@kernel
def quick_gelu_gradient(grad, x):
    return grad * (sigmoid(1.702 * x) + 1.702 * ((x * sigmoid(1.702 * x)) * sigmoid(-1.702 * x)))


quick_gelu_forward, quick_gelu_backward = functions(__file__, quick_gelu_value, quick_gelu_gradient)


@kernel
def relu6_value(x):
    return tl.where(x < 0.0, 0.0, tl.where(x > 6.0, 6.0, x))


@kernel
def relu6_gradient(grad, x):
    return tl.where((x <= 0.0) | (x >= 6.0), 0.0, grad)


relu6_forward, relu6_backward = functions(__file__, relu6_value, relu6_gradient)


@kernel
def selu_value(x):
    return tl.where(x > 0.0, 1.0507009873554805 * x, 1.7580993408473766 * exp_less_one(x))


@kernel
def selu_gradient(grad, x):
    return tl.where(x <= 0.0, grad * (1.7580993408473766 * exp(x)), grad * 1.0507009873554805)


selu_forward, selu_backward = functions(__file__, selu_value, selu_gradient)


@kernel
def sigmoid_value(x):
    return sigmoid(x)


@kernel
def sigmoid_gradient(grad, x):
    return grad * (sigmoid(x) * sigmoid(-x))


sigmoid_forward, sigmoid_backward = functions(__file__, sigmoid_value, sigmoid_gradient)


@kernel
def silu_value(x):
    return x * sigmoid(x)


@kernel
def silu_gradient(grad, x):
    return grad * (sigmoid(x) * (1.0 + x * sigmoid(-x)))


silu_forward, silu_backward = functions(__file__, silu_value, silu_gradient)


@kernel
def softplus_value(x, beta, threshold):
    b = x * beta
    return tl.where(b > threshold, x, tl.div_rn(tl.where(b > 0.0, b, 0.0) + log_one_more(exp(-tl.abs(b))), beta))


@kernel
def softplus_gradient(grad, x, beta, threshold):
    b = x * beta
    return tl.where(b > threshold, grad, grad * sigmoid(b))


softplus_forward, softplus_backward = functions(__file__, softplus_value, softplus_gradient)


@kernel
def softshrink_value(x, lambd):
    return tl.where(x > lambd, x - lambd, tl.where(x < -lambd, x + lambd, x * 0.0))


@kernel
def softshrink_gradient(grad, x, lambd):
    return tl.where((x >= -lambd) & (x <= lambd), 0.0, grad)


softshrink_forward, softshrink_backward = functions(__file__, softshrink_value, softshrink_gradient)


@kernel
def softsign_value(x):
    return tl.div_rn(x, 1.0 + tl.abs(x))


@kernel
def softsign_gradient(grad, x):
    return tl.div_rn(tl.div_rn(grad, 1.0 + tl.abs(x)), 1.0 + tl.abs(x))


softsign_forward, softsign_backward = functions(__file__, softsign_value, softsign_gradient)


@kernel
def tanh_value(x):
    return tanh(x)


@kernel
def tanh_gradient(grad, x):
    e = exp(-2.0 * tl.abs(x))
    return grad * tl.div_rn(4.0 * tl.div_rn(e, 1.0 + e), 1.0 + e)


tanh_forward, tanh_backward = functions(__file__, tanh_value, tanh_gradient)


@kernel
def tanhshrink_value(x):
    return x - tanh(x)


@kernel
def tanhshrink_gradient(grad, x):
    return grad * (tanh(x) * tanh(x))


tanhshrink_forward, tanhshrink_backward = functions(__file__, tanhshrink_value, tanhshrink_gradient)


@kernel
def threshold_value(x, threshold, value):
    return tl.where(x <= threshold, value, x)


@kernel
def threshold_gradient(grad, x, threshold, value):
    return tl.where(x <= threshold, 0.0, grad)


threshold_forward, threshold_backward = functions(__file__, threshold_value, threshold_gradient)
