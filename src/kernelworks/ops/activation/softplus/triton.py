"""softplus on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

import triton.language as tl

from kernelworks.build.triton import kernel
from kernelworks.tile.activation import functions, log_one_more, sigmoid
from kernelworks.tile.exp import exp


@kernel
def value(x, beta, threshold):
    b = x * beta
    return tl.where(b > threshold, x, (tl.where(b > 0.0, b, 0.0) + log_one_more(exp(-tl.abs(b)))) / beta)


@kernel
def gradient(grad, x, beta, threshold):
    b = x * beta
    return tl.where(b > threshold, grad, grad * sigmoid(b))


forward, backward = functions(__file__, value, gradient)
