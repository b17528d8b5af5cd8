"""Where a program runs: the device that is found, and the size that belongs to it."""

from __future__ import annotations

from typing import TypeVar

import torch

__all__ = ["DEVICE", "sized"]

T = TypeVar("T")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def sized(*, cpu: T, gpu: T) -> T:
    """The one of two sizes that is meant for the device: a few tenths of a second on two cores, or what an H200 is
    bought for."""
    return gpu if DEVICE == "cuda" else cpu
