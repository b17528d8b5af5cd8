"""mish on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl

from kernelworks.tile.exp import exp
from kernelworks.tile.functions import functions, kernel


@kernel
def value(x):
    e = exp(-tl.abs(x))
    up = tl.where(x < 0.0, e * (e + 2.0), 1.0 + 2.0 * e)
    rest = tl.where(x < 0.0, 2.0, 2.0 * (e * e))
    all = up + rest
    return x * (up / all)


@kernel
def gradient(grad, x):
    e = exp(-tl.abs(x))
    up = tl.where(x < 0.0, e * (e + 2.0), 1.0 + 2.0 * e)
    rest = tl.where(x < 0.0, 2.0, 2.0 * (e * e))
    all = up + rest
    s = tl.where(x < 0.0, e, 1.0) / (1.0 + e)
    return grad * (up / all + x * (s * ((rest / all) * ((up + all) / all))))


forward, backward = functions(__file__, value, gradient)
