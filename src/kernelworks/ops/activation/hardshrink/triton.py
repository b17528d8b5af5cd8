"""hardshrink on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl

from kernelworks.build.triton import kernel
from kernelworks.tile.activation import functions


@kernel
def value(x, lambd):
    return tl.where((x >= -lambd) & (x <= lambd), 0.0, x)


@kernel
def gradient(grad, x, lambd):
    return tl.where((x >= -lambd) & (x <= lambd), 0.0, grad)


forward, backward = functions(__file__, value, gradient)
