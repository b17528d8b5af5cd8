"""What the integers of an argument may be, so that whoever makes up arguments makes ones that may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Ends", "IndicesOf", "Limit", "size_along"]


@dataclass(frozen=True)
class IndicesOf:
    """Each is an index along a dimension of another argument, or along the one that an argument names."""

    other: str
    dim: int | str

    def fill(self, tensor: Tensor, size: int) -> Tensor:
        """Random ones, where that dimension has this size."""
        return tensor.random_(0, max(1, size))


@dataclass(frozen=True)
class Ends:
    """They rise, and say where groups of another's elements along a dimension end, the last at all of them; with
    ``from_zero`` the first is 0, where the first group begins."""

    other: str
    dim: int
    from_zero: bool = False

    def fill(self, tensor: Tensor, size: int) -> Tensor:
        """Those of groups that are as long as each other, or nearly."""
        count = tensor.shape[0]
        place = torch.arange(count, device=tensor.device) + (0 if self.from_zero else 1)
        return tensor.copy_(place * size // max(1, count - self.from_zero))


Limit = IndicesOf | Ends


def size_along(limit: Limit, args: Mapping[str, Any]) -> int:
    """How long the dimension is that a limit is of, of a call's arguments by name; a scalar has one element."""
    dim = args[limit.dim] if isinstance(limit.dim, str) else limit.dim
    shape = args[limit.other].shape
    return int(shape[dim]) if len(shape) else 1
