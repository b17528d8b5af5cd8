"""threshold on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl

from kernelworks.build.triton import kernel
from kernelworks.tile.activation import functions


@kernel
def value(x, threshold, value):
    return tl.where(x <= threshold, value, x)


@kernel
def gradient(grad, x, threshold, value):
    return tl.where(x <= threshold, 0.0, grad)


forward, backward = functions(__file__, value, gradient)
