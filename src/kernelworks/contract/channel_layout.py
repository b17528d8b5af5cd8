"""How a tensor [N, C, *] lies, and how it is cut into the rows that a norm of channels takes.

A **row** is what shares one mean: a group of channels of a sample (``GROUPS``), a channel of a sample (``CHANNELS``),
or a channel of all samples (``BATCH``). Parameters and running statistics run along the channels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["BATCH", "CHANNELS", "GROUPS", "empty_like_input", "memory_format", "problem_of", "rows_of_sample"]

GROUPS, CHANNELS, BATCH = "groups", "channels", "batch"


def memory_format(x: Tensor) -> torch.memory_format:
    """How a result of x's shape lies: with the channels side by side where x does, else contiguous."""
    if not x.is_contiguous():
        for dims, candidate in ((4, torch.channels_last), (5, torch.channels_last_3d)):
            if x.dim() == dims and x.is_contiguous(memory_format=candidate):
                return candidate
    return torch.contiguous_format


def empty_like_input(x: Tensor) -> Tensor:
    """An output."""
    return torch.empty_like(x, memory_format=memory_format(x))


def rows_of_sample(rows: str, x: Tensor, groups: int) -> int:
    """How many rows of a sample there are."""
    return groups if rows == GROUPS else x.shape[1]


def problem_of(rows: str, x: Tensor, groups: int) -> tuple[int, int, int, int, bool]:
    """N, C, elements of a channel in a sample, rows of a sample, whether all samples are one row."""
    n, c = x.shape[:2]
    return n, c, math.prod(x.shape[2:]), rows_of_sample(rows, x, groups), rows == BATCH
