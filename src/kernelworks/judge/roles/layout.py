"""Where the tensors of a hand-over lie in the memory that the supervisor shares with a process: places that are drawn,
with a band of poison round each, and the strides that a caller may hand over."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernelworks.judge.process.ipc import Spot

__all__ = ["BAND", "LAYOUTS", "POISON", "LaidCall", "contiguous_strides", "drawn_places", "span"]

BAND = 256  # bytes on either side of each tensor
POISON = 0xFF  # of every byte: NaN in every floating dtype, -1 in every integer

TensorSizes = tuple[tuple[int, ...], tuple[int, ...], int, str]  # shape, strides, elements before the first, dtype


@dataclass
class LaidCall:
    """Where one call's tensors lie. Answers have a place on a device alone: on a CPU they are read where they are."""

    inputs: list[Spot]
    outs: list[Spot]


def span(spot: Spot) -> int:
    """Bytes from the first element to behind the last."""
    _, shape, strides, dtype = spot
    steps = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
    return int(steps * getattr(torch, dtype).itemsize)


def drawn_places(
    wanted: Sequence[Sequence[TensorSizes]], step: int, draw: random.Random
) -> tuple[int, list[list[Spot]]]:
    """Bytes of memory, at least, and a place in it for every tensor of every call, each a multiple of ``step`` away
    from the start but for the elements before its first."""
    each = [(i, k, one) for i, of in enumerate(wanted) for k, one in enumerate(of)]
    band = -(-2 * BAND // step) * step
    flat: dict[tuple[int, int], Spot] = {}
    sizes: dict[tuple[int, int], int] = {}
    for i, k, (shape, strides, off, dtype) in each:
        flat[i, k] = (off * getattr(torch, dtype).itemsize, shape, strides, dtype)
        sizes[i, k] = -(-(flat[i, k][0] + span(flat[i, k])) // step) * step + band
    total = sum(sizes.values())
    memory = 2 * total + (1 << 16)
    spare = (memory - total - step) // step
    cuts = sorted(draw.randrange(spare) for _ in each)
    draw.shuffle(each)
    at, spots = 0, dict[tuple[int, int], Spot]()
    for cut, before, (i, k, _) in zip(cuts, [0, *cuts], each, strict=False):
        at += (cut - before) * step
        spots[i, k] = (at + band // 2 + flat[i, k][0], *flat[i, k][1:])
        at += sizes[i, k]
    return memory, [[spots[i, k] for k in range(len(of))] for i, of in enumerate(wanted)]


# ---------------------------------------------------------------- strides


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape))):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def _wide_rows(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """As a slice of a wider tensor has them."""
    wide = contiguous_strides((*shape[:-1], shape[-1] + 5)) if len(shape) > 1 else contiguous_strides(shape)
    return wide, 0


def _columns_first(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """As a transposed tensor has them."""
    if len(shape) < 2:
        return contiguous_strides(shape), 0
    swapped = contiguous_strides((*shape[:-2], shape[-1], shape[-2]))
    return (*swapped[:-2], swapped[-1], swapped[-2]), 0


def _off_by_one(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Contiguous, from the second element of a storage on: no vector of it is aligned."""
    return contiguous_strides(shape), 1


# What else a caller may hand over -> strides, and elements before the first.
LAYOUTS = {"rows of a wider tensor": _wide_rows, "columns first": _columns_first, "an odd address": _off_by_one}
