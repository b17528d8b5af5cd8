"""A tensor as the lines that a reduction runs along."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

__all__ = ["Lines", "lines", "lines_along"]


class Lines(NamedTuple):
    """Element i of line (o, c) lies ``o outer_stride + i stride + c`` elements behind the first of ``tensor``; lines
    are numbered as the elements of a contiguous result are. Where ``inner`` is 1, ``stride`` is 1."""

    tensor: Tensor
    outer: int
    n: int
    inner: int
    outer_stride: int
    stride: int


def lines(x: Tensor, dim: int | None, *, ordered: bool = True) -> Lines:
    """The lines of ``x`` along ``dim``, or along all dimensions with None; then, unless ``ordered``, the elements may
    come in the order in which they lie in memory. A view wherever strides allow it; otherwise one copy."""
    if dim is None:
        if not x.is_contiguous():
            # Dimensions of one element, whose stride says nothing, go first.
            order = sorted(range(x.dim()), key=lambda d: x.stride(d) if x.shape[d] > 1 else math.inf, reverse=True)
            turned = x.permute(order)
            x = turned if not ordered and turned.is_contiguous() else x.contiguous()
        n = x.numel()
        return Lines(x, 1, n, 1, n, 1)
    if not x.dim():
        return Lines(x, 1, 1, 1, 1, 1)
    if not x.is_contiguous():
        found = _strided(x, dim % x.dim())
        if found is not None:
            return found
        x = x.contiguous()
    shape = x.shape
    dim %= len(shape)
    n, inner = shape[dim], math.prod(shape[dim + 1 :])
    return Lines(x, math.prod(shape[:dim]), n, inner, n * inner, inner)


def lines_along(x: Tensor, dim: int) -> Lines:
    """The lines of ``x`` along ``dim``, ``outer`` all that is before it and ``inner`` all behind, so that the elements
    of a contiguous result have places too. A view wherever strides allow it; otherwise one copy."""
    if not x.dim():
        return Lines(x, 1, 1, 1, 1, 1)
    dim %= x.dim()
    n = x.shape[dim]
    if not x.is_contiguous():
        sizes = tuple(zip(x.shape, x.stride(), strict=True))
        outer, before = _as_one([d for d in sizes[:dim] if d[0] != 1])
        inner, after = _as_one([d for d in sizes[dim + 1 :] if d[0] != 1])
        if before is not None and after == 1 and (inner > 1 or x.stride(dim) == 1 or n == 1):
            return Lines(x, outer, n, inner, before, x.stride(dim) if inner > 1 else 1)
        x = x.contiguous()
    inner = math.prod(x.shape[dim + 1 :])
    return Lines(x, math.prod(x.shape[:dim]), n, inner, n * inner, inner)


def _strided(x: Tensor, dim: int) -> Lines | None:
    """The lines of a tensor whose strides say where they are; None where they do not."""
    n, step = x.shape[dim], x.stride(dim)
    others = [(x.shape[d], x.stride(d)) for d in range(x.dim()) if d != dim and x.shape[d] != 1]
    for split in range(len(others) + 1):  # as many lines side by side as can be
        outer, before = _as_one(others[:split])
        inner, after = _as_one(others[split:])
        if before is not None and after == 1 and (inner > 1 or step == 1 or n == 1):
            return Lines(x, outer, n, inner, before, step if inner > 1 else 1)
    return None


def _as_one(dims: Sequence[tuple[int, int]]) -> tuple[int, int | None]:
    """Dimensions, each a size and a stride, taken for one: how many elements, and their distance, None where it
    varies."""
    size, distance = 1, 1
    for n, stride in reversed(dims):
        if size == 1:
            distance = stride
        elif stride != size * distance:
            return size, None
        size *= n
    return size, distance
