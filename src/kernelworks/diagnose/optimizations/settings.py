"""Process-wide settings that several plans may change at once: an undo restores only what is still ours.

Plans are applied and undone in any order, by programs that set the same things themselves meanwhile.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["Setting", "held_elsewhere"]

T = TypeVar("T")


class Setting(Generic[T]):
    """A setting of the process, such as its number of threads. The last plan to leave restores the value that the first
    one found, in whatever order they leave. What somebody else has set meanwhile stays."""

    def __init__(self, get: Callable[[], T], put: Callable[[T], object]) -> None:
        self.get, self.put = get, put
        self._wanted: list[list[T]] = []  # one each, compared by identity
        self._was: list[T] = []

    def want(self, value: T) -> Callable[[], None]:
        """Sets it; returns what undoes that."""
        if not self._wanted:
            self._was = [self.get()]
        mine = [value]
        self._wanted.append(mine)
        self.put(value)

        def back() -> None:
            (ours,) = self._wanted[-1]
            self._wanted = [each for each in self._wanted if each is not mine]
            if self.get() == ours:
                (value,) = self._wanted[-1] if self._wanted else self._was
                self.put(value)

        return back


def held_elsewhere(tensor: Tensor, *, knows: int = 1) -> bool:
    """Whether others than the ``knows`` tensors that the caller knows of (itself among them) lie in a tensor's memory,
    or somebody holds the memory itself: a view, an alias, a buffer that it is cut from, an array of NumPy's."""
    if tensor.device.type == "cpu" and tensor.is_shared():
        return True
    holders, names = _holders(tensor)
    holders_alone, names_alone = _alone()
    part = tensor.untyped_storage().nbytes() != tensor.nbytes
    return part or holders - holders_alone != knows - 1 or names > names_alone


def _holders(tensor: Tensor) -> tuple[int, int]:
    """How often its memory is held in C++, and in Python."""
    storage: Any = tensor.untyped_storage()
    count: Any = torch._C._storage_Use_Count
    return int(count(storage._cdata)), sys.getrefcount(storage)


@functools.cache
def _alone() -> tuple[int, int]:
    """The counts of a tensor that nobody else holds, while we look at it."""
    return _holders(torch.empty(1, device="cpu"))
