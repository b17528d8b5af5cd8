"""hardtanh on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl

from kernelworks.build.triton import kernel
from kernelworks.tile.activation import functions


@kernel
def value(x, min_val, max_val):
    return tl.where(x < min_val, min_val, tl.where(x > max_val, max_val, x))


@kernel
def gradient(grad, x, min_val, max_val):
    return tl.where((x <= min_val) | (x >= max_val), 0.0, grad)


forward, backward = functions(__file__, value, gradient)
