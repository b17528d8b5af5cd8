"""The kernel of an expression for a GPU: Triton's, launched on tensors of any sizes and strides.

Two texts serve an expression whose tensors have the dimensions of a call: one for operands that lie in the order of
their dimensions, which are merged where they can be, and one for operands of any strides.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernelworks.build.triton import Kernel, Launch
from kernelworks.dispatch.generated_code import run_generated_code
from kernelworks.fuse.expression import ELEMENTS, ROWS, Expression
from kernelworks.fuse.triton_text import Layout, triton_text
from kernelworks.tile import activation, fused_functions, philox

__all__ = ["TritonFunction", "triton_function", "triton_texts"]

LONGEST_ROW = 8192  # of a tile that holds whole rows
TILE = 1024  # elements of a program, if a row has no more
LOOP_COLUMNS = 4096  # columns of a tile that goes along a row
MOST_GEOMETRIES = 256


# What the text of a kernel may name.
DEVICE_SCOPE: dict[str, Any] = {
    "__name__": "kernelworks.fuse.generated", "triton": triton, "tl": tl, "is_kept": philox.is_kept,
    "exp_less_one": activation.exp_less_one, "log_one_more": activation.log_one_more, "tanh": activation.tanh,
    **{name: value for name, value in vars(fused_functions).items() if isinstance(value, type(philox.is_kept))},
}  # fmt: skip


@dataclass(frozen=True)
class Geometry:
    """``rows``, ``columns`` of the iteration space, the sizes of its dimensions between, and each operand's strides."""

    layout: Layout
    rows: int
    columns: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def triton_texts(expression: Expression, *, loops: bool | None = None) -> str:
    """All that may serve calls of these dimensions. ``loops``: rows are longer than a tile, by default as they are."""
    shapes = [*(o.shape for o in expression.outputs), *(i.shape for i in expression.inputs)]
    loops = _loops(expression) if loops is None else loops
    orders = ([_dense(s) for s in shapes], [tuple(2 * n for n in _dense(s)) for s in shapes])  # of the second none is 1
    layouts = dict.fromkeys(geometry_of(expression, shapes, strides).layout for strides in orders)
    return "\n".join(triton_text(expression, layout, loops=loops) for layout in layouts)


def _loops(expression: Expression) -> bool:
    return expression.by_rows and expression.shape[-1] > LONGEST_ROW


_functions: dict[str, TritonFunction] = {}


def triton_function(expression: Expression) -> TritonFunction:
    """The kernel; one for all sizes that it serves."""
    text = triton_texts(expression)
    found = _functions.get(text)
    if found is None:
        found = _functions[text] = TritonFunction(expression, loops=_loops(expression))
    return found


class TritonFunction:
    """The kernel as a function of outputs, inputs, numbers and streams of random bits (seed, offset, threshold each).
    ``loops``: rows are longer than a tile."""

    def __init__(self, expression: Expression, *, loops: bool) -> None:
        self.expression, self.loops = expression, loops
        self.outs, self.tensors = len(expression.outputs), len(expression.outputs) + len(expression.inputs)
        self.kernel = functools.cache(self._kernel)
        self._launches: dict[Any, tuple[Launch, tuple[int, int, int], tuple[int, ...]]] = {}

    def _kernel(self, layout: Layout) -> Kernel:
        scope = dict(DEVICE_SCOPE)
        run_generated_code(triton_text(self.expression, layout, loops=self.loops), scope, "kernel of a fused function")
        return Kernel(scope["fused"])

    def __call__(self, *given: Any) -> None:
        tensors = given[: self.tensors]
        key = tuple((t.shape, t.stride()) for t in tensors)
        found = self._launches.get(key)
        if found is None:
            found = self._prepare(key)
        launch, grid, sizes = found
        end = self.tensors + self.expression.numbers
        numbers = [float(n) for n in given[self.tensors : end]]
        words = [word for i in range(end, len(given), 3) for word in _words(*given[i : i + 3])]
        launch(grid, *tensors, *numbers, *words, *sizes)

    def _prepare(self, key: Sequence[Any]) -> tuple[Launch, tuple[int, int, int], tuple[int, ...]]:
        shapes, strides = [tuple(shape) for shape, _ in key], [tuple(stride) for _, stride in key]
        found = geometry_of(self.expression, shapes, strides)
        rows, columns, warps = self._tile(found)
        launch = self.kernel(found.layout).at(ROWS=rows, COLUMNS=columns, num_warps=warps)
        programs = -(-found.rows // rows)
        if not self.expression.by_rows:
            programs *= -(-found.columns // columns)
        if len(self._launches) >= MOST_GEOMETRIES:
            self._launches.clear()
        made = launch, (programs, 1, 1), (found.rows, found.columns, *found.sizes, *found.strides)
        self._launches[tuple(key)] = made
        return made

    def _tile(self, geometry: Geometry) -> tuple[int, int, int]:
        """Rows and columns of a program, and its warps."""
        if self.loops:
            return 1, max(16, min(LOOP_COLUMNS, _power(geometry.columns) // 4)), 8
        columns = _power(geometry.columns)
        if not self.expression.by_rows:
            columns = min(columns, TILE)
        rows = min(_power(geometry.rows), max(1, TILE // columns))
        return rows, columns, 4 if rows * columns <= 2 * TILE else 8


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def _words(seed: int, offset: int, threshold: int) -> tuple[int, ...]:
    """A stream as integers of 32 bits."""
    halves = (seed, seed >> 32, offset, offset >> 32)
    return (*((h & 0xFFFFFFFF) - ((h & 0x80000000) << 1) for h in halves), threshold - 1)


# ---------------------------------------------------------------- the iteration space


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def geometry_of(
    expression: Expression, shapes: Sequence[tuple[int, ...]], strides: Sequence[tuple[int, ...]]
) -> Geometry:
    """Of operands, outputs first. Outputs that have one element for each row are contiguous."""
    places = [o.place for o in expression.outputs] + [ELEMENTS] * len(expression.inputs)
    space = tuple(torch.broadcast_shapes(*(s for s, place in zip(shapes, places, strict=True) if place != ROWS)))
    shapes = [space if place == ROWS else s for s, place in zip(shapes, places, strict=True)]
    strides = [_dense(space) if place == ROWS else s for s, place in zip(strides, places, strict=True)]
    if not expression.by_rows and not expression.randoms and _is_alike(space, shapes, strides):
        shapes = [(math.prod(s),) for s in shapes]
        strides, space = [(1,) for _ in shapes], (math.prod(space),)
    dense = all(_is_dense(shape, stride) for shape, stride in zip(shapes, strides, strict=True))
    dims = [d for d, n in enumerate(space) if n != 1 and not (expression.by_rows and d == len(space) - 1)]
    if expression.by_rows:
        dims.append(len(space) - 1)
    sizes = [space[d] for d in dims] or [1]
    aligned = [_aligned(shape, stride, len(space), dims) for shape, stride in zip(shapes, strides, strict=True)]
    if dense:
        sizes, aligned = _merged(sizes, aligned, keep_last=expression.by_rows)
    inner = len(sizes) - 1
    codes = tuple(
        "".join("0" if s is None else "1" if dense and d == inner and s == 1 else "s" for d, s in enumerate(steps))
        for steps in aligned
    )
    given = [
        s for steps, code in zip(aligned, codes, strict=True) for s, c in zip(steps, code, strict=True) if c == "s"
    ]
    rows = math.prod(sizes[:-1])
    return Geometry(Layout(codes), rows, sizes[-1], tuple(sizes[1:-1]), tuple(s or 0 for s in given))


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    return all(n == 1 or s == d for n, s, d in zip(shape, strides, _dense(shape), strict=True))


def _is_alike(space: tuple[int, ...], shapes: Sequence[tuple[int, ...]], strides: Sequence[tuple[int, ...]]) -> bool:
    """Whether all whole operands lie in one order in memory without gaps, and the others are single elements."""
    whole = [stride for shape, stride in zip(shapes, strides, strict=True) if shape == space]
    if any(shape != space and math.prod(shape) != 1 for shape in shapes) or not whole:
        return False
    if any(stride != whole[0] for stride in whole):
        return False
    expected = 1
    for s, n in sorted((s, n) for s, n in zip(whole[0], space, strict=True) if n != 1):
        if s != expected:
            return False
        expected *= n
    return True


def _aligned(shape: Sequence[int], strides: Sequence[int], rank: int, dims: Sequence[int]) -> list[int | None]:
    """The strides of an operand along the dimensions that are left, None where it is broadcast."""
    ahead = rank - len(shape)
    found: list[int | None] = [strides[d - ahead] if d >= ahead and shape[d - ahead] != 1 else None for d in dims]
    return found or [None]


def _merged(
    sizes: list[int], operands: list[list[int | None]], *, keep_last: bool
) -> tuple[list[int], list[list[int | None]]]:
    """Neighbouring dimensions as one, where every operand goes on from one to the next."""
    made, steps = [sizes[0]], [[o[0]] for o in operands]
    for d in range(1, len(sizes)):
        last = keep_last and d == len(sizes) - 1
        joins = not last and all(
            (o[d] is None) == (s[-1] is None) and (o[d] is None or s[-1] == o[d] * sizes[d])  # type: ignore[operator]
            for o, s in zip(operands, steps, strict=True)
        )
        if joins:
            made[-1] *= sizes[d]
            for o, s in zip(operands, steps, strict=True):
                s[-1] = o[d]
        else:
            made.append(sizes[d])
            for o, s in zip(operands, steps, strict=True):
                s.append(o[d])
    return made, steps
