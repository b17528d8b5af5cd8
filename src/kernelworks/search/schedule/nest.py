"""Kernels as loop nests: statements over named dimensions, whose accesses are affine in them. What is computed, not
how: that is a ``Schedule``.

A ``Stage`` writes one buffer. Over its ``dims`` it writes an element each; over ``reduced`` it gathers with a monoid.
Sizes are known. Every buffer is plain memory, and an access is an offset and a stride for each dimension that moves it,
so views, transposes, expanded and padded tensors are accesses like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

__all__ = [
    "COSTS",
    "IDENTITY",
    "Access",
    "Apply",
    "Buffer",
    "Expr",
    "Index",
    "Kernel",
    "Number",
    "Stage",
    "Strides",
    "cost",
    "kernel_as_json",
    "kernel_from_json",
    "reads",
    "rename_dims",
    "substitute_expr",
]  # fmt: skip

Strides = tuple[tuple[str, int], ...]  # dimension -> elements that one step of it is worth; those of 0 are left out


@dataclass(frozen=True)
class Access:
    buffer: str
    strides: Strides
    offset: int = 0

    def stride(self, dim: str) -> int:
        return dict(self.strides).get(dim, 0)


@dataclass(frozen=True)
class Number:
    value: float


@dataclass(frozen=True)
class Index:
    """The place in a dimension, as a number."""

    strides: Strides
    offset: int = 0


@dataclass(frozen=True)
class Apply:
    function: str
    operands: tuple[Expr, ...]


Expr = Access | Number | Index | Apply

# Function -> roughly how many vector instructions an element of it takes; a move's author asks what is worth computing
# twice. Every name is one that ``arithmetic`` can print.
COSTS = {
    **dict.fromkeys(("add", "sub", "mul", "neg", "abs", "relu", "square"), 1),
    **dict.fromkeys(("max", "min", "less", "less_equal", "equal", "not_equal", "select", "and", "or", "not"), 1),
    **dict.fromkeys(("div", "sqrt", "rsqrt", "reciprocal", "floor"), 8),
    **dict.fromkeys(("exp", "sigmoid", "tanh", "erf", "log"), 24),
    **dict.fromkeys(("expm1", "log1p", "sin", "cos", "pow"), 200),
}
IDENTITY = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}


@dataclass(frozen=True)
class Stage:
    """``name`` is the buffer that it writes, at ``writes``. ``monoid`` is "" where nothing is reduced."""

    name: str
    dims: tuple[str, ...]
    value: Expr
    writes: Access
    reduced: tuple[str, ...] = ()
    monoid: str = ""


@dataclass(frozen=True)
class Buffer:
    """``kind``: "input", "weight", "output", "between". One that is ``zeroed`` holds zeros where no stage writes."""

    name: str
    shape: tuple[int, ...]
    kind: str
    dtype: str = "float32"
    zeroed: bool = False
    source: str = ""  # of a weight, its name in the model; of an input, its place

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True)
class Kernel:
    """Stages in an order in which each finds what it reads. ``returned``: for each answer its buffer, shape, strides
    and offset; ``weights``: all that the model has, each with its shape, dtype and whether it is trained."""

    sizes: Mapping[str, int]
    buffers: Mapping[str, Buffer]
    stages: tuple[Stage, ...]
    returned: tuple[tuple[str, tuple[int, ...], tuple[int, ...], int], ...] = ()
    weights: Mapping[str, tuple[tuple[int, ...], str, bool]] = field(default_factory=dict)

    def stage(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def readers(self, name: str) -> list[Stage]:
        return [s for s in self.stages if any(r.buffer == name for r in reads(s.value))]

    def with_stages(self, stages: tuple[Stage, ...], *more: Buffer, without: str = "") -> Kernel:
        buffers = {n: b for n, b in self.buffers.items() if n != without} | {b.name: b for b in more}
        return replace(self, stages=stages, buffers=buffers)


def reads(expr: Expr) -> Iterator[Access]:
    """In the order in which they stand."""
    if isinstance(expr, Access):
        yield expr
    elif isinstance(expr, Apply):
        for operand in expr.operands:
            yield from reads(operand)


def substitute_expr(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with those parts replaced for which ``change`` has another."""
    other = change(expr)
    if other is not None:
        return other
    if isinstance(expr, Apply):
        return Apply(expr.function, tuple(substitute_expr(o, change) for o in expr.operands))
    return expr


def rename_dims(expr: Expr, how: Callable[[Strides], Strides]) -> Expr:
    """With other strides in every access and index."""

    def change(part: Expr) -> Expr | None:
        if isinstance(part, (Access, Index)):
            return replace(part, strides=how(part.strides))
        return None

    return substitute_expr(expr, change)


def cost(expr: Expr) -> int:
    """Vector instructions for an element, loads left out."""
    return COSTS[expr.function] + sum(cost(o) for o in expr.operands) if isinstance(expr, Apply) else 0


# ---------------------------------------------------------------- JSON


def kernel_as_json(kernel: Kernel) -> dict[str, Any]:
    return {
        "sizes": dict(kernel.sizes),
        "buffers": [asdict(b) for b in kernel.buffers.values()],
        "stages": [
            {
                "name": s.name, "dims": s.dims, "reduced": s.reduced, "monoid": s.monoid, "value": _said(s.value),
                "writes": _said(s.writes),
            } for s in kernel.stages
        ],
        "returned": kernel.returned,
        "weights": dict(kernel.weights),
    }  # fmt: skip


def kernel_from_json(said: Mapping[str, Any]) -> Kernel:
    buffers = [Buffer(**(b | {"shape": tuple(b["shape"])})) for b in said["buffers"]]
    stages = []
    for s in said["stages"]:
        writes = _heard(s["writes"])
        assert isinstance(writes, Access)
        stages.append(Stage(s["name"], tuple(s["dims"]), _heard(s["value"]), writes, tuple(s["reduced"]), s["monoid"]))
    return Kernel(
        said["sizes"], {b.name: b for b in buffers}, tuple(stages),
        tuple((name, tuple(shape), tuple(strides), offset) for name, shape, strides, offset in said["returned"]),
        {name: (tuple(shape), dtype, trained) for name, (shape, dtype, trained) in said["weights"].items()},
    )  # fmt: skip


def _said(expr: Expr) -> list[Any]:
    match expr:
        case Access(buffer, strides, offset):
            return ["read", buffer, [list(s) for s in strides], offset]
        case Index(strides, offset):
            return ["index", [list(s) for s in strides], offset]
        case Number(value):
            return ["number", repr(value)]  # infinities are no JSON
        case Apply(function, operands):
            return ["apply", function, *map(_said, operands)]


def _heard(said: Any) -> Expr:
    kind, *rest = said
    if kind == "number":
        return Number(float(rest[0]))
    if kind == "apply":
        if rest[0] not in COSTS:
            raise ValueError(f"a nest applies {', '.join(COSTS)}, got {rest[0]!r}")
        return Apply(rest[0], tuple(map(_heard, rest[1:])))
    strides = tuple((str(d), int(n)) for d, n in rest[-2])
    return Access(str(rest[0]), strides, int(rest[-1])) if kind == "read" else Index(strides, int(rest[-1]))
