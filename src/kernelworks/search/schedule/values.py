"""What a traced value is on its way into a nest: elements that lie somewhere, or an expression that nobody has
computed; and which of their axes are one dimension."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelworks.search.schedule.nest import (
    Access,
    Apply,
    Buffer,
    Expr,
    Kernel,
    Number,
    Stage,
    Strides,
    reads,
    rename_dims,
)
from kernelworks.search.schedule.rewrite import contiguous

__all__ = ["Builder", "Lazy", "NotDerivable", "Place", "Value"]


class NotDerivable(Exception):
    """A problem that no nest is derived from; the text names the op, or what else it is."""


@dataclass(frozen=True)
class Place:
    """A tensor in a buffer. ``meta`` has its shape, strides and offset there, and no elements."""

    buffer: str
    meta: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.meta.shape)


@dataclass(frozen=True)
class Lazy:
    """``axes``: for each axis its dimension; None where it has one element, or where the expression is the same all
    along it. One that ``decides`` is a boolean."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    value: Expr
    decides: bool = False


Value = Place | Lazy | float


class Builder:
    """Collects stages, and finds out which axes of different tensors are the same dimension."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.parents: dict[str, str] = {}
        self.together: list[set[str]] = []  # dimensions that must stay apart
        self.buffers: dict[str, Buffer] = {}
        self.dims: dict[str, list[tuple[str, int, int]]] = {}  # buffer -> dimension, stride, size
        self.stages: list[Stage] = []

    # ------------------------------------------------------------ dimensions

    def new_dim(self, size: int) -> str:
        name = f"d{len(self.sizes)}"
        self.sizes[name] = size
        return name

    def root(self, dim: str) -> str:
        while dim in self.parents:
            dim = self.parents[dim]
        return dim

    def unify(self, a: str, b: str, beside: Sequence[str | None] = ()) -> bool:
        """Whether two dimensions are one from now on: not where a stage has both."""
        a, b = self.root(a), self.root(b)
        if a == b:
            return True
        if self.sizes[a] != self.sizes[b]:
            return False
        for those in (*self.together, {d for d in beside if d}):
            roots = {self.root(d) for d in those}
            if a in roots and b in roots:
                return False
        self.parents[b] = a
        return True

    def suggest_axes(self, place: Place) -> list[str | None]:
        """A dimension for each axis: that along which its buffer was written, else one of its own."""
        found: list[str | None] = []
        for size, stride in zip(place.meta.shape, place.meta.stride(), strict=True):
            if size == 1:
                found.append(None)
                continue
            known = (d for d, s, n in self.dims[place.buffer] if (s, n) == (stride, size))
            name = next(known, None)
            taken = {self.root(d) for d in found if d}
            found.append(self.new_dim(size) if name is None or self.root(name) in taken else self.root(name))
        return found

    # ------------------------------------------------------------ buffers and stages

    def buffer(self, name: str, shape: Sequence[int], kind: str, **more: str | bool) -> Place:
        if name in self.buffers:
            name = next(f"{name}_{n}" for n in itertools.count(1) if f"{name}_{n}" not in self.buffers)
        meta = torch.empty(tuple(shape), device="meta")
        self.buffers[name] = Buffer(name, tuple(shape), kind, **more)  # type: ignore[arg-type]
        self.dims[name] = []
        if kind in ("input", "weight"):
            for size, stride in zip(meta.shape, meta.stride(), strict=True):
                if size > 1:
                    self.dims[name].append((self.new_dim(size), stride, size))
            self.together.append({d for d, *_ in self.dims[name]})
        return Place(name, meta)

    def stage(
        self, name: str, shape: Sequence[int], dims: Sequence[str], value: Expr, reduced: Sequence[str] = (),
        monoid: str = "",
    ) -> Place:  # fmt: skip
        """A stage that writes a buffer of its own; ``dims``: the axes of ``shape`` that have more than one element."""
        place = self.buffer(name, shape, "between")
        self.together.append({*dims, *reduced})
        writes = Access(place.buffer, contiguous(dims, [self.sizes[d] for d in dims]))
        self.dims[place.buffer] = [(d, n, self.sizes[d]) for d, n in writes.strides]
        self.stages.append(Stage(place.buffer, tuple(dims), value, writes, tuple(reduced), monoid))
        return place

    def pad_place(self, name: str, source: Place, low: Sequence[int], shape: Sequence[int]) -> Place:
        """A copy with zeros around it: what no stage writes stays zero."""
        place = self.buffer(name, shape, "between", zeroed=True)
        axes = self.suggest_axes(source)
        steps = place.meta.stride()
        offset = sum(n * s for n, s in zip(low, steps, strict=True))
        strides = tuple((d, s) for d, s in zip(axes, steps, strict=True) if d)
        dims = tuple(d for d, _ in strides)
        self.together.append(set(dims))
        self.dims[place.buffer] = [(d, n, self.sizes[d]) for d, n in strides]
        self.stages.append(Stage(place.buffer, dims, self.read(source, axes), Access(place.buffer, strides, offset)))
        return place

    def read(self, place: Place, axes: Sequence[str | None]) -> Access:
        """An access whose last axes are these."""
        known = list(axes)[len(axes) - len(place.shape) :]
        strides = tuple(
            (d, s) for d, s, n in zip(known, place.meta.stride(), place.shape, strict=True) if d and s and n > 1
        )  # fmt: skip
        return Access(place.buffer, strides, int(place.meta.storage_offset()))

    def materialize(self, value: Value, name: str) -> Place:
        """In memory, computed first where nobody has."""
        if isinstance(value, Place):
            return value
        if not isinstance(value, Lazy):
            value = Lazy((), (), Number(float(value)))
        axes = [self.new_dim(n) if n > 1 and d is None else d for d, n in zip(value.axes, value.shape, strict=True)]
        expr = value.value
        if value.decides:
            expr = Apply("select", (expr, Number(1.0), Number(0.0)))
        return self.stage(name, value.shape, [d for d in axes if d], expr)

    def lazy(self, value: Value) -> Lazy:
        if isinstance(value, Lazy):
            return value
        if isinstance(value, Place):
            axes = self.suggest_axes(value)
            self.together.append({d for d in axes if d})
            return Lazy(value.shape, tuple(axes), self._in(value, axes), self._decides(value))
        return Lazy((), (), Number(float(value)))

    def align_operands(
        self, shape: Sequence[int], operands: Sequence[Value], name: str
    ) -> tuple[list[str | None], list[Expr]]:  # fmt: skip
        """Dimensions for the axes of a result, and each operand as an expression in them."""
        names: list[str | None] = [None] * len(shape)
        resolved: list[Value] = list(operands)
        for at, value in sorted(enumerate(operands), key=lambda o: not isinstance(o[1], Lazy)):
            if isinstance(value, Lazy) and not self._joined(names, value.axes, apart=False):
                resolved[at] = value = self.materialize(value, name)
            if isinstance(value, Place):
                self._joined(names, self.suggest_axes(value), apart=True)
        self.together.append({d for d in names if d})
        return names, [self._in(value, names) for value in resolved]

    def _joined(self, names: list[str | None], axes: Sequence[str | None], *, apart: bool) -> bool:
        """Takes an operand's dimensions for a result's. What is ``apart`` can be read along others."""
        first = len(names) - len(axes)
        for at, dim in enumerate(axes, first):
            if dim is None:
                continue
            known = names[at]
            if known is None:
                taken = {self.root(d) for d in names if d}
                if self.root(dim) not in taken:
                    names[at] = dim
                elif apart:
                    names[at] = self.new_dim(self.sizes[dim])
                else:
                    return False
            elif not self.unify(known, dim, names) and not apart:
                return False
        return True

    def _in(self, value: Value, names: Sequence[str | None]) -> Expr:
        if isinstance(value, Place):
            read = self.read(value, names)
            return Apply("not_equal", (read, Number(0.0))) if self._decides(value) else read
        return value.value if isinstance(value, Lazy) else Number(float(value))

    def _decides(self, place: Place) -> bool:
        return self.buffers[place.buffer].dtype == "bool"

    # ------------------------------------------------------------ the end

    def kernel(self, returned: Sequence[Place], weights: dict[str, tuple[tuple[int, ...], str, bool]]) -> Kernel:
        """With what no answer needs left out, and dimensions that have one letter each."""
        for place in returned:
            buffer = self.buffers[place.buffer]
            self.buffers[place.buffer] = Buffer(buffer.name, buffer.shape, "output")
        needed = {p.buffer for p in returned}
        stages = list[Stage]()
        for stage in reversed(self.stages):
            if stage.name in needed:
                needed |= {r.buffer for r in reads(stage.value)}
                stages.insert(0, stage)
        letters = iter([*"ijklmnpqrs", *(f"d{n}_" for n in range(200))])
        names: dict[str, str] = {}
        for stage in stages:
            for dim in (*stage.dims, *stage.reduced):
                if self.root(dim) not in names:
                    names[self.root(dim)] = next(letters)

        def called(said: Strides) -> Strides:
            return tuple((names[self.root(d)], n) for d, n in said)

        def done(stage: Stage) -> Stage:
            dims, reduced = (tuple(names[self.root(d)] for d in part) for part in (stage.dims, stage.reduced))
            writes = rename_dims(stage.writes, called)
            assert isinstance(writes, Access)
            return Stage(stage.name, dims, rename_dims(stage.value, called), writes, reduced, stage.monoid)

        return Kernel(
            {name: self.sizes[root] for root, name in names.items()},
            {n: b for n, b in self.buffers.items() if n in needed},
            tuple(done(s) for s in stages),
            tuple(
                (p.buffer, p.shape, tuple(p.meta.stride()), int(p.meta.storage_offset())) for p in returned
            ),
            weights,
        )  # fmt: skip
