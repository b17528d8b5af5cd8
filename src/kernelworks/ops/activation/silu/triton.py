"""silu on the GPU. Written by `make docs` from ops/activation/table.py: changes are lost."""

from kernelworks.tile.activation import sigmoid
from kernelworks.tile.functions import functions, kernel


@kernel
def value(x):
    return x * sigmoid(x)


@kernel
def gradient(grad, x):
    return grad * (sigmoid(x) * (1.0 + x * sigmoid(-x)))


forward, backward = functions(__file__, value, gradient)
