"""logcumsumexp on the GPU: the functions that ``tile/scan.py`` puts into its kernels."""

import triton.language as tl

from kernelworks.build.triton import configs, kernel
from kernelworks.templates.scan import triton_backward, triton_forward
from kernelworks.tile.scan import Scan


@kernel
def _join(before, after):
    """NaN is the lower one, or both. Of two that are equal, infinities among them, there is no difference."""
    above = before > after
    high = tl.where(above, before, after)
    low = tl.where(above, after, before)
    return tl.where(high == low, high + 0.6931471805599453, high + tl.log(1.0 + tl.exp(low - high)))


@kernel
def _scan(v, axis: tl.constexpr, BACK: tl.constexpr):
    """Lines whose numbers are near their largest are running sums of exponentials; others are joined pair by pair."""
    most = tl.max(v, axis, keep_dims=True)
    near = (most - v <= 16.0) | (v == float("-inf"))
    if tl.min(tl.min(near.to(tl.int32), 1), 0) > 0:
        top = tl.where(most == float("-inf"), 0.0, most)
        found = top + tl.log(tl.cumsum(tl.exp(v - top), axis, reverse=BACK))
    else:
        found = tl.associative_scan(v, axis, _join, reverse=BACK)
    return found


@kernel
def _total(v, axis: tl.constexpr):
    most = tl.max(v, axis, keep_dims=True)
    top = tl.where(tl.abs(most) == float("inf"), 0.0, most)
    return tl.max(top, axis) + tl.log(tl.sum(tl.exp(v - top), axis))


@kernel
def _along(before, x):
    return 1.0 / (1.0 + tl.exp(x - before))


@kernel
def _across(before, x):
    return 1.0 / (1.0 + tl.exp(before - x))


LOGCUMSUMEXP = Scan(
    configs(__file__), join=_join, scan=_scan, total=_total, none=float("-inf"), slopes=(_along, _across)
)
forward = triton_forward(LOGCUMSUMEXP)
backward = triton_backward(LOGCUMSUMEXP)
