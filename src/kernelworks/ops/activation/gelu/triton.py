"""gelu on the GPU. In 16 bits it takes shorter ways, which README.md counts."""

import triton.language as tl

from kernelworks.tile.functions import functions, kernel
from kernelworks.tile.gelu import gelu, gelu_both


@kernel
def none(x, dtype: tl.constexpr):
    return gelu(x, False, dtype != tl.float32, dtype == tl.bfloat16)


@kernel
def tanh(x, dtype: tl.constexpr):
    return gelu(x, True, dtype != tl.float32, dtype == tl.bfloat16)


@kernel
def none_slope(grad, x, dtype: tl.constexpr):
    return grad * gelu_both(x, False, dtype != tl.float32)[1]


@kernel
def tanh_slope(grad, x, dtype: tl.constexpr):
    return grad * gelu_both(x, True, dtype != tl.float32)[1]


forward, backward = functions(__file__, {"none": none, "tanh": tanh}, {"none": none_slope, "tanh": tanh_slope})
