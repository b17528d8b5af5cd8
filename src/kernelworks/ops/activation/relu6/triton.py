"""relu6 on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl

from kernelworks.tile.functions import functions, kernel


@kernel
def value(x):
    return tl.where(x < 0.0, 0.0, tl.where(x > 6.0, 6.0, x))


@kernel
def gradient(grad, x):
    return tl.where((x <= 0.0) | (x >= 6.0), 0.0, grad)


forward, backward = functions(__file__, value, gradient)
