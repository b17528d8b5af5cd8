"""Rewriting of nests before they are scheduled: dimensions split, reductions factored, operands packed, stages inlined.
Each gives the same values; only a factored sum has another order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kernelworks.search.schedule.nest import (
    Access,
    Buffer,
    Expr,
    Kernel,
    Stage,
    Strides,
    reads,
    rename_dims,
    substitute_expr,
)

__all__ = [
    "MOST_BUFFER",
    "Illegal",
    "factor_reduction",
    "inline_stage",
    "inner",
    "outer",
    "pack_operand",
    "rewrite_nest",
    "split_dim",
]

MOST_BUFFER = 1 << 28  # elements of what lies between stages


class Illegal(ValueError):
    """A schedule or a move that would change what is computed, or that cannot be printed; the text says why."""


def outer(dim: str) -> str:
    return f"{dim}o"


def inner(dim: str) -> str:
    return f"{dim}i"


def rewrite_nest(
    kernel: Kernel, splits: Sequence[tuple[str, int]], factors: Sequence[tuple[str, str]],
    packs: Sequence[tuple[str, int, tuple[str, ...]]], inlines: Sequence[str],
) -> Kernel:  # fmt: skip
    """In this order. Raises Illegal."""
    for dim, size in splits:
        kernel = split_dim(kernel, dim, size)
    for name, kept in factors:
        kernel = factor_reduction(kernel, name, kept)
    for name, place, dims in packs:
        kernel = pack_operand(kernel, name, place, dims)
    for name in inlines:
        kernel = inline_stage(kernel, name)
    return kernel


def split_dim(kernel: Kernel, dim: str, size: int) -> Kernel:
    """A dimension as two: ``size`` elements inside, the rest outside. Legal where nothing is left over."""
    whole = kernel.sizes.get(dim)
    if whole is None:
        raise Illegal(f"no dimension {dim}; the kernel has {', '.join(kernel.sizes)}")
    if not 1 < size < whole or whole % size:
        raise Illegal(f"{dim} has {whole} elements, which are no whole number of {size}")
    two = (outer(dim), inner(dim))
    if two[0] in kernel.sizes or two[1] in kernel.sizes:
        raise Illegal(f"{dim} is split already")

    def strides(said: Strides) -> Strides:
        return tuple(
            part for d, n in said for part in (((two[0], n * size), (two[1], n)) if d == dim else ((d, n),))
        )  # fmt: skip

    def dims(said: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(part for d in said for part in (two if d == dim else (d,)))

    stages = tuple(
        replace(
            s, dims=dims(s.dims), reduced=dims(s.reduced), value=rename_dims(s.value, strides),
            writes=replace(s.writes, strides=strides(s.writes.strides)),
        ) for s in kernel.stages
    )  # fmt: skip
    sizes = {d: n for d, n in kernel.sizes.items() if d != dim} | {two[0]: whole // size, two[1]: size}
    return replace(kernel, sizes=sizes, stages=stages)


def _contiguous(kernel: Kernel, name: str, dims: Sequence[str], *, kind: str = "between") -> tuple[Buffer, Access]:
    """A buffer of its own for these dimensions, the last innermost."""
    if name in kernel.buffers:
        raise Illegal(f"{name} is there already")
    shape = tuple(kernel.sizes[d] for d in dims)
    if math.prod(shape) > MOST_BUFFER:
        raise Illegal(f"{name} would have {math.prod(shape)} elements; up to {MOST_BUFFER} are kept")
    return Buffer(name, shape, kind), Access(name, contiguous(dims, shape))


def contiguous(dims: Sequence[str], shape: Sequence[int]) -> Strides:
    strides, step = list[tuple[str, int]](), 1
    for dim, size in zip(reversed(dims), reversed(shape), strict=True):
        strides.append((dim, step))
        step *= size
    return tuple(reversed(strides))


def _found(kernel: Kernel, name: str) -> tuple[int, Stage]:
    for number, stage in enumerate(kernel.stages):
        if stage.name == name:
            return number, stage
    raise Illegal(f"no stage {name}; the kernel has {', '.join(s.name for s in kernel.stages)}")


def factor_reduction(kernel: Kernel, name: str, kept: str) -> Kernel:
    """A reduction in two: parts for each element of one reduced dimension, and then over that. Legal for every monoid;
    what is summed is the same."""
    at, stage = _found(kernel, name)
    if kept not in stage.reduced or len(stage.reduced) < 2:
        raise Illegal(
            f"{name} reduces {', '.join(stage.reduced) or 'nothing'}: {kept} is none of two that it could keep"
        )
    buffer, place = _contiguous(kernel, f"{name}_part", (*stage.dims, kept))
    rest = tuple(d for d in stage.reduced if d != kept)
    part = Stage(buffer.name, (*stage.dims, kept), stage.value, place, rest, stage.monoid)
    whole = replace(stage, value=place, reduced=(kept,))
    return kernel.with_stages((*kernel.stages[:at], part, whole, *kernel.stages[at + 1 :]), buffer)


def pack_operand(kernel: Kernel, name: str, number: int, dims: tuple[str, ...]) -> Kernel:
    """An operand copied first, to lie in the order of ``dims``. Legal where those are all that it moves with."""
    at, stage = _found(kernel, name)
    operands = list(reads(stage.value))
    if not 0 <= number < len(operands):
        raise Illegal(f"{name} has {len(operands)} operands, no number {number}")
    operand = operands[number]
    if sorted(d for d, _ in operand.strides) != sorted(dims) or not dims:
        raise Illegal(
            f"operand {number} of {name} moves with {', '.join(d for d, _ in operand.strides)}, not {', '.join(dims)}"
        )
    if kernel.buffers[operand.buffer].dtype != "float32":
        raise Illegal(f"{operand.buffer} holds {kernel.buffers[operand.buffer].dtype}; float32 is packed")
    buffer, place = _contiguous(kernel, f"{name}_{operand.buffer}", dims)
    copy = Stage(buffer.name, dims, operand, place)
    value = substitute_expr(stage.value, lambda e: place if e == operand else None)
    stages = (*kernel.stages[:at], copy, replace(stage, value=value), *kernel.stages[at + 1 :])
    return kernel.with_stages(stages, buffer)


def inline_stage(kernel: Kernel, name: str) -> Kernel:
    """A stage without a reduction, computed wherever it is read. Legal where each of its readers has its dimensions."""
    at, stage = _found(kernel, name)
    buffer = kernel.buffers[name]
    if stage.monoid or buffer.kind != "between" or buffer.zeroed:
        raise Illegal(f"{name} {'reduces' if stage.monoid else 'is asked for' if not buffer.zeroed else 'pads'}")
    own = {n: d for d, n in stage.writes.strides}

    def there(part: Expr) -> Expr | None:
        if not isinstance(part, Access) or part.buffer != name:
            return None
        if part.offset != stage.writes.offset or any(n not in own for _, n in part.strides):
            raise Illegal(f"{name} is read in a way that its own dimensions do not say")
        if len({n for _, n in part.strides}) != len(part.strides):
            raise Illegal(f"{name} is read along two dimensions as along one")
        known = {own[n]: d for d, n in part.strides}
        if any(kernel.sizes[a] < kernel.sizes[b] for a, b in known.items()):
            raise Illegal(f"{name} is read beyond its own dimensions")
        return rename_dims(stage.value, lambda said: tuple((known[d], n) for d, n in said if d in known))

    stages = tuple(
        replace(s, value=substitute_expr(s.value, there)) for number, s in enumerate(kernel.stages) if number != at
    )  # fmt: skip
    return kernel.with_stages(stages, without=name)
