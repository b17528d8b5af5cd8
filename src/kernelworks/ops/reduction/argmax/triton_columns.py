"""argmax down columns on the GPU: a thread goes down columns of its own, so that a warp reads neighbours in a row
however long rows are.

The kernel of lines side by side (``tile/reduction.py``) loads 16 bytes a thread. Where rows begin at no multiple of 16
bytes those are four loads, of which each touches all that the warp does. Here a thread's loads are of one element (of
two where elements are of 16 bits), AHEAD rows of them under way at once; threads never meet. Columns that are too few
to fill a GPU are cut into parts, whose states the second launch joins.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Configs, Kernel, configs, kernel
from kernelworks.contract.row_layout import Lines
from kernelworks.ops.reduction.argmax.triton import _gathered, _lanes, _met, _rank, _result
from kernelworks.templates.reduction import triton_forward
from kernelworks.tile.reduction import JOIN, _put
from kernelworks.tile.row_chunks import appended

NONE = -(2**31)  # a rank that is below all others
SHORTEST = 64  # rows of a part: less is more work to join than to read


@kernel
def _down(
    x, out, first, second, N, inner, outer_stride, stride, parts, length, blocks, lines,
    MET: tl.constexpr, RESULT: tl.constexpr, COLUMNS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    part = program // blocks % parts
    outer = program // blocks // parts
    column = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    there = column < inner
    begin = part * length
    count = (tl.minimum(begin + length, N) - begin).to(tl.int32)
    step = tl.cast(stride, tl.int64)
    at = x + outer * outer_stride + begin * step + column
    lanes = _lanes([COLUMNS])
    whole = count // AHEAD * AHEAD
    for row in tl.range(0, whole, AHEAD):
        rows = ()
        for k in tl.static_range(AHEAD):
            rows = appended(rows, tl.load(at + k * step, mask=there, other=0.0, eviction_policy="evict_first"))
        for k in tl.static_range(AHEAD):
            lanes = MET(lanes, rows[k], row + k)
        at += step * AHEAD
    for row in tl.range(whole, count):
        lanes = MET(lanes, tl.load(at, mask=there, other=0.0), row)
        at += step
    state = (_rank(lanes[0]), begin + lanes[1])
    _put(out, first, second, outer * inner + column, lines, part, state, RESULT, there)


DOWN = Kernel(_down)


class Columns:
    """Launches both kernels, with the configurations ``down`` and ``join`` of the kernel ``triton_columns``. ``met`` is
    the device function by which lanes meet elements."""

    def __init__(self, configs: Configs, met: Any) -> None:
        self.configs, self.met = configs, met

    def __call__(self, out: Tensor, x: Lines) -> None:
        """Writes the contiguous ``out``. There is at least one element to reduce, and a line."""
        settings = self.configs.pick("down", op_kernel="triton_columns", dtype=x.tensor.dtype)
        programs = settings.pop("PROGRAMS")
        columns = min(settings.pop("COLUMNS"), triton.next_power_of_2(x.inner))
        blocks, lines = triton.cdiv(x.inner, columns), x.outer * x.inner
        parts = max(1, min(triton.cdiv(programs, x.outer * blocks), x.n // SHORTEST))
        length = triton.cdiv(x.n, parts)
        parts = triton.cdiv(x.n, length)
        first = second = None
        if parts > 1:
            first, second = (
                torch.empty(lines * parts, dtype=kind, device=out.device) for kind in (torch.int32, torch.int64)
            )
        DOWN.at(MET=self.met, RESULT=_result, COLUMNS=columns, **settings)(
            (x.outer * blocks * parts, 1, 1), x.tensor, out, first, second, x.n, x.inner, x.outer_stride, x.stride,
            parts, length, blocks, lines,
        )  # fmt: skip
        if parts > 1:
            self._joined(out, first, second, lines, parts)

    def _joined(self, out: Tensor, first: Any, second: Any, lines: int, parts: int) -> None:
        settings = self.configs.pick("join", op_kernel="triton_columns")
        many = triton.next_power_of_2(parts)
        rows = min(max(settings.pop("TILE") // many, 1), triton.next_power_of_2(lines))
        join = JOIN.at(
            ROWS=rows, PARTS=many, EARLY=False, GATHERED=_gathered, RESULT=_result, NONE=NONE, **settings
        )  # fmt: skip
        join((triton.cdiv(lines, rows), 1, 1), out, first, second, lines, parts)


COLUMNS = Columns(configs(__file__), _met)
forward = triton_forward(COLUMNS, torch.int64)
