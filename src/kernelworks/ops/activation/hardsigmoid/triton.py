"""hardsigmoid on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl

from kernelworks.tile.functions import functions, kernel


@kernel
def value(x):
    return tl.where(x < -3.0, 0.0, tl.where(x > 3.0, 6.0, x + 3.0)) / 6.0


@kernel
def gradient(grad, x):
    return tl.where((x > -3.0) & (x < 3.0), grad / 6.0, 0.0)


forward, backward = functions(__file__, value, gradient)
