"""An expression as a kernel in Triton: a program takes a tile of rows and columns of the iteration space.

Dimensions but the last (of those that were merged) are the rows, the last is the columns. An expression with a
reduction has whole rows: in one tile, or in a loop over tiles of columns for each stage, in which values are computed
again from the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernelworks.fuse.expression import BOOLEAN, ELEMENTS, REDUCTIONS, ROWS, Expression
from kernelworks.fuse.functions import ELEMENT_FUNCTIONS

__all__ = ["FILES", "WORDS", "Layout", "triton_text"]

TYPES = {torch.float32: "tl.float32", torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16", torch.bool: "tl.int1"}
WORDS = ("seed_low", "seed_high", "offset_low", "offset_high", "below")  # of a stream of random bits
NEUTRAL_TEXTS = {"row_sum": "0.0", "row_max": 'float("-inf")', "row_min": 'float("inf")'}
REDUCTION_NAMES = {"row_sum": "row_sum", "row_max": "row_largest", "row_min": "row_smallest"}
TILE_FOLDER = Path(__file__).resolve().parent.parent / "tile"
# What a kernel is compiled of beside its text.
FILES = tuple(
    TILE_FOLDER / f"{name}.py"
    for name in ("activation", "exp", "exp2", "fused_functions", "gelu", "philox", "reciprocal")
)


@dataclass(frozen=True)
class Layout:
    """How operands lie, outputs first: of each for each dimension "0" where it is broadcast, "1" for a step of one
    element, "s" for a step that is given at each call."""

    steps: tuple[str, ...]

    @property
    def dims(self) -> int:
        return len(self.steps[0])


def triton_text(expression: Expression, layout: Layout, *, loops: bool) -> str:
    """The kernel ``fused``, which calls functions of ``tile/`` by name. ``loops``: rows are longer than a tile."""
    return "\n".join(_Printer(expression, layout, loops).lines()) + "\n"


def _number(value: float) -> str:
    text = repr(float(value)) if math.isfinite(value) else f'float("{value}")'
    return f"tl.full([1, 1], {text}, tl.float32)"


class _Printer:
    def __init__(self, expression: Expression, layout: Layout, loops: bool) -> None:
        self.expression, self.nodes, self.layout = expression, expression.nodes, layout
        self.rows, self.stage_of, self.used = expression.row_values(), expression.stages(), expression.used_nodes()
        self.outs = len(expression.outputs)
        self.loops = loops and expression.by_rows

    def _is_reduction(self, place: int) -> bool:
        return self.nodes[place].op in REDUCTIONS

    def _known(self, place: int) -> int:
        """The stage from which on a value is there."""
        return self.stage_of[place] + self._is_reduction(place)

    # ------------------------------------------------------------ head

    def lines(self) -> Iterator[str]:
        given = [*self._tensors(), *self._scalars(), "M", "N", *self._sizes(), *self._strides()]
        plain = [*self._words(), "M", *self._sizes()]
        named = ", ".join(f'"{name}"' for name in plain)
        yield f"@triton.jit(do_not_specialize=[{named}])"
        yield f"def fused({', '.join(given)}, ROWS: tl.constexpr, COLUMNS: tl.constexpr):"
        for line in self._body():
            yield f"    {line}"

    def _tensors(self) -> list[str]:
        return [f"q{k}" for k in range(self.outs)] + [f"p{k}" for k in range(len(self.expression.inputs))]

    def _words(self) -> list[str]:
        return [f"{word}{k}" for k in range(self.expression.randoms) for word in WORDS]

    def _scalars(self) -> list[str]:
        return [*(f"x{k}" for k in range(self.expression.numbers)), *self._words()]

    def _sizes(self) -> list[str]:
        return [f"n{d}" for d in range(1, self.layout.dims - 1)]

    def _strides(self) -> list[str]:
        """The steps that are given, by operand and dimension."""
        names = self._tensors()
        return [
            f"{names[k]}_{d}"
            for k, steps in enumerate(self.layout.steps)
            for d, step in enumerate(steps)
            if step == "s"
        ]

    # ------------------------------------------------------------ places in memory

    def _body(self) -> Iterator[str]:
        by_rows = self.expression.by_rows
        if by_rows:
            yield "row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]"
        else:
            yield "tiles = tl.cdiv(N, COLUMNS)"
            yield "row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]"
        yield "rows = row < M"
        rest = "row"
        for d in range(self.layout.dims - 2, 0, -1):
            yield f"i{d} = {rest} % n{d}"
            yield f"r{d} = {rest} // n{d}"
            rest = f"r{d}"
        if self.layout.dims > 1:
            yield f"i0 = {rest}"
        for name, steps in zip(self._tensors(), self.layout.steps, strict=True):
            moves = [f"i{d} * {name}_{d}" for d, step in enumerate(steps[:-1]) if step != "0"]
            yield f"{name}_row = {name} + {' + '.join(moves) if moves else '0 * row'}"
        if not by_rows:
            yield "first = (tl.program_id(0) % tiles).to(tl.int64) * COLUMNS"
            yield from self._columns()
            yield from self._elements(i for i in range(len(self.nodes)) if self.used[i])
            yield from self._stores(0)
        elif self.loops:
            yield from self._looped()
        else:
            yield "first = 0"
            yield from self._columns()
            for i in range(len(self.nodes)):
                if self._is_reduction(i):
                    reduced = REDUCTION_NAMES[self.nodes[i].op]
                    yield f"v{i} = {reduced}({self._as_tile(self.nodes[i].operands[0])}, inside)"
                elif self.used[i]:
                    yield from self._elements([i])
            yield from self._stores(None)
            yield from self._row_stores()

    def _columns(self) -> Iterator[str]:
        yield "column = tl.arange(0, COLUMNS)[None, :]"
        yield "inside = rows & (column < N - first)"
        if self.expression.randoms:
            yield "element = row * N + first + column"

    def _looped(self) -> Iterator[str]:
        last = max((self._known(i) for i in range(len(self.nodes)) if self.used[i]), default=0)
        yield from self._row_values(-1, 0)
        for stage in range(last + 1):
            reductions = [i for i in range(len(self.nodes)) if self._is_reduction(i) and self.stage_of[i] == stage]
            outputs = [o.node for o in self.expression.outputs if o.place == ELEMENTS and self._known(o.node) == stage]
            for i in reductions:
                kind = "tl.float64" if self.nodes[i].op == "row_sum" else "tl.float32"
                yield f"t{i} = tl.full([ROWS, 1], {NEUTRAL_TEXTS[self.nodes[i].op]}, {kind})"
            if reductions or outputs:
                yield "for first in range(0, N, COLUMNS):"
                for line in self._turn(stage, reductions, outputs):
                    yield f"    {line}"
            for i in reductions:
                yield f"v{i} = t{i}.to(tl.float32)"
            yield from self._row_values(stage, stage + 1)
        yield from self._row_stores()

    def _turn(self, stage: int, reductions: Sequence[int], outputs: Sequence[int]) -> Iterator[str]:
        yield from self._columns()
        wanted = [self.nodes[i].operands[0] for i in reductions] + list(outputs)
        places, queue = set[int](), list(wanted)
        while queue:
            place = queue.pop()
            if place not in places and not self.rows[place]:
                places.add(place)
                queue += self.nodes[place].values
        yield from self._elements(sorted(places))
        for i in reductions:
            op = self.nodes[i].op
            found = f"{REDUCTION_NAMES[op]}({self._as_tile(self.nodes[i].operands[0])}, inside)"
            join = {"row_sum": f"t{i} + {found}.to(tl.float64)", "row_max": f"larger(t{i}, {found})"}
            yield f"t{i} = {join.get(op, f'smaller(t{i}, {found})')}"
        yield from self._stores(stage)

    def _row_values(self, before: int, stage: int) -> Iterator[str]:
        """Values of a whole row that are known before a stage and were not before."""
        for i in range(len(self.nodes)):
            if self.rows[i] and self.used[i] and not self._is_reduction(i) and before < self.stage_of[i] <= stage:
                yield from self._elements([i])

    # ------------------------------------------------------------ values

    def _elements(self, places: Iterator[int] | Sequence[int]) -> Iterator[str]:
        return (f"v{i} = {self._text(i)}" for i in places)

    def _text(self, place: int) -> str:
        node = self.nodes[place]
        if node.op == "input":
            at, mask = self._pointer(self.outs + node.operands[0])
            return f"tl.load({at}, mask={mask}, other=0).to(tl.float32)"
        if node.op == "number":
            return f"tl.full([1, 1], x{node.operands[0]}, tl.float32)"
        if node.op == "constant":
            return _number(node.operands[0])
        if node.op == "length":
            return "tl.cast(N, tl.float32) + tl.zeros([1, 1], tl.float32)"
        if node.op == "kept":
            return f"is_kept(element, {', '.join(f'{word}{node.operands[0]}' for word in WORDS)})"
        return ELEMENT_FUNCTIONS[node.op].triton.format(*(f"v{k}" for k in node.operands))

    def _pointer(self, operand: int) -> tuple[str, str]:
        """Where a tile of an operand lies, and which of it is there."""
        name, step = self._tensors()[operand], self.layout.steps[operand][-1]
        if step == "0":
            return f"{name}_row", "rows"
        if step == "1":
            return f"{name}_row + first + column", "inside"
        return f"{name}_row + (first + column.to(tl.int64)) * {name}_{self.layout.dims - 1}", "inside"

    def _as_tile(self, place: int) -> str:
        return f"tl.broadcast_to({self._as_number(place)}, [ROWS, COLUMNS])"

    def _as_number(self, place: int) -> str:
        """A value as floats: true is 1."""
        return f"v{place}.to(tl.float32)" if self.nodes[place].op in BOOLEAN else f"v{place}"

    # ------------------------------------------------------------ results

    def _stores(self, stage: int | None) -> Iterator[str]:
        """Results with an element for each of the space: those of one stage, or all."""
        for k, output in enumerate(self.expression.outputs):
            if output.place == ELEMENTS and stage in (None, self._known(output.node)):
                at, mask = self._pointer(k)
                yield f"tl.store({at}, {self._stored(output.node, output.dtype, self._tile_of(k))}, mask={mask})"

    def _tile_of(self, operand: int) -> str:
        return "[ROWS, 1]" if self.layout.steps[operand][-1] == "0" else "[ROWS, COLUMNS]"

    def _stored(self, place: int, dtype: torch.dtype, shape: str) -> str:
        if dtype is torch.bool:
            made = f"v{place}" if self.nodes[place].op in BOOLEAN else f"(v{place} != 0.0)"
        else:
            made = f"{self._as_number(place)}.to({TYPES[dtype]})"
        return f"tl.broadcast_to({made}, {shape})"

    def _row_stores(self) -> Iterator[str]:
        for k, output in enumerate(self.expression.outputs):
            if output.place == ROWS:
                yield f"tl.store(q{k} + row, {self._stored(output.node, output.dtype, '[ROWS, 1]')}, mask=rows)"
