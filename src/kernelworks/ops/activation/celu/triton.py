"""celu on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl

from kernelworks.build.triton import kernel
from kernelworks.tile.activation import exp_less_one, functions
from kernelworks.tile.exp import exp


@kernel
def value(x, alpha):
    return tl.where(x > 0.0, x, alpha * exp_less_one(x / alpha))


@kernel
def gradient(grad, x, alpha):
    return tl.where(x > 0.0, grad, grad * exp(x / alpha))


forward, backward = functions(__file__, value, gradient)
