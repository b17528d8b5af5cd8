"""Other arithmetic for the same program: the least accurate honest order of summation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["OneByOne"]


class OneByOne(TorchDispatchMode):
    """Sums and products of matrices term by term from the last to the first, each partial sum rounded: the least
    accurate honest order there is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm"):
            return _product(*args)
        if name == "addmm" and not kwargs:
            return args[0] + _product(*args[1:])
        if name in ("sum", "mean") and len(args) > 1 and len(args[1]) == 1 and args[0].is_floating_point():
            x, (dim,), keep = args[0], args[1], len(args) > 2 and args[2]
            total = torch.zeros_like(x.select(dim, 0))
            for term in reversed(x.unbind(dim)):
                total += term
            total = total / x.shape[dim] if name == "mean" else total
            return total.unsqueeze(dim) if keep else total
        return func(*args, **(kwargs or {}))


def _product(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=a.dtype)
    for k in reversed(range(a.shape[-1])):
        total += a.select(-1, k).unsqueeze(-1) * b.select(-2, k).unsqueeze(-2)
    return total
