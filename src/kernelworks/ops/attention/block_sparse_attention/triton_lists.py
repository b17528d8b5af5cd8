"""The blocks that are seen, as lists: of each row of blocks the columns in it, ascending, and how many."""

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch

__all__ = ["Lists", "lists_of"]


FAR = tl.constexpr(0x7FFF)
NUMBERS = ("b_b", "b_h", "b_row", "b_column", "H", "rows", "columns")  # one build serves all


@triton.jit(do_not_specialize=NUMBERS)
def _gather(
    blocks, counts, lists, b_b, b_h, b_row, b_column, H, rows, columns, AHEAD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One row's list. ``AHEAD``: causal leaves the columns up to the row's own (-1), those from it on (1), all (0)."""
    row, mask = tl.program_id(0) % rows, (tl.program_id(0) // rows).to(tl.int64)
    at = blocks + mask // H * b_b + mask % H * b_h + row.to(tl.int64) * b_row
    to = lists + tl.program_id(0).to(tl.int64) * columns
    found = tl.full([], 0, tl.int32)
    for start in tl.range(0, columns, WIDTH):
        column = start + tl.arange(0, WIDTH)
        seen = tl.load(at + column.to(tl.int64) * b_column, mask=column < columns, other=0) != 0
        if AHEAD < 0:
            seen = seen & (column <= row)
        if AHEAD > 0:
            seen = seen & (column >= row)
        one = seen.to(tl.int32)
        tl.store(to + found + tl.cumsum(one, 0) - 1, column, mask=seen)
        found += tl.sum(one, 0)
    tl.store(counts + tl.program_id(0), found)


@triton.jit(do_not_specialize=("rows", "columns"))
def _rank(counts, lists, order, drawn, rows, columns, WIDTH: tl.constexpr):
    """The rows of one mask by the lengths of their lists, the longest first, each with its length and last column;
    an empty list as one of a column far behind all. ``drawn`` becomes 0."""
    parts = tl.cdiv(rows, WIDTH)
    mask = (tl.program_id(0) // parts).to(tl.int64)
    row = tl.program_id(0) % parts * WIDTH + tl.arange(0, WIDTH)
    own = tl.load(counts + mask * rows + row, mask=row < rows, other=0)
    rank = tl.zeros([WIDTH], tl.int32)
    for start in tl.range(0, rows, 32):
        other = start + tl.arange(0, 32)
        count = tl.load(counts + mask * rows + other, mask=other < rows, other=-1)
        ahead = count[None, :] > own[:, None]
        ahead = ahead | ((count[None, :] == own[:, None]) & (other[None, :] < row[:, None]))
        rank += tl.sum(ahead.to(tl.int32), 1)
    last = tl.load(lists + (mask * rows + row) * columns + own - 1, mask=(row < rows) & (own > 0), other=FAR)
    to = order + 2 * (mask * rows + rank)
    tl.store(to, row, mask=row < rows)
    tl.store(to + 1, last * 65536 + tl.maximum(own, 1), mask=row < rows)
    if tl.program_id(0) == 0:
        tl.store(drawn, 0)


GATHER, RANK = Kernel(_gather), Kernel(_rank)
WIDTH = 128


@functools.cache
def _launches(ahead: int) -> tuple[Launch, Launch]:
    return GATHER.at(AHEAD=ahead, WIDTH=WIDTH, num_warps=1), RANK.at(WIDTH=WIDTH, num_warps=8)


@dataclass(frozen=True)
class Lists:
    """``lists`` [masks, rows, columns], behind which one more number may be read; ``counts`` of what is in each, and
    ``order`` [masks, rows, 2]: the rows from the longest list on, and beside each its length and, from bit 16 on, its
    last column. ``drawn`` is a 0. Strides count rows: from a batch's mask to the next one's, and from a head's."""

    lists: Tensor
    counts: Tensor
    order: Tensor
    drawn: Tensor
    of_batch: int
    of_head: int


def lists_of(block_mask: Tensor, is_causal: bool, *, of_keys: bool = False) -> Lists:
    """Of each block of queries the blocks of keys that it sees; ``of_keys``: of each block of keys those seeing it."""
    blocks = block_mask.mT if of_keys else block_mask
    batch, heads, rows, columns = blocks.shape
    masks = batch * heads
    sizes = [-(-n // 4) * 4 for n in (masks * rows, 2 * masks * rows, 1, masks * rows * columns + 1)]  # of 16 bytes
    found = torch.empty(sum(sizes), dtype=torch.int32, device=blocks.device)
    counts, order, drawn, lists = found.split(sizes)
    gather, rank = _launches((1 if of_keys else -1) if is_causal else 0)
    gather((masks * rows, 1, 1), blocks, counts, lists, *blocks.stride(), heads, rows, columns)
    rank((masks * -(-rows // WIDTH), 1, 1), counts, lists, order, drawn, rows, columns)
    return Lists(lists, counts, order, drawn, heads * rows if batch > 1 else 0, rows if heads > 1 else 0)
