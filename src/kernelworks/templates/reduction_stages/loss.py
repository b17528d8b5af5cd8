"""The table form of losses of elements: a function of each pair of elements, then none, the mean or the sum of all.

A loss is one stage (``entry.py``): of all elements as one line, or with ``reduction="none"`` of lines of one element
each. ``term`` and ``gradients`` are read as C++ and as Triton. The definition is torch's function in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.build.kernels import in_float64
from kernelworks.contract import Case, Contract, Cost, Mutant, Request
from kernelworks.contract.arguments import Argument, Arguments, Flag, Word, check_of, errors_of
from kernelworks.contract.cases import LENGTHS, VALUES, draw, normal
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.mutants import shift_elements, stale_end
from kernelworks.templates.reduction_stages.entry import U64, rounded_bound
from kernelworks.templates.reduction_stages.launches import LossArguments, divisor_of
from kernelworks.templates.running_error import to_float32

__all__ = ["LossEntry", "LossVariant", "contract_of_loss", "mutants_of_loss"]

F32, BF16 = torch.float32, torch.bfloat16
SMOOTH_KINDS = ("normal", "large_mean", "tiny", "constant", "zeros")
ELEMENTARY = 2.0**-22  # how far an elementary function may be off, relatively


@dataclass(frozen=True)
class LossVariant:
    """``term``: an expression of the operands by their names and the numbers. ``gradients``: of ``x`` and ``target``,
    without what flows in, which is ``coefficient``."""

    operands: tuple[str, ...]
    term: str
    gradients: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class LossEntry:
    """One loss ``name(x, target, [weights], reduction, *numbers)``.

    ``call`` is how torch's ``function`` is called with these arguments, ``operator`` aten's. ``weights`` are optional
    tensors, with their kinds; ``flags`` are True or False. A flag that is True takes the variant of its name, a weight
    that is given ``weighted``. ``numbers`` and ``presets`` as a reduction's. ``magnitudes(call)`` are, for each element
    in float64, the sum of the magnitudes that its term is made of, and the part of it that elementary functions gave;
    ``slopes(call)`` the same of both gradients, None for one that is 0 everywhere. ``draw_target(generator, dtype, x)``
    makes targets that the loss is meant for. ``tries``: other numbers or flags. ``torchs`` is a function with torch's
    signature.
    """

    name: str
    function: Callable[..., Any]
    call: str
    operator: Callable[..., Any]
    formula: str
    source: str
    describe: str
    torchs: Callable[..., tuple[Any, ...] | str]
    variants: Mapping[str, LossVariant]
    magnitudes: Callable[..., tuple[Tensor, Tensor | float]]
    slopes: Callable[..., tuple[tuple[Tensor, Tensor | float] | None, tuple[Tensor, Tensor | float] | None]]
    weights: Mapping[str, T] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    numbers: Mapping[str, Argument] = field(default_factory=dict)
    presets: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ("none", "mean", "sum")
    dims: str = "..."
    draw_target: Callable[..., Tensor] | None = None
    tries: tuple[Mapping[str, Any], ...] = ()
    flop: float = 3.0
    functions: float = 0.0
    nanoseconds: float = 0.5
    mutants: Mapping[str, tuple[Callable[..., Tensor], str]] = field(default_factory=dict)

    @functools.cached_property
    def arguments(self) -> Arguments:
        tensors = {"x": T(self.dims), "target": T(self.dims, like="x"), **self.weights}
        return {**tensors, "reduction": Word(*self.words), **{f: Flag() for f in self.flags}, **self.numbers}

    @property
    def defaults(self) -> dict[str, Any]:
        none = dict.fromkeys(self.weights)
        return {**none, "reduction": "mean", **dict.fromkeys(self.flags, False), **self.presets}

    @functools.cached_property
    def composite(self) -> Callable[..., Tensor]:
        """torch's function of the op's arguments."""
        names = ", ".join(f"{n}={self.defaults[n]!r}" if n in self.defaults else n for n in self.arguments)
        made: Callable[..., Tensor] = eval(f"lambda {names}: {self.call}", {"function": self.function})
        return made

    def definition(self, *args: Any, **named: Any) -> tuple[Tensor, ...]:
        given = self.defaults | dict(zip(self.arguments, args, strict=False)) | named
        given |= {n: to_float32(given[n]) for n in self.numbers}
        return (self.composite(**given),)

    @property
    def launch_arguments(self) -> LossArguments:
        """What launches know of the arguments."""
        operands = {name: variant.operands for name, variant in self.variants.items()}
        return LossArguments(tuple(self.arguments), tuple(self.weights), self.flags, tuple(self.numbers), operands)


# ---------------------------------------------------------------- the contract


def contract_of_loss(entry: LossEntry, family: str) -> Contract:
    """What an entry promises."""

    def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        (output,), x = outputs, args["x"]
        magnitude, elementary = entry.magnitudes(**_rounded_numbers(entry, args))
        each = 16 * U64 * magnitude + ELEMENTARY * elementary
        if args["reduction"] != "none":
            each = (each.sum() + x.numel() * U64 * magnitude.sum()) / divisor_of(x, args["reduction"])
        return (rounded_bound(output, dtype) + each,)

    def gradient_bound(
        args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        flow = grads[0].abs() / divisor_of(args["x"], args["reduction"])
        found = dict(zip(("x", "target"), entry.slopes(**_rounded_numbers(entry, args)), strict=True))

        def of(gradient: Tensor, sizes: tuple[Tensor, Tensor | float] | None) -> Tensor:
            if sizes is None:
                return torch.zeros_like(gradient)
            error = 16 * U64 * sizes[0] + ELEMENTARY * sizes[1] + 2.0**-149
            return rounded_bound(gradient, dtype) + flow * error

        return {name: of(gradient, found[name]) for name, gradient in gradients.items()}

    def cost(request: Request) -> Cost:
        x = request.args["x"]
        read = sum(t.nbytes for t in request.tensors)
        if request.pass_ == "backward":
            return Cost(entry.flop * x.numel, entry.functions * x.numel, read, 2 * x.nbytes)
        written = x.nbytes if request.args["reduction"] == "none" else x.dtype.itemsize
        return Cost(entry.flop * x.numel, entry.functions * x.numel, read, written)

    return Contract(
        name=entry.name, family=family, formula=entry.formula, source=entry.source, outputs=("output",),
        differentiable=("x", "target"), check=check_of(entry.arguments, entry.defaults), reference=entry.definition,
        bound=bound, gradient_bound=gradient_bound, cost=cost, dims=lambda request: {"N": request.args["x"].numel},
        cases=tuple(_cases(entry)), bench_cases=tuple(_case(entry, s, "mean", dtypes=(d,)) for s, d in BENCH),
        device_cases=tuple(_case(entry, s, w) for s in DEVICE for w in ("mean", "none")),
        device_bench_cases=tuple(_case(entry, s, "mean", dtypes=(BF16,)) for s in DEVICE_BENCH),
        errors=errors_of(entry.arguments),
    )  # fmt: skip


def _rounded_numbers(entry: LossEntry, args: Mapping[str, Any]) -> dict[str, Any]:
    return {n: to_float32(v) if n in entry.numbers else v for n, v in args.items() if n in entry.arguments}


# ---------------------------------------------------------------- cases

BENCH = (((2048, 4096), F32), ((2048, 4096), BF16), ((1, 1024), F32))
DEVICE = ((5003, 200), (3, 1_000_003), (16, 1024))
DEVICE_BENCH = ((4096, 16384), (8192, 4096), (16, 1024))


def _case(
    entry: LossEntry, shape: tuple[int, ...], reduction: str, kind: str = "normal",
    said: Mapping[str, Any] | None = None, weighted: bool = False, **more: Any,
) -> Case:  # fmt: skip
    changed = dict(said or {})
    label = "".join(f", {n} {v}" for n, v in changed.items()) + ", weighted" * weighted

    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        x = draw(kind, generator, dtype, *shape)
        target = entry.draw_target(generator, dtype, x) if entry.draw_target else normal(generator, dtype, *shape)
        given = {"x": x, "target": target, **entry.defaults, "reduction": reduction, **changed}
        if weighted:
            for name, t in entry.weights.items():
                sizes = shape[-1:] if len(t.dimensions) == 1 else shape
                given[name] = (torch.rand(sizes, generator=generator) + 0.5).to(dtype)
        return given

    return Case(f"{reduction}, {kind} {list(shape)}{label}", make, **more)


def _cases(entry: LossEntry) -> Iterator[Case]:
    smooth = SMOOTH_KINDS
    for i, n in enumerate(n for n in (*LENGTHS[1:], 0) if entry.dims == "..." or n):
        yield _case(entry, (3, n), entry.words[i % len(entry.words)], layouts=n in (17, 128))
    for word in entry.words:
        for kind in VALUES:
            yield _case(entry, (5, 33), word, kind, gradients=kind in smooth)
        yield _case(entry, (2, 3, 4, 40), word, layouts=True)
        yield _case(entry, (1031,), word)
        for said in entry.tries:
            yield _case(entry, (7, 129), word, said=said)
            yield _case(entry, (5, 33), word, "zeros", said=said)
            yield _case(entry, (5, 33), word, "nan", said=said, gradients=False)
            yield _case(entry, (5, 33), word, "huge", said=said, gradients=False)
        if entry.weights:
            yield _case(entry, (7, 129), word, weighted=True, layouts=word == "mean")
            yield _case(entry, (5, 33), word, "huge", weighted=True, gradients=False)
    yield _case(entry, (3, 150_001), "mean", dtypes=(F32, BF16), gradients=False)
    if entry.dims == "...":
        yield _case(entry, (), "mean")


# ---------------------------------------------------------------- mutants


def mutants_of_loss(entry: LossEntry) -> tuple[Mutant, ...]:
    """What any loss gets wrong, then the entry's own."""
    right = in_float64(entry.definition)
    place = tuple(entry.arguments).index("reduction")

    def with_word(word: str) -> Callable[..., Any]:
        return lambda *args: right(*args[:place], word, *args[place + 1 :])

    def general() -> Iterator[Mutant]:
        yield Mutant("zeros", lambda *args: torch.zeros_like(right(*args)), "nothing is written")
        yield Mutant("stale end", lambda *args: stale_end(right(*args)), "the last output is never written")
        if entry.draw_target:
            yield Mutant("exchanged", lambda x, t, *rest: right(t, x, *rest), "x and target change places")
        yield Mutant("target aside", lambda x, t, *r: right(x, shift_elements(t), *r), "target is read one aside")
        yield Mutant("bfloat16 inside", lambda x, t, *r: right(x.bfloat16().to(x.dtype), t, *r), "x is rounded first")
        yield Mutant("always mean", with_word("mean"), "the mean whatever is asked")
        yield Mutant("always sum", with_word("sum"), "the sum whatever is asked")
        yield Mutant("NaN ignored", lambda x, t, *r: right(x.nan_to_num(0.0), t, *r), "NaN is 0")

    return (*general(), *(Mutant(name, run, why) for name, (run, why) in entry.mutants.items()))
