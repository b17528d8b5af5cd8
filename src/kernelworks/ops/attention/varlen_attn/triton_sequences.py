"""Which sequence a tile is of, found on the device."""

import triton
import triton.language as tl

SCAN = tl.constexpr(128)  # sequences that are looked at together


@triton.jit
def sequence_of(ends, N, unit, ROWS: tl.constexpr):
    """The sequence that the ``unit``-th tile of ROWS tokens is of, the tiles of those before it, and its own; N where
    there are not so many tiles."""
    sequence, before, own = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    total = tl.full([], 0, tl.int32)
    for start in tl.range(0, N, SCAN):
        number = start + tl.arange(0, SCAN)
        first = tl.load(ends + number, mask=number < N, other=0)
        end = tl.load(ends + number + 1, mask=number < N, other=0)
        tiles = tl.cdiv(tl.maximum(end - first, 0), ROWS).to(tl.int32)
        behind = total + tl.cumsum(tiles, 0)
        passed = (behind <= unit) & (number < N)
        sequence += tl.sum(passed.to(tl.int32), 0)
        before += tl.sum(tl.where(passed, tiles, 0), 0)
        own += tl.sum(tl.where((behind > unit) & (behind - tiles <= unit), tiles, 0), 0)
        total += tl.sum(tiles, 0)
    return sequence, before, own


@triton.jit
def ends_of(ends, sequence, tokens):
    """A sequence's first token, in 64 bits, and its length: within the tokens that there are."""
    first = tl.minimum(tl.maximum(tl.load(ends + sequence).to(tl.int32), 0), tokens)
    end = tl.minimum(tl.maximum(tl.load(ends + sequence + 1).to(tl.int32), first), tokens)
    return first.to(tl.int64), end - first
