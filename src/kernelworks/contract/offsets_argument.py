"""A kind of argument: where each of several groups of rows ends. And what integers among the arguments may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import describe, need_dtype, need_tensor
from kernelworks.contract.tensor_argument import GivenArguments, Wrong

__all__ = ["INDICES", "Offsets", "check_offsets", "first_wrong", "refuse_offset"]

INDICES = (torch.int32, torch.int64)


@dataclass(frozen=True)
class Offsets:
    """Where each group of the rows of another argument ends: as many as ``groups`` has matrices, int32 or int64. What
    they hold (they rise, and end within the rows) is looked at where a kernel is launched (``check_offsets``)."""

    of: str
    groups: str
    schema = "Tensor"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_tensor(name, value)
        need_dtype(name, value, INDICES)
        given.check_device(name, value)
        groups = given[self.groups].shape[0]
        if tuple(value.shape) != (groups,):
            raise ValueError(
                f"{name} must have shape [{groups}], an end for each of {self.groups}; got {describe(value)}"
            )

    def right(self, given: GivenArguments) -> Any:
        groups, rows = given[self.groups].shape[0], given[self.of].shape[0]
        return torch.tensor([rows * (g + 1) // groups for g in range(groups)], dtype=torch.int32)

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        right = self.right(given)
        yield f"{name} are a list", right.tolist(), TypeError, f"{name} must be a torch.Tensor"
        yield f"{name} of floats", right.float(), TypeError, f"{name} must have dtype int32, int64"
        yield f"{name} of too few groups", right[1:], ValueError, f"{name} must have shape [{len(right)}]"
        yield f"{name} of two dimensions", right[None], ValueError, f"{name} must have shape [{len(right)}]"
        rows = given[self.of].shape[0]
        for what, values in (
            ("that fall", right.flip(0)),
            ("beyond the rows", right + 1),
            ("below 0", right - rows - 1),
        ):
            yield f"{name} {what}", values, IndexError, f"{name} must rise from 0 to at most {rows}"

    def __str__(self) -> str:
        return f"int32 or int64, where each group of {self.of}'s rows ends, one for each of {self.groups}"


def refuse_offset(name: str, offsets: Tensor, place: int, rows: int) -> None:
    """Raises IndexError for the group whose end cannot be."""
    before = int(offsets[place - 1]) if place else 0
    raise IndexError(
        f"{name} must rise from 0 to at most {rows}, the rows; "
        f"got {int(offsets[place])} after {before} for group {place}"
    )


def first_wrong(offsets: Tensor, rows: int) -> int:
    """The first group that ends before it begins, or beyond the rows; -1 if there is none."""
    begin = 0
    for group, end in enumerate(offsets.tolist()):
        if not begin <= end <= rows:
            return group
        begin = end
    return -1


def check_offsets(name: str, offsets: Tensor, rows: int) -> None:
    """Raises IndexError unless each group ends where it begins or later, and the last within the rows. Waits for a
    GPU."""
    place = first_wrong(offsets, rows)
    if place >= 0:
        refuse_offset(name, offsets, place, rows)
