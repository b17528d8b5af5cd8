"""relu on the GPU: NaN is let through, by the gradient too."""

import triton.language as tl

from kernelworks.tile.functions import functions, kernel


@kernel
def value(x):
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@kernel
def slope(grad, x):
    return tl.where(x <= 0.0, 0.0, grad)


forward, backward = functions(__file__, value, slope)
