"""softmax on the GPU: the functions that ``tile/lines.py`` puts into its kernels, and a kernel for long 16-bit rows."""

import functools

import torch
import triton
import triton.language as tl

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.tile.exp import LN2, LOG2E, LOWEST, exp_to_add
from kernelworks.tile.lines import Lines

CONFIGS = configs(__file__)


@triton.jit
def _scale(total):
    return 1.0 / total


@triton.jit
def _value(e, scale):
    return e * scale


@triton.jit
def _term(g, y):
    return y * g


@triton.jit
def _gradient(g, y, total):
    return y * (g - total)


@triton.jit
def _forward_packed(x, output, stride, N, BLOCK: tl.constexpr):
    """One long row of 16-bit elements, which stay as they came: half the registers, twice the rows under way."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + column, mask=column < N, other=float("-inf"))
    top = tl.max(v, 0).to(tl.float32)
    scale = 1.0 / tl.sum(exp_to_add(v.to(tl.float32) - top), 0)
    d = tl.maximum(v.to(tl.float32) - top, LOWEST, propagate_nan=tl.PropagateNan.ALL)
    t = d * LOG2E
    half = tl.exp2(0.5 * t)  # its square is subnormal where e^d is
    y = half * scale * half
    tl.store(
        output + row * N + column, tl.fma(y, tl.fma(t, -LN2, d), y), mask=column < N
    )  # corrected as in tile/exp.py


PACKED_FORWARD = Kernel(_forward_packed)


@functools.cache
def _packed(n: int, dtype: torch.dtype) -> Launch | None:
    """The launch for one row of n elements that stay in 16 bits, where that is the quicker one."""
    if dtype == torch.float32 or not 4096 < n <= 16384:
        return None
    return PACKED_FORWARD.at(BLOCK=triton.next_power_of_2(n), **CONFIGS.pick("forward_packed", N=n, dtype=dtype))


_LINES = Lines(
    __file__,
    {"OF_EXP": True, "OF": _scale, "VALUE": _value},
    {"TERM": _term, "GRADIENT": _gradient},
    packed=_packed,
)
forward, backward, prepare_forward = _LINES.forward, _LINES.backward, _LINES.prepare_forward
