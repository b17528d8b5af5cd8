"""What a GPU kernel says of arguments that it cannot use, without a wait of the host.

Two numbers lie where both see them (pinned memory). A kernel that meets an index outside its table writes them and
reads nothing there; the next call finds them and raises. Two programs that write at once name one of both places.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["FaultWords"]


class FaultWords:
    """The two numbers of one op: ``place``, 0 while nothing is wrong, and ``size``, what the kernel adds to it.

    ``message`` words what was wrong: of place, size and whose call it was."""

    def __init__(self, message: Callable[[int, int, str], str]) -> None:
        self.message = message
        self._made = functools.cache(self._make)

    def _make(self, device: str) -> tuple[Tensor, Any]:
        kept = torch.zeros(2, dtype=torch.int64, pin_memory=device == "cuda")
        return kept, (ctypes.c_int64 * 2).from_address(kept.data_ptr())

    def of(self, device: torch.device) -> Tensor:
        """Where a kernel on this device leaves its word. Raises IndexError if one of an earlier call did."""
        self._raise(device, "an earlier call")
        return self._made(device.type)[0]

    def raise_of_this_call(self, device: torch.device) -> None:
        """Raises IndexError if this call left word: what is known at once where kernels run on the host."""
        if device.type != "cuda":
            self._raise(device, "this call")

    def _raise(self, device: torch.device, which: str) -> None:
        words = self._made(device.type)[1]
        if words[0]:
            place, size = words[0], words[1]
            words[0] = 0
            raise IndexError(self.message(place, size, which))
