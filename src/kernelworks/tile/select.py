"""The first elements of each line in an order, by Triton: rows in registers, longer ones tile by tile, or in parts.

An element becomes a candidate, as in ``simd/select.hpp``: its key above its place, both turned so that the first in the
order asked for is the largest integer, and no two are equal. 32 bits are enough for a number of 16 and a place below
2^16. A few are taken one after the other; more by a bitonic network.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Configs, Kernel, interpreting, kernel
from kernelworks.contract.row_layout import Lines

__all__ = ["Selection"]

ONE_BY_ONE = 8  # so many are taken one after the other
INTERPRETED = 16  # elements of a line of which the network is interpreted, too: it takes seconds, a round none
PART = 8192  # elements that a part of a line has at least


@kernel
def _candidates(v, place, inside, TURNED: tl.constexpr, NARROW: tl.constexpr):
    """Candidates of elements; what is not inside comes after all."""
    number = v.to(tl.float32)
    if NARROW:
        bits = v.to(tl.int16, bitcast=True).to(tl.int32)
        bits = tl.where(bits == -(2**15), 0, bits)
        key = tl.where(number == number, bits ^ ((bits >> 15) & 0x7FFF), 0x7FFF)
        own = ((~key if TURNED else key) << 16) | (0xFFFF - place)
        return tl.where(inside, own, -(2**31))
    else:
        bits = number.to(tl.int32, bitcast=True)
        bits = tl.where(bits == -(2**31), 0, bits)
        key = tl.where(number == number, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)
        own = ((~key if TURNED else key).to(tl.int64) << 32) | (0xFFFFFFFF - place.to(tl.int64))
        return tl.where(inside, own, -(2**63))


@kernel
def _place(candidate, NARROW: tl.constexpr):
    return (0xFFFF - (candidate & 0xFFFF)) if NARROW else (0xFFFFFFFF - (candidate & 0xFFFFFFFF))


@kernel
def _first(c, K: tl.constexpr, ROUNDS: tl.constexpr):
    """The first K of each row of candidates in order, K a power of 2; no more than ROUNDS of them where that is not
    0."""
    if ROUNDS > 0:
        least: tl.constexpr = -(2**31) if c.dtype == tl.int32 else -(2**63)
        taken = tl.full([c.shape[0], K], least, c.dtype)
        number = tl.arange(0, K)[None, :]
        for j in tl.static_range(ROUNDS):
            top = tl.max(c, 1)[:, None]
            taken = tl.where(number == j, top, taken)
            if j + 1 < ROUNDS:
                c = tl.where(c == top, least, c)
        return taken
    else:
        return tl.topk(c, K)


@kernel
def _merged(best, more, K: tl.constexpr, ROUNDS: tl.constexpr):
    both = tl.reshape(tl.join(best, more), [best.shape[0], 2 * K])
    return _first(both, K, ROUNDS)


@kernel
def _put(values, indices, x, line, k, beside, start, stride, c, inside, K: tl.constexpr, NARROW: tl.constexpr):
    """Writes the elements that candidates name: those of x, with all their bits."""
    number = tl.arange(0, K)[None, :]
    place = _place(c, NARROW).to(tl.int64)
    mask = inside & (number < k)
    at = line // beside * k * beside + line % beside + number.to(tl.int64) * beside
    tl.store(values + at, tl.load(x + start + place * stride, mask=mask, other=0.0), mask=mask)
    tl.store(indices + at, place, mask=mask)


@kernel
def _rows(
    x, values, indices, lines, N, k, inner, outer_stride, stride, beside,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr, ROUNDS: tl.constexpr, TURNED: tl.constexpr,
    NARROW: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    start = line // inner * outer_stride + line % inner
    place = tl.arange(0, BLOCK)[None, :]
    inside = (line < lines) & (place < N)
    v = tl.load(x + start + place.to(tl.int64) * stride, mask=inside, other=0.0)
    c = _candidates(v, place, inside, TURNED, NARROW)
    _put(values, indices, x, line, k, beside, start, stride, _first(c, K, ROUNDS), line < lines, K, NARROW)


@kernel
def _long(
    x, values, indices, firsts, N, k, inner, outer_stride, stride, beside, parts, length,
    BLOCK: tl.constexpr, K: tl.constexpr, ROUNDS: tl.constexpr, TURNED: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """A line, or a part of one, whose first candidates then go to ``firsts``."""
    program = tl.program_id(0).to(tl.int64)
    line, part = program // parts, program % parts
    start = line // inner * outer_stride + line % inner
    begin = part * length
    end = tl.minimum(begin + length, N)
    first = begin + tl.arange(0, BLOCK)[None, :]
    v = tl.load(x + start + first * stride, mask=first < end, other=0.0)
    best = _first(_candidates(v, first, first < end, TURNED, NARROW), K, ROUNDS)
    for offset in range(begin + BLOCK, end, BLOCK):
        place = offset + tl.arange(0, BLOCK)[None, :]
        v = tl.load(x + start + place * stride, mask=place < end, other=0.0)
        c = _candidates(v, place, place < end, TURNED, NARROW)
        if tl.max(c) > tl.min(best):  # else none of them is among the first
            best = _merged(best, _first(c, K, ROUNDS), K, ROUNDS)
    if firsts is None:
        _put(values, indices, x, line + tl.zeros([1, 1], tl.int64), k, beside, start, stride, best, True, K, NARROW)
    else:
        tl.store(firsts + program * K + tl.arange(0, K)[None, :], best)


@kernel
def _join(
    x, values, indices, firsts, k, inner, outer_stride, stride, beside, count,
    BLOCK: tl.constexpr, K: tl.constexpr, ROUNDS: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """The first of all parts of a line, ``count`` candidates."""
    line = tl.program_id(0).to(tl.int64)
    least: tl.constexpr = -(2**31) if NARROW else -(2**63)
    place = tl.arange(0, BLOCK)[None, :]
    best = _first(tl.load(firsts + line * count + place, mask=place < count, other=least), K, ROUNDS)
    for offset in range(BLOCK, count, BLOCK):
        c = tl.load(firsts + line * count + offset + place, mask=offset + place < count, other=least)
        best = _merged(best, _first(c, K, ROUNDS), K, ROUNDS)
    start = line // inner * outer_stride + line % inner
    _put(values, indices, x, line + tl.zeros([1, 1], tl.int64), k, beside, start, stride, best, True, K, NARROW)


ROWS, LONG, JOIN = Kernel(_rows), Kernel(_long), Kernel(_join)


class Selection:
    """Launches a selection, with the configurations ``rows`` (by N and K), ``long`` and ``join``. Lines of up to
    ``longest`` elements stay in registers."""

    def __init__(self, configs: Configs, longest: int) -> None:
        self.configs, self.longest = configs, longest

    def __call__(
        self, values: Tensor, indices: Tensor, x: Lines, beside: int, count: int, largest: bool, in_order: bool
    ) -> None:
        """Writes the contiguous results, of at least one element; ``beside`` lines lie side by side in them. What is
        written is in order, whether asked for or not."""
        width = _power(count)
        narrow = x.tensor.itemsize == 2 and x.n < 2**16
        kind: dict[str, Any] = {
            "K": width, "ROUNDS": count if self._one_by_one(x.n, count) else 0, "TURNED": not largest, "NARROW": narrow,
        }  # fmt: skip
        where = (x.inner, x.outer_stride, x.stride, beside)
        lines = x.outer * x.inner
        if x.n <= self.longest:
            settings = self.configs.pick("rows", N=x.n, K=count, dtype=x.tensor.dtype)
            rows = min(settings.pop("ROWS"), _power(lines))
            launch = ROWS.at(ROWS=rows, BLOCK=_power(x.n), **kind, **settings)
            launch((triton.cdiv(lines, rows), 1, 1), x.tensor, values, indices, lines, x.n, count, *where)
            return
        settings = self.configs.pick("long", N=x.n, K=count, dtype=x.tensor.dtype)
        programs, block = settings.pop("PROGRAMS"), max(settings.pop("BLOCK"), width)
        parts = max(1, min(triton.cdiv(programs, lines), x.n // max(PART, 2 * block)))
        length = triton.cdiv(triton.cdiv(x.n, parts), block) * block
        parts = triton.cdiv(x.n, length)
        firsts = None
        if parts > 1:
            dtype = torch.int32 if narrow else torch.int64
            firsts = torch.empty(lines * parts * width, dtype=dtype, device=values.device)
        launch = LONG.at(BLOCK=block, **kind, **settings)
        launch((lines * parts, 1, 1), x.tensor, values, indices, firsts, x.n, count, *where, parts, length)
        if firsts is not None:
            settings = self.configs.pick("join", K=count)
            block = min(_power(parts * width), max(settings.pop("BLOCK"), width))
            kind.pop("TURNED")
            join = JOIN.at(BLOCK=block, **kind, **settings)
            join((lines, 1, 1), x.tensor, values, indices, firsts, count, *where, parts * width)

    @staticmethod
    def _one_by_one(n: int, count: int) -> bool:
        return count <= ONE_BY_ONE or (interpreting() and n != INTERPRETED)


def _power(n: int) -> int:
    return int(triton.next_power_of_2(n))
