"""leaky_relu on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl

from kernelworks.build.triton import kernel
from kernelworks.tile.activation import functions


@kernel
def value(x, negative_slope):
    return tl.where(x > 0.0, x, negative_slope * x)


@kernel
def gradient(grad, x, negative_slope):
    return tl.where(x > 0.0, grad, negative_slope * grad)


forward, backward = functions(__file__, value, gradient)
