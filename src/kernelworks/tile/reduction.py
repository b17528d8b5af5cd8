"""Reductions of [outer, n, inner] along n, of any kind: which program takes what, and in which order.

A kind of reduction is four device functions on states, tuples of one or two tensors:

    PIECE(v, number, inside, first, axis)   the state of each line of a tile v [.., ..] whose lines run along ``axis``;
                                            ``number`` counts from the element ``first`` of the line
    REDUCED(state, axis)                    of a tile of states, the earlier ones first, the state of each line
    JOINED(before, after)                   of two states
    RESULT(state)                           what is written

Where lines are too few to fill a GPU they are cut into parts, by the shape alone; a second launch joins their states.
No result depends on which program came first.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Configs, Kernel, Launch, kernel
from kernelworks.lines import Lines

FILLING = 1024  # programs that keep a GPU busy (eight on each of 132 multiprocessors); fewer, and lines are cut
PART = 8192  # elements that a part has at least
MOST_PARTS = 1024


@kernel
def _put(out, first, second, line, part, parts, state, RESULT: tl.constexpr, inside):
    """The result of whole lines, or the state of a part of them."""
    if first is None:
        tl.store(out + line, RESULT(state), mask=inside)
    else:
        tl.store(first + line * parts + part, state[0], mask=inside)
        if second is not None:
            tl.store(second + line * parts + part, state[1], mask=inside)


@kernel
def _along(
    x, out, first, second, M, N, stride, parts, length,
    PIECE: tl.constexpr, JOINED: tl.constexpr, RESULT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Lines of unit stride."""
    program = tl.program_id(0).to(tl.int64)
    part = program % parts
    line = program // parts * ROWS + tl.arange(0, ROWS)
    begin = part * length
    end = tl.minimum(begin + length, N)
    number = tl.arange(0, BLOCK)[None, :]
    at = x + line[:, None] * stride + number
    inside = (line < M)[:, None] & (number < end - begin)
    state = PIECE(tl.load(at + begin, mask=inside, other=0.0), number, inside, begin, 1)
    for piece in range(begin + BLOCK, end, BLOCK):
        inside = (line < M)[:, None] & (number < end - piece)
        state = JOINED(state, PIECE(tl.load(at + piece, mask=inside, other=0.0), number, inside, piece, 1))
    _put(out, first, second, line, part, parts, state, RESULT, line < M)


@kernel
def _down(
    x, out, first, second, N, inner, outer_stride, stride, parts, length, blocks,
    PIECE: tl.constexpr, JOINED: tl.constexpr, RESULT: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Lines side by side."""
    program = tl.program_id(0).to(tl.int64)
    part = program // blocks % parts
    outer = program // blocks // parts
    column = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    begin = part * length
    end = tl.minimum(begin + length, N)
    number = tl.arange(0, BLOCK)[:, None]
    at = x + outer * outer_stride + number.to(tl.int64) * stride + column[None, :]
    inside = (number < end - begin) & (column < inner)[None, :]
    state = PIECE(tl.load(at + begin * stride, mask=inside, other=0.0), number, inside, begin, 0)
    for piece in range(begin + BLOCK, end, BLOCK):
        inside = (number < end - piece) & (column < inner)[None, :]
        state = JOINED(state, PIECE(tl.load(at + piece * stride, mask=inside, other=0.0), number, inside, piece, 0))
    _put(out, first, second, outer * inner + column, part, parts, state, RESULT, column < inner)


@kernel
def _join(
    out, first, second, M, parts,
    REDUCED: tl.constexpr, RESULT: tl.constexpr, NOTHING: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The states of the parts of each line, joined. NOTHING is the first of a state that changes no other."""
    line = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    part = tl.arange(0, PARTS)[None, :]
    at = line[:, None] * parts + part
    inside = (line < M)[:, None] & (part < parts)
    own = tl.load(first + at, mask=inside, other=NOTHING)
    if second is None:
        tl.store(out + line, RESULT(REDUCED((own,), 1)), mask=line < M)
    else:
        tl.store(out + line, RESULT(REDUCED((own, tl.load(second + at, mask=inside, other=0)), 1)), mask=line < M)


ALONG, DOWN, JOIN = Kernel(_along), Kernel(_down), Kernel(_join)


class Reduction:
    """Launches one kind of reduction. ``states`` are the dtypes of its state, ``nothing`` the first of one that changes
    no other. The kernels' configurations are ``along`` (by N), ``down`` and ``join``."""

    def __init__(
        self, configs: Configs, *, piece: Any, reduced: Any, joined: Any, result: Any,
        states: tuple[torch.dtype, ...], nothing: float,
    ) -> None:  # fmt: skip
        self.configs, self.states, self.nothing = configs, states, nothing
        self.reduced, self.result = reduced, result
        self.kind = {"PIECE": piece, "JOINED": joined, "RESULT": result}

    def __call__(self, out: Tensor, x: Lines) -> None:
        """Writes the contiguous ``out``. There is at least one element to reduce, and a line."""
        if x.inner == 1:
            self._along(out, x)
        else:
            self._down(out, x)

    def _along(self, out: Tensor, x: Lines) -> None:
        settings = self.configs.pick("along", N=x.n, dtype=x.tensor.dtype)
        most = settings.pop("BLOCK")
        block = min(most, triton.next_power_of_2(x.n))
        rows = settings.pop("ROWS") * (most // block)
        programs = triton.cdiv(x.outer, rows)
        parts, length = _parts(x.n, block, programs, 1)
        launch = ALONG.at(ROWS=rows, BLOCK=block, **self.kind, **settings)
        self._launched(
            out, x, parts, lambda first, second: launch(
                (programs * parts, 1, 1), x.tensor, out, first, second, x.outer, x.n, x.outer_stride, parts, length
            ),
        )  # fmt: skip

    def _down(self, out: Tensor, x: Lines) -> None:
        settings = self.configs.pick("down", N=x.n, inner=x.inner, dtype=x.tensor.dtype)
        tile, least = settings.pop("TILE"), settings.pop("COLUMNS")
        height, columns = triton.next_power_of_2(x.n), triton.next_power_of_2(x.inner)
        columns = min(columns, max(least, tile // height))
        height = min(height, max(tile // columns, 1))
        blocks = triton.cdiv(x.inner, columns)
        parts, length = _parts(x.n, height, x.outer * blocks, columns)
        launch = DOWN.at(BLOCK=height, COLUMNS=columns, **self.kind, **settings)
        self._launched(
            out, x, parts, lambda first, second: launch(
                (x.outer * blocks * parts, 1, 1), x.tensor, out, first, second, x.n, x.inner, x.outer_stride, x.stride,
                parts, length, blocks,
            ),
        )  # fmt: skip

    def _launched(self, out: Tensor, x: Lines, parts: int, launch: Callable[[Any, Any], None]) -> None:
        if parts == 1:
            return launch(None, None)
        count = x.outer * x.inner
        states = [torch.empty(count * parts, dtype=dtype, device=out.device) for dtype in self.states]
        first, second = (*states, None)[:2]
        launch(first, second)
        settings = self.configs.pick("join")
        rows = min(settings.pop("ROWS"), triton.next_power_of_2(count))
        join: Launch = JOIN.at(
            REDUCED=self.reduced, RESULT=self.result, NOTHING=self.nothing, ROWS=rows,
            PARTS=triton.next_power_of_2(parts), **settings,
        )  # fmt: skip
        join((triton.cdiv(count, rows), 1, 1), out, first, second, count, parts)
        return None


def _parts(n: int, block: int, programs: int, width: int) -> tuple[int, int]:
    """How many parts lines of ``n`` are cut into, and the elements of a part, a multiple of a ``block`` of them.
    ``programs`` would do the work uncut, each on ``width`` lines."""
    wanted = min(MOST_PARTS, triton.cdiv(FILLING, programs), triton.cdiv(n * width, PART))
    length = triton.cdiv(triton.cdiv(n, wanted), block) * block
    return triton.cdiv(n, length), length
