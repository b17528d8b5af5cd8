"""silu_mul on the GPU."""

import triton.language as tl

from kernelworks.tile.exp2 import exp2_gradual
from kernelworks.tile.functions import functions, kernel
from kernelworks.tile.reciprocal import reciprocal

LOG2_E = tl.constexpr(1.4426950408889634)


@kernel
def value(gate, up):
    # Where e^-gate overflows, the result is the 0 that float32 has for it.
    return gate / (1.0 + tl.exp2(gate * -LOG2_E)) * up


@kernel
def slopes(grad, gate, up):
    # Both sigmoids from e^-|gate|, which neither overflows nor cancels.
    e = exp2_gradual(tl.abs(gate) * -LOG2_E)
    r = reciprocal(1.0 + e)
    s = e * r
    over, under = tl.where(gate < 0.0, s, r), tl.where(gate < 0.0, r, s)
    return grad * up * (over + over * under * gate), grad * (gate * over)


forward, backward = functions(__file__, value, slopes)
