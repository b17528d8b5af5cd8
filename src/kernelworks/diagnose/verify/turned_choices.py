"""Answers in 16 bits of a module that chooses by values: the experts of a token.

Rounding turns a close choice, and a token that goes to another expert is answered otherwise, by far more than any
rounding. No bound on the norm of all errors can be told from a few runs then: one more token that is turned is more
than all roundings together. So the errors of rows (of tokens) are held against those of the original's own, in order
of their size: at each size twice as many rows as in any of its perturbed runs. Rows that nothing turned are held as
closely as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["LEAST_ROWS", "ChosenIndices", "TurnedRows", "indices_chosen", "number_of_rows"]

MOST_BYTES = 1 << 28  # of indices
CHOOSING = {"topk", "sort", "argmax", "argmin", "max", "min", "kthvalue", "bucketize", "searchsorted"}
LEAST_ROWS = 4  # of fewer rows the norm says as much
MORE_ROWS = 2  # times as many as of the original's own runs


class ChosenIndices(TorchDispatchMode):
    """While it is on, ``found`` takes the indices that ops choose by values. Those of ``topk`` in ascending order: in
    which order it names them is no other choice."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Tensor] = []
        self._bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in CHOOSING and isinstance(args[0], Tensor) and args[0].is_floating_point():
            for one in result if isinstance(result, tuple) else (result,):
                if type(one) is Tensor and not one.is_floating_point():
                    self._bytes += one.nbytes
                    if self._bytes <= MOST_BYTES:
                        self.found.append(one.sort(-1).values if name == "topk" and one.dim() else one.clone())
        return result

    def differ_from(self, other: ChosenIndices) -> bool:
        """Whether something else was chosen at the same place."""
        if len(self.found) != len(other.found):
            return True
        return any(a.shape != b.shape or not a.equal(b) for a, b in zip(self.found, other.found, strict=True))


def indices_chosen(run: Callable[[], Any]) -> ChosenIndices:
    """Of one run."""
    chosen = ChosenIndices()
    with chosen:
        run()
    return chosen


def number_of_rows(tensor: Tensor) -> int:
    """Of its last dimension."""
    return tensor.numel() // tensor.shape[-1] if tensor.dim() > 1 and tensor.numel() else 1


@dataclass(frozen=True)
class TurnedRows:
    """``allowed`` are errors of rows, the largest first: of the original against the ``reference``, or of one of its
    perturbed runs, whichever is more."""

    reference: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, before: Tensor, reference: Tensor, moved: Sequence[Tensor]) -> TurnedRows:
        errors = [_errors(before, reference), *(_errors(one, before) for one in moved)]
        return cls(reference, torch.stack(errors).amax(0))

    def agrees(self, after: Tensor, factor: float, unit: float) -> bool:
        """Whether the rows of ``after`` are as near, but for ``factor`` and one rounding of ``unit``."""
        errors = _errors(after, self.reference)[::MORE_ROWS]
        size = _rows(self.reference).norm(dim=-1).amax()
        return bool((errors <= factor * self.allowed[: len(errors)] + unit * size).all())

    def error_of(self, one: Tensor) -> float:
        """Of all rows, relative to the reference."""
        size = _rows(self.reference).norm().clamp_min(1e-300)
        return float(_errors(one, self.reference).norm() / size)

    def says(self, factor: float, most: float) -> bool:
        """Whether it lets pass no row of half of them by more than a share ``most`` of what is in a row."""
        middle = len(self.allowed) // 2
        size = _rows(self.reference).norm(dim=-1).median()
        return bool(factor * self.allowed[middle // MORE_ROWS] <= most * size)


def _rows(tensor: Tensor) -> Tensor:
    return tensor.double().reshape(-1, tensor.shape[-1]).nan_to_num(0.0, 0.0, 0.0)


def _errors(one: Tensor, other: Tensor) -> Tensor:
    """The 2-norms of the rows' differences, the largest first."""
    sizes: Tensor = (_rows(one) - _rows(other)).norm(dim=-1)
    return torch.sort(sizes, descending=True).values
