"""Precision that nobody asked for: the reference's own ops on operands of fewer bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["FEWER_BITS", "Narrow", "bfloat16", "half", "tf32"]

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution"}


def tf32(tensor: Tensor) -> Tensor:
    """float32 with the ten bits of fraction that tensor cores keep of it."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def bfloat16(tensor: Tensor) -> Tensor:
    return tensor.to(torch.bfloat16).float()


def half(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float16).float()


class Narrow(TorchDispatchMode):
    """Operands in float32 are rounded to fewer bits before each op, or before products alone; what is written in place
    is left as it is."""

    def __init__(self, round_to: Callable[[Tensor], Tensor], *, products: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.round_to, self.products = round_to, products

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if (name in PRODUCTS) if self.products else not (func._schema.is_mutable or func.is_view):
            args = pytree.tree_map(self._rounded, args)
        return func(*args, **(kwargs or {}))

    def _rounded(self, value: Any) -> Any:
        narrow = isinstance(value, Tensor) and value.dtype is torch.float32 and value.numel()
        return self.round_to(value) if narrow else value


# What a problem check tries, by name: how operands are rounded, and whether those of products alone.
FEWER_BITS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "TF32 in products": (tf32, True),
    "half precision": (half, False),
    "bfloat16": (bfloat16, False),
}
