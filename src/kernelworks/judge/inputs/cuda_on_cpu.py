"""A problem that was written for a GPU, run where there need not be one: what it asks for there is made here."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

__all__ = ["CudaOnCpuMode"]


def _here(value: Any) -> Any:
    named = isinstance(value, str) and value.partition(":")[0] == "cuda"
    there = isinstance(value, torch.device) and value.type == "cuda"
    return torch.device("cpu") if named or there else value


class CudaOnCpuMode(TorchFunctionMode):
    """While it is on, ``device="cuda"``, ``.to("cuda")`` and ``.cuda()`` leave everything on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "cuda":
            return args[0]
        if func is torch.device:
            return _here(func(*args, **(kwargs or {})))
        args, kwargs = pytree.tree_map(_here, (args, kwargs or {}))
        return func(*args, **kwargs)
