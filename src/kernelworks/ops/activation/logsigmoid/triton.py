"""logsigmoid on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl

from kernelworks.tile.activation import log_one_more, sigmoid
from kernelworks.tile.exp import exp
from kernelworks.tile.functions import functions, kernel


@kernel
def value(x):
    return tl.where(x < 0.0, x, 0.0) - log_one_more(exp(-tl.abs(x)))


@kernel
def gradient(grad, x):
    return grad * sigmoid(-x)


forward, backward = functions(__file__, value, gradient)
