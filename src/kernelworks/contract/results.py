"""What an op promises of each result: its dtype, its shape, when there is one, and how it is judged.

A result is judged by its **relation** to the definition. Without one it is within the contract's bound, element by
element, and integers are equal. ``AnyOrder``, ``ChosenIndex`` and ``EqualIndex`` are the relations of what has several
right answers: where elements are equal, torch does not say which of them a choice takes. ``Equations`` is that of what
no formula names, as eigenvectors, ``EqualAcrossRanks`` that of what several processes hold alike. A relation is data;
``verify/compare.py`` is the one place that judges by it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelworks.contract.complex_numbers import is_inexact

__all__ = [
    "AnyOrder", "ChosenIndex", "EqualAcrossRanks", "EqualIndex", "Equations", "Relation", "Result", "dtypes_of",
    "result_dtype",
]  # fmt: skip


@dataclass(frozen=True)
class AnyOrder:
    """The elements of each line along the dimension that the argument ``dim`` names, in any order, unless the argument
    ``unless`` is true."""

    dim: str
    unless: str


@dataclass(frozen=True)
class ChosenIndex:
    """Each names the element of the argument ``of`` along the dimension ``dim`` whose value the result ``values`` holds
    in the same place. Which of several equal elements is free, unless the argument ``unless`` is true; none is named
    twice in a line."""

    of: str
    dim: str
    values: str
    unless: str = ""

    def is_free(self, args: Mapping[str, Any]) -> bool:
        """Whether an argument leaves open which of equal elements is named."""
        return not (self.unless and args[self.unless])


@dataclass(frozen=True)
class EqualAcrossRanks:
    """Within the bound, and on every rank of a group the same bits: what ranks compute of it does not drift apart.
    ``of`` is the output's own name."""

    of: str = "output"


@dataclass(frozen=True)
class EqualIndex:
    """Each names an element of the argument ``of`` along its last dimension that equals the one which the definition
    names in the same place. Which of several equal elements is free, none is named twice in a line; what else the op
    returns may depend on the elements' values alone."""

    of: str


@dataclass(frozen=True)
class Equations:
    """Right where it satisfies the op's equations together with the call's other results, whichever answer it is:
    eigenvectors of equal eigenvalues are any basis of their space.

    ``residuals(args, outputs)`` gives, of arguments and results by name (float64), by the equation's name how far off
    it is and how far off it may be: tensors of one shape, at best a number for each problem of a batch. The limits are
    derived, as bounds are. An answer that is moved by twice the contract's bound, in one element or in all, must
    satisfy them no more. ``gradients(outputs, flows)`` gives the arguments' gradients and their bounds, by name: those
    of the answer that was returned, with ``flows`` into the outputs.
    """

    residuals: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, tuple[Any, Any]]]
    gradients: Callable[[Mapping[str, Any], tuple[Any, ...]], tuple[dict[str, Any], dict[str, Any]]] | None = None


Relation = AnyOrder | ChosenIndex | EqualIndex | EqualAcrossRanks | Equations


@dataclass(frozen=True)
class Result:
    """``dtype``: a dtype, or the name of the argument whose dtype it has (of one that holds a dtype or its name, that);
    without it the first floating-point or complex argument's. ``shape(args)`` gives the sizes, of the arguments by
    name; without it the forward's ``fake`` alone says them. ``when`` names the argument that asks for the result; "" if
    it is always there."""

    dtype: torch.dtype | str | None = None
    shape: Callable[[Mapping[str, Any]], tuple[int, ...]] | None = None
    when: str = ""
    relation: Relation | None = None


def result_dtype(result: Result, args: Mapping[str, Any]) -> torch.dtype:
    """The dtype of a result, of tensors or of what stands for them."""
    said = result.dtype
    if isinstance(said, torch.dtype):
        return said
    if said is None:
        return _first_float(args.values())
    value = args[said]
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    if value is None or value == []:  # of what is not there
        return _first_float(args.values())
    if isinstance(value, torch.dtype):
        return value
    dtype: torch.dtype = getattr(torch, value) if isinstance(value, str) else value.dtype
    return dtype


def _first_float(values: Any) -> torch.dtype:
    for value in values:
        for item in value if isinstance(value, (list, tuple)) else (value,):
            dtype = getattr(item, "dtype", None)
            if dtype is not None and is_inexact(dtype):
                return dtype  # type: ignore[no-any-return]
    return torch.float32


def dtypes_of(results: Sequence[Result], function: Callable[..., Any], args: Sequence[Any]) -> tuple[torch.dtype, ...]:
    """The dtypes of what ``function(*args)`` returns, where its arguments are called as the contract calls them."""
    if all(result.dtype is None or isinstance(result.dtype, torch.dtype) for result in results):
        named: dict[str, Any] = {str(i): a for i, a in enumerate(args)}
    else:
        named = dict(inspect.signature(function).bind(*args).arguments)
    return tuple(result_dtype(result, named) for result in results)
