"""One thing that is not supported, and a call that shows how it is declined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Limit", "x"]


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
