"""One thing that is not supported, and a call that shows how it is declined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Limit", "heads", "written_between", "x"]


@dataclass(frozen=True)
class Limit:
    """``call`` raises ``error`` that ``says`` so; without an error it returns words that do, or, where there are no
    words, what happens and what torch does."""

    sentence: str
    call: Callable[[], Any]
    error: type[Exception] | None = None
    says: str = ""


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (4, 16), generator=torch.Generator().manual_seed(0))


def written_between(op: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Gradients of an op whose input was overwritten after the call."""
    given = x().requires_grad_() * 1
    result = op(given)
    given.zero_()
    result.sum().backward()


def heads(*shape: int) -> list[torch.Tensor]:
    """Queries, keys and values."""
    return [x(*(shape or (1, 2, 5, 16)))] * 3
