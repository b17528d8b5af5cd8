"""The table form of reductions along any dimensions: an op is an entry, and all else follows from its stages.

A stage takes one number of each line: a sum, a maximum or a minimum of terms, each a function of an element and of what
the stages before came to. The expressions are read as C++ (``op_table.py``, ``simd/stage_reduction.hpp``) and as
Triton (``tools/reductions.py``, ``tile/reduction_stages/``). The definition is torch's function in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.build.kernels import in_float64
from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, Flag, check_of, errors_of
from kernelworks.contract.cases import SMOOTH, VALUES, draw, row_cases
from kernelworks.contract.numbers import Real
from kernelworks.contract.reduced_dims import Dims, count_of, dims_of, kept_shape
from kernelworks.contract.tensor_argument import GivenArguments, T, Wrong
from kernelworks.templates.mutants import VECTOR, shift_elements, stale_end
from kernelworks.templates.running_error import to_float32

__all__ = [
    "U64", "OneOf", "ReductionEntry", "Stage", "Variant", "contract_of", "count_along", "mutants_of", "rounded_bound",
    "summed_dims",
    "in_double",
]  # fmt: skip

BF16, F32 = torch.bfloat16, torch.float32
U32, U64 = 2.0**-24, 2.0**-53
FEW = "few values"  # of which there are many equal ones, 0 with either sign among them


@dataclass(frozen=True)
class Stage:
    """One number of a line. ``term`` is an expression of the element ``x``, of the stages before by their names, of
    ``n`` and the entry's numbers; ``combine`` is ``sum``, ``max`` or ``min``; ``finish`` makes the number of ``s``,
    what the terms came to. All are computed in float64."""

    name: str
    term: str
    combine: str = "sum"
    finish: str = "s"


@dataclass(frozen=True)
class Variant:
    """The stages of a forward, of which the last is the output; those of a backward, of which ``coefficient`` makes a
    number of each line and of ``grad``, and ``gradient`` one of each element and of ``coefficient``. No ``gradient``:
    the coefficient is every element's."""

    stages: tuple[Stage, ...]
    back: tuple[Stage, ...] = ()
    coefficient: str = "grad"
    gradient: str = ""


@dataclass(frozen=True, kw_only=True)
class ReductionEntry:
    """One reduction ``name(x, dim, keepdim, *numbers)``.

    ``function`` is torch's, ``call`` how it is called with these arguments, an expression: the definition. ``operator``
    says aten's of the same. ``numbers`` are the arguments beside, with their kinds; ``presets`` their defaults.
    ``variants`` by a name: "" where there is one, else ``by_number`` says which one the first number takes. ``empty``
    is the result of a line without elements, None where torch refuses one. ``error(x, dims, *numbers)`` is how far a
    right kernel may be off before it rounds its result, with a dimension of 1 for each reduced one;
    ``slope_error(grad, x, dims, *numbers)`` the same of the gradient; without ``error`` the forward is exact.
    ``tries`` are other numbers.
    ``torchs`` is a function with torch's signature that returns the op's arguments, or why torch's function serves;
    ``written`` is the function that a user writes, where that is another than ``function``. ``before_dim``: the public
    function takes the numbers before ``dim``, else by name. ``every``: ``dim`` may be None. ``alone``: an
    expression that holds of a call by position which only torch's signature has.
    """

    name: str
    function: Callable[..., Any]
    call: str
    operator: Callable[..., Any]
    formula: str
    source: str
    describe: str
    torchs: Callable[..., tuple[Any, ...] | str]
    variants: Mapping[str, Variant]
    by_number: Mapping[float, str] = field(default_factory=dict)
    numbers: Mapping[str, Real | OneOf] = field(default_factory=dict)
    presets: Mapping[str, Any] = field(default_factory=dict)
    before_dim: bool = False
    every: bool = True
    empty: float | None = None
    bounded: str = "none, it is exact"
    error: Callable[..., Tensor] | None = None
    slope_error: Callable[..., Tensor]
    tries: tuple[tuple[Any, ...], ...] = ()
    gradient_kinds: tuple[str, ...] = SMOOTH
    flop: float = 1.0
    exponentials: float = 0.0
    nanoseconds: float = 0.3
    written: Callable[..., Any] | None = None
    alone: str = ""
    torch_operator: str = ""
    mutants: Mapping[str, tuple[Callable[..., Tensor], str]] = field(default_factory=dict)

    @functools.cached_property
    def arguments(self) -> Arguments:
        dims = Dims("x", every=self.every, empty=self.empty is not None)
        return {"x": T("..."), "dim": dims, "keepdim": Flag(), **self.numbers}

    @functools.cached_property
    def composite(self) -> Callable[..., Tensor]:
        """torch's function of the op's arguments."""
        text = f"lambda x, dim, keepdim{''.join(f', {n}' for n in self.numbers)}: {self.call}"
        made: Callable[..., Tensor] = eval(text, {"function": self.function})

        def composite(x: Tensor, dim: Any, keepdim: bool, *numbers: Any, **named: Any) -> Tensor:
            if (
                isinstance(dim, (tuple, list)) and not dim
            ):  # of which torch takes all, but not every gradient of torch's
                dim = None
            return made(x, dim, keepdim, *numbers, **named)

        return composite

    def definition(self, x: Tensor, dim: Any = None, keepdim: bool = False, *more: Any, **named: Any) -> Any:
        numbers = (*more, *(named.get(n, self.presets.get(n)) for n in list(self.numbers)[len(more) :]))
        return (self.composite(x, dim, keepdim, *map(to_float32, numbers)),)

    def variant(self, numbers: tuple[Any, ...]) -> tuple[str, Variant]:
        """The name of the kernels' function, and what it does."""
        chosen = self.by_number[float(numbers[0])] if self.by_number else ""
        return f"{self.name}_{chosen}" if chosen else self.name, self.variants[chosen]

    @property
    def usual(self) -> tuple[Any, ...]:
        return tuple(self.presets.values())


@dataclass(frozen=True, init=False)
class OneOf:
    """One of a few numbers, each of which says which function is meant; the first is the usual one."""

    schema = "float"
    values: tuple[float, ...]

    def __init__(self, *values: float) -> None:
        object.__setattr__(self, "values", values)

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a float, got {type(value).__name__}")
        if value not in self.values:
            raise ValueError(f"{name} must be {self}, got {value}")

    def conditions(self, name: str) -> list[str]:
        """What holds of a number that the check accepts, as expressions."""
        equal = " or ".join(
            f"{name} == float('{value}')" if math.isinf(value) else f"{name} == {value!r}" for value in self.values
        )
        return [f"{name}.__class__ is float and ({equal})"]

    def right(self, given: GivenArguments) -> Any:
        return self.values[0]

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a string", "1", TypeError, f"{name} must be a float"
        yield f"{name} is True", True, TypeError, f"{name} must be a float"
        yield f"{name} is another number", 3.5, ValueError, f"{name} must be {self}"
        yield f"{name} is NaN", float("nan"), ValueError, f"{name} must be {self}"

    def __str__(self) -> str:
        return " or ".join(f"{value:g}" for value in self.values)


def summed_dims(x: Tensor, dim: Any) -> Any:
    """The dimensions as torch's sums take them."""
    return dims_of(tuple(x.shape), dim) or tuple(range(x.dim()))


def count_along(x: Tensor, dims: tuple[int, ...]) -> int:
    """How many elements become one."""
    return math.prod(x.shape[d] for d in dims)


def in_double(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch's function in float64, its result in the argument's dtype."""
    return lambda x, *args, **named: function(x.double(), *args, **named).to(x.dtype)


# ---------------------------------------------------------------- the contract


def rounded_bound(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """A double is rounded to float32 first, and then to 16 bits."""
    narrow = dtype not in (torch.float32, torch.float64)
    return rounding(exact, dtype) + (U32 * exact.abs() + 2.0**-149 if narrow else 0.0)


def contract_of(entry: ReductionEntry, family: str) -> Contract:
    """What an entry promises."""
    numbers = tuple(entry.numbers)

    def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        (output,) = outputs
        if entry.error is None:
            return (torch.zeros(output.shape),)
        x = args["x"]
        error = entry.error(x, summed_dims(x, args["dim"]), *(args[n] for n in numbers))
        return (rounded_bound(output, dtype) + error.reshape(output.shape),)

    def gradient_bound(
        args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        x, gradient = args["x"], gradients["x"]
        flow = grads[0].reshape(kept_shape(tuple(x.shape), args["dim"]))
        error = entry.slope_error(flow, x, summed_dims(x, args["dim"]), *(args[n] for n in numbers))
        return {"x": rounded_bound(gradient, dtype) + error.expand(x.shape)}

    def cost(request: Request) -> Cost:
        x = request.args["x"]
        backward, lines = request.pass_ == "backward", x.numel // max(count_of(x.shape, request.args["dim"]), 1)
        written = lines * x.dtype.itemsize
        function = entry.exponentials * x.numel
        if backward:
            return Cost((entry.flop + 2.0) * x.numel, function, x.nbytes + written, x.nbytes)
        return Cost(entry.flop * x.numel, function, x.nbytes, written)

    return Contract(
        name=entry.name, family=family, formula=entry.formula, source=entry.source, outputs=("output",),
        differentiable=("x",), check=check_of(entry.arguments, {"dim": None, "keepdim": False, **entry.presets}),
        reference=entry.definition, bound=bound, gradient_bound=gradient_bound, cost=cost, dims=_dims,
        cases=tuple(_cases(entry)),
        bench_cases=tuple(_case(entry, shape, dim, dtypes=(dtype,)) for shape, dim, dtype in BENCH),
        device_cases=tuple(_case(entry, shape, dim) for shape, dim in DEVICE),
        device_bench_cases=tuple(_case(entry, shape, dim, dtypes=(BF16,)) for shape, dim in DEVICE_BENCH),
        errors=(*errors_of(entry.arguments), *(() if entry.empty is not None else (_empty_line(entry),))),
    )  # fmt: skip


def _empty_line(entry: ReductionEntry) -> Any:
    def call() -> dict[str, Any]:
        return {"x": torch.ones(3, 0), "dim": -1, "keepdim": False, **entry.presets}

    return "a line without elements", call, ValueError, "dim must have elements to reduce"


def _dims(request: Request) -> dict[str, int]:
    """Lines, their elements, and how many lines lie side by side."""
    shape, dim = request.args["x"].shape, request.args["dim"]
    n, dims = count_of(shape, dim), dims_of(shape, dim)
    inner = 1
    for size in shape[dims[-1] + 1 :] if dims else ():
        inner *= size
    return {"M": request.args["x"].numel // max(n, 1), "N": n, "inner": inner}


# ---------------------------------------------------------------- cases

# shape, dimensions, whether layouts are tried
PLACES: tuple[tuple[tuple[int, ...], Any, bool], ...] = (
    ((5, 7), 0, False), ((3, 17, 5), 1, True), ((2, 1, 33), 1, False), ((300, 70), 0, True),
    ((7, 130, 2, 3), -3, False), ((0, 5), 0, False), ((4, 0, 3), 1, False), ((0, 5), None, False),
    ((2, 9001), 1, False), ((2, 600, 3), 1, False), ((66, 1050), 0, False), ((1031,), None, False),
    ((6, 50, 40), None, True), ((), None, False), ((), -1, False), ((65, 1, 1), 0, False),
    ((3, 4, 5, 6), (1, 2), False), ((3, 4, 5, 6), (0, 2), True), ((9, 4, 35), (-1, 0), False), ((5, 6), (0, 1), False),
    ((5, 6), (), False), ((3, 5), [1], False),
)  # fmt: skip
KEPT_CASES: tuple[tuple[tuple[int, ...], Any], ...] = (
    ((4, 33), -1),
    ((4, 33), 0),
    ((3, 4, 5), None),
    ((3, 4, 5), (0, 2)),
)
# Lines that are too few and too long for one thread each.
CUT_CASES: tuple[tuple[tuple[int, ...], Any], ...] = (((3, 150_001), -1), ((20_003, 5), 0), ((2, 20_007, 7), 1))
# A line in a tile, in several, cut into parts; the same down columns.
DEVICE: tuple[tuple[tuple[int, ...], Any], ...] = (
    ((5003, 200), -1), ((3001, 1024), -1), ((301, 20_011), -1), ((3, 1_000_003), -1), ((1000, 1003), None),
    ((64, 300, 129), 1), ((100_003, 130), 0), ((5000, 2051), 0),
)  # fmt: skip
BENCH: tuple[tuple[tuple[int, ...], Any, torch.dtype], ...] = (
    ((2048, 4096), -1, F32), ((2048, 4096), 0, F32), ((2048, 4096), None, BF16), ((1, 1024), -1, F32),
)  # fmt: skip
DEVICE_BENCH: tuple[tuple[tuple[int, ...], Any], ...] = (
    ((8192, 4096), -1), ((8192, 4096), 0), ((4096, 16384), None), ((16, 1024), -1)
)  # fmt: skip


def _case(
    entry: ReductionEntry, shape: tuple[int, ...], dim: Any, kind: str = "normal", *, keepdim: bool = False,
    numbers: tuple[Any, ...] | None = None, **more: Any,
) -> Case:  # fmt: skip
    given = dict(zip(entry.numbers, entry.usual if numbers is None else numbers, strict=True))
    said = "".join(f", {n} {v}" for n, v in given.items()) if numbers is not None else ""
    dim = () if dim is None and not entry.every else dim
    name = f"{kind}, " * (kind != "normal") + f"dim {dim} of {list(shape)}" + ", kept" * keepdim + said

    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        return {"x": _drawn(generator, dtype, shape, kind), "dim": dim, "keepdim": keepdim, **given}

    return Case(name, make, **more)


def _drawn(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> Tensor:
    if kind == FEW:
        x = torch.randint(-2, 3, shape, generator=generator).to(dtype)
        return torch.where(torch.rand(shape, generator=generator) < 0.5, x, -x)
    if kind == "close":  # far from 0, and near each other: 1e6 and its neighbours in float32
        return (1e6 + torch.randint(0, 3, shape, generator=generator) * 0.0625).to(dtype)
    if kind == "far":
        return (torch.randn(shape, generator=generator) * 1e30).to(dtype)
    if kind == "near 0":
        return (torch.randn(shape, generator=generator) * 1e-30).to(dtype)
    return draw(kind, generator, dtype, *shape)


def _cases(entry: ReductionEntry) -> Iterator[Case]:
    empty, allowed = entry.empty is not None, entry.gradient_kinds

    def given(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> dict[str, Any]:
        x = _drawn(generator, dtype, shape, kind)
        return {"x": x, "dim": -1, "keepdim": False, **dict(zip(entry.numbers, entry.usual, strict=True))}

    lengths = (1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 64, 65, 128, 129, 511, 513, 1031, 4096, 0)
    yield from row_cases(given, lengths=[n for n in lengths if n or empty], gradient_kinds=allowed)
    for shape, dim, layouts in PLACES:
        if empty or count_of(shape, dim):
            yield _case(entry, shape, dim, layouts=layouts)
    for shape, dim in KEPT_CASES:
        yield _case(entry, shape, dim, keepdim=True)
    for kind in (*VALUES, FEW, "close", "far", "near 0"):
        if kind != "normal":
            gradients = kind in (*allowed, FEW, "close")
            dtypes = (
                (F32, BF16) if kind in ("far", "near 0") else (F32,) if kind == "close" else (F32, BF16, torch.half)
            )
            yield _case(entry, (40, 19), 0, kind, gradients=gradients, dtypes=dtypes)
            yield _case(entry, (5, 7, 30), None, kind, gradients=gradients, dtypes=dtypes)
    yield _case(entry, (9, 1031), -1, FEW)
    yield _case(entry, (3, 5000), -1, "close", dtypes=(F32,))
    for shape, dim in CUT_CASES:
        yield _case(entry, shape, dim, dtypes=(F32, BF16))
    for numbers in entry.tries:
        for shape, dim in (((5, 33), -1), ((5, 33), 0), ((3, 1), 1), ((4, 5, 6), (0, 2)), ((2, 700), -1)):
            yield _case(entry, shape, dim, numbers=numbers)
        for kind in ("inf", "nan", "zeros", "huge", "tiny", FEW):
            yield _case(entry, (5, 7, 30), -1, kind, numbers=numbers, gradients=kind == FEW)
        yield _case(entry, (7, 9), 0, "far", numbers=numbers, dtypes=(F32, BF16), gradients=False)


# ---------------------------------------------------------------- mutants


def mutants_of(entry: ReductionEntry) -> tuple[Mutant, ...]:
    """What any reduction gets wrong, then the entry's own."""
    return (*_general(entry), *(Mutant(name, run, why) for name, (run, why) in entry.mutants.items()))


def _general(entry: ReductionEntry) -> Iterator[Mutant]:
    right = in_float64(entry.definition)

    def after(how: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        return lambda *args: how(right(*args))

    def with_x(how: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        return lambda x, dim, *rest: right(how(x), dim, *rest)

    def without_tail(x: Tensor, dim: Any, keepdim: bool, *numbers: Any) -> Any:
        dims = dims_of(tuple(x.shape), dim)
        if dims is not None and len(dims) == 1 and x.shape[dims[0]] > VECTOR:
            x = x.narrow(dims[0], 0, x.shape[dims[0]] // VECTOR * VECTOR)
        return right(x, dim, keepdim, *numbers)

    def one_dimension(x: Tensor, dim: Any, keepdim: bool, *numbers: Any) -> Any:
        return right(x, dim[0] if isinstance(dim, (tuple, list)) and dim else dim, keepdim, *numbers)

    yield Mutant("zeros", after(torch.zeros_like), "nothing is written")
    yield Mutant("stale end", after(stale_end), "the last output is never written")
    yield Mutant("one aside", after(shift_elements), "a line's is another's")
    yield Mutant("off by one tile", without_tail, "what is left of a line behind its tiles is left out")
    yield Mutant("first dimension", lambda x, dim, *r: right(x, 0, *r), "always along the first dimension")
    yield Mutant("last dimension", lambda x, dim, *r: right(x, -1, *r), "always along the last dimension")
    yield Mutant("one dimension", one_dimension, "of several dimensions the first alone")
    yield Mutant("dimension kept", lambda x, dim, k, *r: right(x, dim, True, *r), "keepdim whatever is asked")
    yield Mutant("NaN ignored", with_x(lambda x: x.nan_to_num(0.0, torch.inf, -torch.inf)), "NaN is 0")
    if entry.error is not None:  # others' results are elements, which are what they are
        yield Mutant("bfloat16 inside", with_x(lambda x: x.bfloat16().to(x.dtype)), "elements are rounded to bfloat16")
        roundoff = UNIT_ROUNDOFF[torch.bfloat16]
        yield Mutant("one unit off", after(lambda y: y * (1.0 + 3.0 * roundoff)), "the result is off by three units")
