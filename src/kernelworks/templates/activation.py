"""The table form of the pointwise template: an activation is an entry, and all else follows from its expressions.

``value`` and ``gradient`` are read four times: as C++ (``activation_table.py``) and as Triton
(``tools/activations.py``); a running error analysis (``running_error.py``) makes the bounds of them; their operations
are counted for the cost. The definition is torch's function in float64.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Kernel, Mutant, rounding
from kernelworks.contract.cases import SMOOTH, draw
from kernelworks.contract.numbers import Real
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.op import Op
from kernelworks.templates.pointwise import Pointwise, Work
from kernelworks.templates.running_error import FUNCTIONS, Running, to_float32

__all__ = ["ELEMENTARY", "Activation", "OfEntry", "count_operations", "mutants_of", "template_of"]

# Operations of one call, where the compiled code has one vector of them; one that is not named counts 1.
OPERATIONS = {"exp": 12, "expm1": 16, "log1p": 13, "sigmoid": 15, "tanh": 20}
ELEMENTARY = ("exp", "expm1", "log1p", "sigmoid", "tanh")
# Torch's float64 gradients hold differences of ones (1 - tanh^2): the definition is itself off by so much.
OF_FLOAT64 = 2.0**-50
HUGE = 1e30  # from here on torch's float32 overflows on the way
EXTREMES = ("normal", "huge", "tiny", "subnormal", "zeros", "inf", "negative_inf", "nan")

# What an expression of a mutant may call, exactly.
EXACT: dict[str, Callable[..., Tensor]] = {
    "where": lambda condition, a, b: torch.where(condition, a, b),
    "abs": torch.abs, "exp": torch.exp, "expm1": torch.expm1, "log1p": torch.log1p, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Activation:
    """One activation. ``name``, ``torch`` and ``numbers`` (name -> ``Real``, in torch's order) are torch's.

    ``value`` is an expression of ``x`` and the numbers, ``gradient`` one of ``grad``, too; both may read what ``let``
    names before. They add, multiply, compare and call ``where abs exp expm1 log1p sigmoid tanh`` (``exp`` and ``expm1``
    of nothing above 0, ``log1p`` of 0 to 1). Nothing may overflow on the way where the result does not, and NaN must
    come through as in torch's function: a comparison that it fails takes the branch that it is to take.
    ``sweeps`` are how far to both sides of 0 the function is interesting. ``tries`` are numbers other than the presets.
    ``gradient_kinds``: on which kinds of values gradients are compared, too. ``mutants``: a name, an expression, and
    what is wrong with it. ``operator``: aten's, where it has another name.
    """

    name: str
    torch: Callable[..., Tensor]
    formula: str
    source: str
    value: str
    gradient: str
    let: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, Real] = field(default_factory=dict)
    tries: tuple[tuple[float, ...], ...] = ()
    sweeps: tuple[float, ...] = (4.0, 110.0, 1e38)
    gradient_kinds: tuple[str, ...] = SMOOTH
    mutants: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    operator: str = ""

    @property
    def is_torchs(self) -> bool:
        """Whether torch has this function, under this name."""
        return (getattr(F, self.name, None) or getattr(torch, self.name, None)) is self.torch

    @property
    def in_place(self) -> bool:
        """Whether torch's function takes ``inplace``."""
        try:
            return "inplace" in inspect.signature(self.torch).parameters
        except ValueError:  # a function of C++
            return False

    def definition(self, x: Tensor, *numbers: float, **named: float) -> Tensor:
        """Torch's function, of the numbers that a kernel takes."""
        given = (*numbers, *(named[name] for name in list(self.numbers)[len(numbers) :]))
        return self.torch(x, *(to_float32(number) for number in given))

    def composite(self, x: Tensor, *numbers: float) -> Tensor:
        """How a user writes it."""
        return self.torch(x, *numbers)


def template_of(
    entry: Activation, op_package: str, kernels: Callable[[OfEntry], list[Kernel]] = lambda template: []
) -> OfEntry:
    """The op template of an entry. ``op_package`` is the ``__file__`` of the table's, ``kernels`` makes the op's."""
    return OfEntry(
        op_package=op_package, entry=entry, makes=kernels, formula=entry.formula, source=entry.source,
        arguments={"x": T("..."), **entry.numbers}, reference=entry.definition,
        work=Work(
            forward=count_operations(entry, entry.value), backward=count_operations(entry, entry.gradient),
            functions=float(any(f"{name}(" in text for text in _texts(entry) for name in ELEMENTARY)),
        ),
        sweeps={f"{'huge, ' if reach > HUGE else ''}to {reach:g}": reach for reach in entry.sweeps},
        gradient_kinds=entry.gradient_kinds,
        cases=tuple(_cases_of_numbers(entry)),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OfEntry(Pointwise):
    """What follows from an entry: its name is the op's, its expressions make the bounds."""

    entry: Activation
    makes: Callable[[OfEntry], list[Kernel]]

    @functools.cached_property
    def name(self) -> str:
        return self.entry.name

    def _kernels(self) -> list[Kernel]:
        return self.makes(self)

    @property
    def expressions(self) -> dict[str, str]:
        """What the entry computes, by the name of each result."""
        return {**self.entry.let, "output": self.entry.value, "grad_x": self.entry.gradient}

    def template_parts(self, op: Op) -> dict[str, str]:
        said = {"bound": "a running error analysis of these in float32, and one rounding to the dtype"}
        return {
            **self.expressions,
            **said,
            **Pointwise.template_parts(self, op),
            "kernels": "formed of these expressions",
        }

    @functools.cached_property
    def contract(self) -> Contract:
        of_numbers = Pointwise.contract.func(self)  # type: ignore[attr-defined]
        made: Contract = replace(of_numbers, bound=self._bound, gradient_bound=self._gradient_bound)
        return made

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        (output,) = outputs
        error = _evaluate(self.entry, self.entry.value, args).error
        return (_with_rounding(output, error, dtype),)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        found = _evaluate(self.entry, self.entry.gradient, {**args, "grad": grads[0]})
        rounds = found.error > 0.0
        return {
            name: _with_rounding(
                gradient, torch.where(rounds, found.error + OF_FLOAT64 * grads[0].abs(), found.error), dtype
            )
            for name, gradient in gradients.items()
        }


def _with_rounding(exact: Tensor, error: Tensor, dtype: torch.dtype) -> Tensor:
    """How far the result may be off: the error in float32 and the rounding, and nothing where neither is."""
    exact_value = (error == 0.0) & (exact.to(dtype).double() == exact)
    return torch.where(exact_value, torch.zeros_like(exact), rounding(exact, dtype) + error)


def _texts(entry: Activation) -> tuple[str, ...]:
    return (*entry.let.values(), entry.value, entry.gradient)


@functools.cache
def _compiled(text: str) -> CodeType:
    return compile(text, "<activation>", "eval")


def _evaluate(entry: Activation, text: str, args: Mapping[str, Any]) -> Running:
    scope: dict[str, Any] = dict(FUNCTIONS)
    like = args["x"].double()
    for name in ("grad", "x"):
        if name in args:
            exact = args[name].double()
            scope[name] = Running(exact, torch.zeros_like(exact))
    for name in entry.numbers:
        scope[name] = Running(torch.full_like(like, to_float32(args[name])), torch.zeros_like(like))
    for name, definition in entry.let.items():
        scope[name] = eval(_compiled(definition), scope)
    result = eval(_compiled(text), scope)
    assert isinstance(result, Running)
    return result


def count_operations(entry: Activation, text: str) -> float:
    """Operations of an expression and of what it reads."""
    tree = ast.parse(text, mode="eval")
    total = 0.0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            total += OPERATIONS.get(node.func.id, 1)
        elif isinstance(node, (ast.BinOp, ast.Compare, ast.UnaryOp)):
            total += 1
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return total + sum(count_operations(entry, definition) for name, definition in entry.let.items() if name in read)


def _cases_of_numbers(entry: Activation) -> Iterator[Case]:
    """Cases of other numbers: every kind of values, and each sweep."""
    for numbers in entry.tries:
        named = dict(zip(entry.numbers, numbers, strict=True))
        label = ", ".join(f"{name} {value:g}" for name, value in named.items())

        def kinds(g: Generator, d: torch.dtype, named: Mapping[str, float] = named) -> dict[str, Any]:
            return {"x": torch.cat([draw(kind, g, d, 5, 67) for kind in EXTREMES]), **named}

        def swept(g: Generator, d: torch.dtype, named: Mapping[str, float] = named) -> dict[str, Any]:
            parts = [torch.linspace(-r, r, 4001) for r in entry.sweeps if r < HUGE]
            bends = torch.tensor([s * v for v in named.values() for s in (-1.0, 1.0)])
            return {"x": torch.cat([*parts, bends]).to(d), **named}

        yield Case(f"{label}, inf, nan and other kinds of values", kinds, gradients=False)
        yield Case(f"{label}, swept", swept)


def mutants_of(entry: Activation) -> tuple[Mutant, ...]:
    """The entry's known-wrong versions, each computed in float64 and rounded once."""
    return tuple(Mutant(name, _mutant(entry, text), what) for name, (text, what) in entry.mutants.items())


def _mutant(entry: Activation, text: str) -> Callable[..., Tensor]:
    def run(x: Tensor, *numbers: float) -> Tensor:
        scope: dict[str, Any] = {**EXACT, "x": x.double()}
        scope |= {name: to_float32(number) for name, number in zip(entry.numbers, numbers, strict=True)}
        for name, definition in entry.let.items():
            scope[name] = eval(_compiled(definition), scope)
        made: Tensor = eval(_compiled(text), scope)
        return made.to(x.dtype)

    return run
