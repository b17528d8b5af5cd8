"""What a fused kernel computes: values that are made of each other, each once.

A value belongs to every element of the iteration space, or to a whole row of it (what was reduced over the last
dimension, and what is made of that and of numbers alone). All arithmetic is that of float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["BOOLEAN", "ELEMENTS", "REDUCTIONS", "ROWS", "SUMS", "Expression", "Input", "Node", "Output"]

ELEMENTS, ROWS, SUMS = "ELEMENTS", "ROWS", "SUMS"  # where an output goes: see simd/fused.hpp
REDUCTIONS = ("row_sum", "row_max", "row_min")
BOOLEAN = frozenset(
    ["lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "not", "kept", "true"]
)  # values that are true or false
LEAVES = ("input", "number", "constant", "length", "kept")


@dataclass(frozen=True)
class Node:
    """``op`` of other values by their places, or of what ``operands`` say: an input, a number, a constant."""

    op: str
    operands: tuple[Any, ...] = ()

    @property
    def values(self) -> tuple[int, ...]:
        """The places of what it is made of."""
        return () if self.op in LEAVES else self.operands


@dataclass(frozen=True)
class Input:
    """A tensor: its dtype, its shape aligned with the iteration space."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Output:
    """A value that is written: its dtype, its shape and where it goes."""

    node: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    place: str


@dataclass
class Expression:
    """``shape`` is the iteration space. ``numbers`` and ``randoms`` count what is given at each call beside tensors."""

    shape: tuple[int, ...]
    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    numbers: int = 0
    randoms: int = 0
    random_shapes: list[tuple[int, ...]] = field(default_factory=list)
    _places: dict[Node, int] = field(default_factory=dict)

    def add(self, op: str, *operands: Any) -> int:
        """The place of a value, which is there once."""
        node = Node(op, operands)
        found = self._places.get(node)
        if found is None:
            found = self._places[node] = len(self.nodes)
            self.nodes.append(node)
        return found

    @property
    def by_rows(self) -> bool:
        return any(node.op in REDUCTIONS for node in self.nodes)

    @property
    def is_summed(self) -> bool:
        return any(output.place == SUMS for output in self.outputs)

    def used_nodes(self) -> list[bool]:
        """Of each value whether an output is made of it."""
        found = [False] * len(self.nodes)
        for output in self.outputs:
            found[output.node] = True
        for i in range(len(self.nodes) - 1, -1, -1):
            if found[i]:
                for k in self.nodes[i].values:
                    found[k] = True
        return found

    def row_inputs(self) -> set[int]:
        """Inputs with one element for each row, where the kernel goes by rows."""
        if not self.by_rows or not self.shape or self.shape[-1] == 1:
            return set()
        return {k for k, given in enumerate(self.inputs) if not given.shape or given.shape[-1] == 1}

    def row_values(self) -> list[bool]:
        """Of each value whether it is one for a whole row."""
        rows, found = self.row_inputs(), list[bool]()
        for node in self.nodes:
            if node.op == "input":
                found.append(node.operands[0] in rows)
            elif node.op in LEAVES:
                found.append(node.op != "kept")
            else:
                found.append(node.op in REDUCTIONS or all(found[k] for k in node.values))
        return found

    def stages(self) -> list[int]:
        """Of each value the pass over the row in which it is computed; a reduction's is known behind that pass."""
        rows, found = self.row_values(), list[int]()
        for i, node in enumerate(self.nodes):
            made = [found[k] + (self.nodes[k].op in REDUCTIONS) for k in node.values]
            found.append(max(made, default=0))
            assert rows[i] or node.op not in REDUCTIONS
        return found

    def without_unused(self) -> Expression:
        """The same without values that no output is made of; inputs, numbers and random streams stay."""
        used, places = self.used_nodes(), dict[int, int]()
        made = Expression(self.shape, self.inputs, numbers=self.numbers, randoms=self.randoms)
        for i, node in enumerate(self.nodes):
            if used[i]:
                operands = node.operands if node.op in LEAVES else tuple(places[k] for k in node.operands)
                places[i] = made.add(node.op, *operands)
        made.outputs = [Output(places[o.node], o.dtype, o.shape, o.place) for o in self.outputs]
        return made

    def walk(self, wanted: Sequence[int]) -> Iterator[int]:
        """The places that some values are made of, and they, in order."""
        seen, queue = set[int](), list(wanted)
        while queue:
            place = queue.pop()
            if place not in seen:
                seen.add(place)
                queue += self.nodes[place].values
        return iter(sorted(seen))
