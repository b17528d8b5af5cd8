"""What selections get wrong, whatever they choose: each is the definition in float64 with one thing amiss.

Where equal elements may be named in any order, a mutant that differs in that alone would be right. So each is wrong in
what is promised: a value, an index that names another, one that names twice, the order, the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import in_float64
from kernelworks.contract import Contract, Mutant
from kernelworks.templates.mutants import VECTOR, shift_elements, stale_end

__all__ = ["selection_mutants"]

MANY = 2**22  # comparisons of elements with elements, beyond which a mutant is right

Pair = tuple[Tensor, Tensor]


def selection_mutants(
    reference: Callable[..., tuple[Tensor, ...]], contract: Contract, selection_of: Callable[..., Any]
) -> Iterator[Mutant]:
    """``selection_of(*args)`` says what a call asks for (``SelectionRequest``), and along which dimension."""
    right = in_float64(reference, contract.results_in_order)

    def after(change: Callable[[Tensor, Tensor, Tensor, int], Pair]) -> Callable[..., Pair]:
        def run(*args: Any) -> Pair:
            values, indices = right(*args)
            return change(values, indices, args[0], selection_of(*args)[1])

        return run

    def both(change: Callable[[Tensor], Tensor]) -> Callable[..., Pair]:
        return after(lambda values, indices, x, dim: (change(values), change(indices)))

    def places(change: Callable[[Tensor, Tensor, int], Tensor]) -> Callable[..., Pair]:
        return after(lambda values, indices, x, dim: (values, change(indices, x, dim)))

    def chosen_by(change: Callable[[Tensor, int, float], Tensor]) -> Callable[..., Pair]:
        """The elements that are chosen where others stand in their places, with their own values."""

        def run(*args: Any) -> Pair:
            x, (want, dim) = args[0], selection_of(*args)
            indices = right(change(x, dim, -torch.inf if want.largest else torch.nan), *args[1:])[1]
            return x.gather(dim, indices), indices

        return run

    yield Mutant("zeros", both(torch.zeros_like), "nothing is written")
    yield Mutant("stale tail", both(stale_end), "the last result is never written")
    yield Mutant("one aside", both(shift_elements), "a line's is another's")
    yield Mutant("32 bits", places(lambda i, x, dim: i.int()), "indices of another dtype than int64")
    yield Mutant("of the whole", places(_in_whole), "the index in all of x")
    yield Mutant("within a block", places(lambda i, x, dim: i % 1024), "the index within a block, not a line")
    yield Mutant("index off by one", places(_next_place), "indices are one too large, that of the last one too small")
    yield Mutant("tail off by one", places(_late_tail), "indices behind the last whole vector are one too small")
    yield Mutant("named twice", after(_repeated), "the last but one is returned again in place of the last")
    yield Mutant("first of equals", places(_first_equal), "of equal elements the first is named for all")
    yield Mutant("next number", after(_next_number), "a value is the next number, not the element")
    yield Mutant("the other end", chosen_by(lambda x, dim, worst: -x), "smallest for largest, and back")
    yield Mutant("magnitude", chosen_by(lambda x, dim, worst: x.abs()), "chosen by the elements without their signs")
    yield Mutant("rounded first", chosen_by(lambda x, dim, worst: x.bfloat16().to(x.dtype)), "chosen among bfloat16")
    yield Mutant("NaN lost", chosen_by(lambda x, dim, worst: x.nan_to_num(-torch.inf)), "NaN is -inf")
    yield Mutant("NaN by its bits", chosen_by(_signed_nan), "NaN with a sign is below all numbers")
    yield Mutant("-inf is missing", chosen_by(lambda x, dim, worst: x.nan_to_num(torch.nan, None, 0.0)), "-inf is 0")
    yield Mutant(
        "tail left out", chosen_by(_without_tail), "what is left behind the last whole vector is not looked at"
    )
    yield Mutant("last left out", chosen_by(lambda x, dim, worst: _without(x, dim, -1, worst)), "nor the last element")
    yield Mutant("first left out", chosen_by(lambda x, dim, worst: _without(x, dim, 0, worst)), "nor the first")
    yield Mutant("wrong order", after(_reversed), "those that were chosen come in the opposite order")
    yield Mutant("unsorted end", after(_swapped_last), "the last two change places")


def _length(x: Tensor, dim: int) -> int:
    return x.shape[dim] if x.dim() else 1


def _in_whole(indices: Tensor, x: Tensor, dim: int) -> Tensor:
    return torch.arange(x.numel()).reshape(x.shape).gather(dim, indices)


def _next_place(indices: Tensor, x: Tensor, dim: int) -> Tensor:
    n = _length(x, dim)
    return torch.where(indices < n - 1, indices + 1, (indices - 1).clamp(min=0))


def _late_tail(indices: Tensor, x: Tensor, dim: int) -> Tensor:
    whole = _length(x, dim) // VECTOR * VECTOR
    return torch.where(indices >= max(whole, 1), indices - 1, indices)


def _repeated(values: Tensor, indices: Tensor, x: Tensor, dim: int) -> Pair:
    def again(t: Tensor) -> Tensor:
        if not t.dim() or t.shape[dim] < 2:
            return t
        return torch.cat((t.narrow(dim, 0, t.shape[dim] - 1), t.narrow(dim, t.shape[dim] - 2, 1)), dim)

    return again(values), again(indices)


def _first_equal(indices: Tensor, x: Tensor, dim: int) -> Tensor:
    if not x.dim() or x.numel() * indices.shape[dim] > MANY:
        return indices
    line, own = x.movedim(dim, -1).unsqueeze(-2), x.gather(dim, indices).movedim(dim, -1).unsqueeze(-1)
    equal = (line == own) | (line.isnan() & own.isnan())
    return equal.int().argmax(-1).movedim(-1, dim) if x.numel() else indices


def _next_number(values: Tensor, indices: Tensor, x: Tensor, dim: int) -> Pair:
    moved = values.clone()
    moved.view(torch.int32 if moved.itemsize == 4 else torch.int16).view(-1)[-1:] += 1
    return moved, indices


def _signed_nan(x: Tensor, dim: int, worst: float) -> Tensor:
    return torch.where(x.isnan() & torch.signbit(x), -torch.inf, x)


def _without(x: Tensor, dim: int, place: int, worst: float) -> Tensor:
    changed = x.clone()
    if x.dim() and x.shape[dim]:
        changed.select(dim, place).fill_(worst)
    return changed


def _without_tail(x: Tensor, dim: int, worst: float) -> Tensor:
    changed, n = x.clone(), _length(x, dim)
    whole = n // VECTOR * VECTOR
    if x.dim() and whole:
        changed.narrow(dim, whole, n - whole).fill_(worst)
    return changed


def _reversed(values: Tensor, indices: Tensor, x: Tensor, dim: int) -> Pair:
    return (values.flip(dim), indices.flip(dim)) if values.dim() else (values, indices)


def _swapped_last(values: Tensor, indices: Tensor, x: Tensor, dim: int) -> Pair:
    def swapped(t: Tensor) -> Tensor:
        if not t.dim() or t.shape[dim] < 2:
            return t
        most = t.shape[dim] - 2
        return torch.cat((t.narrow(dim, 0, most), t.narrow(dim, most, 2).flip(dim)), dim)

    return swapped(values), swapped(indices)
