"""Known-wrong versions that every op of an op template has: what a kernel gets wrong whatever it computes.

Each is made of the op's definition, run in float64 and rounded once, with one thing amiss.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import in_float64
from kernelworks.contract import Mutant
from kernelworks.contract.complex_numbers import as_parts, from_parts
from kernelworks.contract.results import Result
from kernelworks.dispatch.mutation import as_tuple

__all__ = ["VECTOR", "generic", "shift_elements", "stale_end"]

VECTOR = 16  # elements, of the widest vectors that op packages are compiled for

COMPLEX = (torch.complex64, torch.complex128)

Definition = Callable[..., tuple[Tensor, ...]]
Change = Callable[[Tensor], Tensor]


def generic(
    reference: Definition, tensors: Sequence[str], names: Sequence[str], results: Sequence[Result] = ()
) -> tuple[Mutant, ...]:  # fmt: skip
    """Mutants of an op with this definition, arguments ``names`` of which ``tensors`` are tensors of one shape.
    ``results``: what its outputs promise, so that a mutant has their dtypes and is wrong in nothing but its fault.

    An op of one tensor has no two to be taken for one another. Of complex results parts are mistaken too.
    """
    right = in_float64(reference, results)
    made = [
        Mutant("stale tail", _then(right, _stale_tail), "the vector tail is never written"),
        Mutant("stale end", _then(right, stale_end), "the last element is never written"),
        Mutant("one aside", _then(right, shift_elements), "what belongs to one element is written to its neighbour"),
        Mutant("bfloat16 inside", _narrowed(right), "the inputs are rounded to bfloat16 first"),
        Mutant("rounded twice", _then(right, _twice), "the result is rounded to bfloat16, then to its dtype"),
        Mutant("NaN swallowed", _then(right, lambda y: torch.nan_to_num(y, 0.0)), "NaN becomes 0"),
        Mutant("zeros", _then(right, torch.zeros_like), "nothing is written"),
    ]
    if any(result.dtype in COMPLEX for result in results):
        made += [
            Mutant("conjugated", _then(right, _conjugate), "the imaginary part has the other sign"),
            Mutant("parts exchanged", _then(right, _exchange), "real and imaginary part change places"),
            Mutant("real part alone", _then(right, _real_part), "the imaginary part is never written"),
        ]
    for one, other in itertools.pairwise(tensors):
        places = names.index(one), names.index(other)
        made.append(Mutant(f"{one} for {other}", _swapped(right, *places), f"{one} and {other} change places"))
        aside = _aside(right, places[1])
        made.append(Mutant(f"{other} one aside", aside, f"{other} is read one element aside"))
    return tuple(made)


def _then(right: Callable[..., Any], change: Change) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        made = tuple(change(t) for t in as_tuple(right(*args)))
        return made if len(made) > 1 else made[0]

    return run


def _stale_tail(y: Tensor) -> Tensor:
    flat = y.reshape(-1).clone()
    if flat.numel() % VECTOR:
        flat[flat.numel() // VECTOR * VECTOR :] = 0.0
    return flat.reshape(y.shape)


def stale_end(y: Tensor) -> Tensor:
    flat = y.reshape(-1).clone()
    flat[-1:] = 0.0
    return flat.reshape(y.shape)


def shift_elements(y: Tensor) -> Tensor:
    return y.reshape(-1).roll(1).reshape(y.shape)


def _twice(y: Tensor) -> Tensor:
    return from_parts(as_parts(y).bfloat16().to(as_parts(y).dtype), y)


def _conjugate(y: Tensor) -> Tensor:
    return y.conj().resolve_conj()


def _exchange(y: Tensor) -> Tensor:
    return from_parts(as_parts(y).flip(-1), y) if y.is_complex() else y


def _real_part(y: Tensor) -> Tensor:
    return y.real.to(y.dtype)


def _narrowed(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: right(*(_twice(a) if isinstance(a, Tensor) else a for a in args))


def _swapped(right: Callable[..., Any], one: int, other: int) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        given = list(args)
        given[one], given[other] = given[other], given[one]
        return right(*given)

    return run


def _aside(right: Callable[..., Any], place: int) -> Callable[..., Any]:
    return lambda *args: right(*(shift_elements(a) if i == place else a for i, a in enumerate(args)))
