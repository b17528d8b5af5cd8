"""Tensors without data, in the place of others: for what asks an op for shapes alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import TensorSpec

__all__ = ["on_meta", "without_data"]


def without_data(value: Any) -> Any:
    """What specs say, as tensors that have no data."""
    if isinstance(value, TensorSpec):
        return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device="meta")
    return [without_data(v) for v in value] if isinstance(value, tuple) else value


def on_meta(value: Any) -> Any:
    """A tensor (or a list of them) without its data; anything else as it is."""
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return [on_meta(v) for v in value] if isinstance(value, (list, tuple)) else value
