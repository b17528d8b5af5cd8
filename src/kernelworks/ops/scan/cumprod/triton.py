"""cumprod on the GPU: the functions that ``tile/scan.py`` puts into its kernels."""

import triton.language as tl

from kernelworks.build.triton import configs, kernel
from kernelworks.templates.scan import triton_backward, triton_forward
from kernelworks.tile.scan import Scan


@kernel
def _join(before, after):
    return before * after


@kernel
def _scan(v, axis: tl.constexpr, BACK: tl.constexpr):
    return tl.cumprod(v, axis, reverse=BACK)


@kernel
def _total(v, axis: tl.constexpr):
    return tl.reduce(v, axis, _join)


@kernel
def _along(before, x):
    return x


@kernel
def _across(before, x):
    return before


CUMPROD = Scan(configs(__file__), join=_join, scan=_scan, total=_total, none=1.0, slopes=(_along, _across))
forward = triton_forward(CUMPROD)
backward = triton_backward(CUMPROD)
