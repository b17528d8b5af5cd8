"""gelu_mul on the GPU."""

import triton.language as tl

from kernelworks.tile.functions import functions, kernel
from kernelworks.tile.gelu import gelu, gelu_both


@kernel
def none(gate, up, dtype: tl.constexpr):
    return gelu(gate, False, dtype != tl.float32, dtype == tl.bfloat16) * up


@kernel
def tanh(gate, up, dtype: tl.constexpr):
    return gelu(gate, True, dtype != tl.float32, dtype == tl.bfloat16) * up


@kernel
def none_slopes(grad, gate, up, dtype: tl.constexpr):
    value, slope = gelu_both(gate, False, dtype != tl.float32)
    return grad * up * slope, grad * value


@kernel
def tanh_slopes(grad, gate, up, dtype: tl.constexpr):
    value, slope = gelu_both(gate, True, dtype != tl.float32)
    return grad * up * slope, grad * value


forward, backward = functions(__file__, {"none": none, "tanh": tanh}, {"none": none_slopes, "tanh": tanh_slopes})
