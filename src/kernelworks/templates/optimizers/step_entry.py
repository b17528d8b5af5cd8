"""The table form of the step template: an optimizer is an entry, and all else follows from its expressions.

``steps`` are read four times: as C++ (``step_table.py``), as Triton (``tools/steps.py``), by a running error analysis
(``running_error.py``) that makes the bound, and exactly, for known-wrong versions. The definition is a function of
tensors in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Case, Contract, Mutant
from kernelworks.contract.arguments import Arguments
from kernelworks.contract.derived_numbers import derived_numbers
from kernelworks.contract.lists import Tensors
from kernelworks.contract.numbers import MOST_FLOAT32, Ordinal, Real, is_middle
from kernelworks.templates.running_error import FUNCTIONS, SMALLEST, Running, square_root, to_float32
from kernelworks.templates.step import Draw, Numbers, Step, Tensors64

__all__ = ["OfOptimizer", "Optimizer", "mutants_of", "template_of"]

RUNNING_FUNCTIONS: dict[str, Callable[..., Any]] = {**FUNCTIONS, "sqrt": square_root}
EXACT_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "where": lambda condition, a, b: torch.where(torch.as_tensor(condition), a, b),  # also a condition of numbers
    "abs": torch.abs, "sqrt": torch.sqrt,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """One optimizer. ``states`` are its lists beside params and grads, by the letter that ``steps`` have for them;
    ``numbers`` its other arguments in order. ``constants``, expressions of these, are what a kernel takes, made in
    float64.

    ``steps`` are assignments in order: expressions of ``p``, ``g``, the states' letters, the constants and what stands
    before. ``p`` and the letters are new from their own assignment on. They add, multiply, divide, compare and call
    ``where abs sqrt``.

    ``torch(params, grads, *states, *numbers)`` steps lists as torch's optimizer does, None if torch has none.
    ``mutants``: a name, the assignments that are otherwise, and what is wrong with them.
    """

    name: str
    formula: str
    source: str
    states: Mapping[str, str]
    numbers: Arguments
    constants: Mapping[str, str]
    steps: Mapping[str, str]
    definition: Callable[..., Tensors64]
    torch: Callable[..., None] | None
    draws: Mapping[str, Draw]
    usual: Numbers
    tries: Mapping[str, Numbers]
    resets: Numbers = field(default_factory=dict)
    many: Numbers = field(default_factory=dict)
    mutants: Mapping[str, tuple[Mapping[str, str], str]] = field(default_factory=dict)
    wrong_numbers: Mapping[str, tuple[Mapping[str, Callable[[Numbers], Any]], str]] = field(default_factory=dict)

    @property
    def arguments(self) -> Arguments:
        letters, first = "bcdef", next(iter(self.states.values()), "")
        states = {
            name: Tensors("params", written=letter, state=True, state_like="" if name == first else first)
            for letter, name in zip(letters, self.states.values(), strict=False)
        }
        return {"params": Tensors(written="a"), "grads": Tensors("params"), **states, **self.numbers}

    @property
    def written_lists(self) -> tuple[str, ...]:
        return ("params", *self.states.values())

    @property
    def lists(self) -> tuple[str, ...]:
        return ("params", "grads", *self.states.values())

    def constants_of(self, given: Sequence[Any]) -> tuple[float, ...]:
        """A kernel's numbers, of an op's in their order."""
        return tuple(derived_numbers(self.constants, dict(zip(self.numbers, given, strict=True))).values())

    @functools.cached_property
    def letters(self) -> dict[str, str]:
        """The lists of the values that steps name."""
        return {"p": "params", "g": "grads", **self.states}


def template_of(entry: Optimizer, op_package: str) -> OfOptimizer:
    """The op template of an entry. ``op_package`` is the ``__file__`` of the table's."""
    return OfOptimizer(
        op_package=op_package, entry=entry, called=entry.name, formula=entry.formula, source=entry.source,
        arguments=entry.arguments, step=entry.definition, error=functools.partial(_error, entry),
        draws={"params": Draw(), "grads": Draw(kind=True), **entry.draws}, usual=entry.usual, tries=entry.tries,
        resets=entry.resets, many=entry.many, work=_work(entry), free=_free(entry),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OfOptimizer(Step):
    """What follows from an entry."""

    entry: Optimizer

    @functools.cached_property
    def contract(self) -> Contract:
        made: Contract = Step.contract.func(self)  # type: ignore[attr-defined]
        return replace(made, name=self.entry.name)

    def _cases(self) -> Iterator[Case]:
        yield from super()._cases()
        yield self.case("zeros everywhere", (33,), (5, 3), kind="zeros", fresh=True)  # a sign of 0, a quotient by eps


def _free(entry: Optimizer) -> dict[str, Callable[[Any], bool]]:
    """Of which numbers no choice of a kernel depends on the value: of those that only make constants."""
    found: dict[str, Callable[[Any], bool]] = {}
    for name, kind in entry.numbers.items():
        if isinstance(kind, Ordinal):
            found[name] = lambda step: step.__class__ is int and 1 <= step < 2**63
        elif isinstance(kind, Real):
            found[name] = functools.partial(_is_plain, kind)
    return found


def _is_plain(kind: Real, value: Any) -> bool:
    below = MOST_FLOAT32 if kind.below is None else kind.below
    return value.__class__ is float and 0.0 <= value < below and is_middle(value)


def _work(entry: Optimizer) -> tuple[float, float]:
    """Operations of an element, and how many of them are roots and quotients."""
    texts = "".join(entry.steps.values())
    dear = float(texts.count("/") + texts.count("sqrt("))
    return float(sum(texts.count(sign) for sign in "+-*")) + dear, dear


# ---------------------------------------------------------------- the expressions, read by Python


@functools.cache
def _compiled(text: str) -> CodeType:
    return compile(text, "<step>", "eval")


def _error(entry: Optimizer, tensors: Mapping[str, Tensor], after: Tensors64, numbers: Numbers) -> tuple[Tensor, ...]:
    scope: dict[str, Any] = dict(RUNNING_FUNCTIONS)
    like = tensors["params"].double()
    for letter, name in entry.letters.items():
        exact = tensors[name].double()
        scope[letter] = Running(exact, torch.zeros_like(exact))
    for name, number in derived_numbers(entry.constants, numbers).items():
        off = abs(number - to_float32(number)) if is_middle(number) else 0.0  # others are taken in float64
        scope[name] = Running(torch.full_like(like, number), torch.full_like(like, off))
    for name, text in entry.steps.items():
        scope[name] = eval(_compiled(text), scope)
    found = (scope[letter] for letter in ("p", *entry.states))
    return tuple(_finite(made.error, exact) for made, exact in zip(found, after, strict=True))


def _finite(error: Tensor, exact: Tensor) -> Tensor:
    """Where a result is no number its error says nothing: it is compared by what it is."""
    return torch.where(exact.isfinite(), error.nan_to_num(nan=torch.inf), 0.0) + SMALLEST


def mutants_of(entry: Optimizer, template: OfOptimizer) -> tuple[Mutant, ...]:
    """The entry's known-wrong versions, each computed in float64 and rounded once."""
    texts = [template.mutant(name, _changed(entry, changed), why) for name, (changed, why) in entry.mutants.items()]
    numbers = [template.mutant_of_numbers(name, why, **changed) for name, (changed, why) in entry.wrong_numbers.items()]
    return (*texts, *numbers)


def _changed(entry: Optimizer, changed: Mapping[str, str]) -> Callable[..., Tensors64]:
    def run(p: Tensor, g: Tensor, *states: Tensor, **numbers: Any) -> Tensors64:
        scope: dict[str, Any] = {**EXACT_FUNCTIONS, "p": p, "g": g, **dict(zip(entry.states, states, strict=True))}
        scope |= derived_numbers(entry.constants, numbers)
        for name, text in {**entry.steps, **changed}.items():
            scope[name] = eval(_compiled(text), scope)
        return tuple(scope[letter] for letter in ("p", *entry.states))

    return run
