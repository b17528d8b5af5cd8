"""softsign on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl

from kernelworks.tile.functions import functions, kernel


@kernel
def value(x):
    return x / (1.0 + tl.abs(x))


@kernel
def gradient(grad, x):
    return grad / (1.0 + tl.abs(x)) / (1.0 + tl.abs(x))


forward, backward = functions(__file__, value, gradient)
