"""cumsum on the GPU: the functions that ``tile/scan.py`` puts into its kernels."""

import triton.language as tl

from kernelworks.build.triton import configs, kernel
from kernelworks.templates.scan import triton_backward, triton_forward
from kernelworks.tile.scan import Scan


@kernel
def _join(before, after):
    return before + after


@kernel
def _scan(v, axis: tl.constexpr, BACK: tl.constexpr):
    return tl.cumsum(v, axis, reverse=BACK)


@kernel
def _total(v, axis: tl.constexpr):
    return tl.sum(v, axis)


CUMSUM = Scan(configs(__file__), join=_join, scan=_scan, total=_total, none=0.0)
forward = triton_forward(CUMSUM)
backward = triton_backward(CUMSUM)
