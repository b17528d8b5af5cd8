"""Known-wrong versions of argmax beside those of every reduction. The proof must reject every one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _of(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda x, dim, keepdim: torch.argmax(change(x), dim, keepdim)


def _last(x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    line, along = (x.reshape(-1), 0) if dim is None else (x, dim)
    n = line.shape[along] if line.dim() else 1
    found = n - 1 - torch.argmax(line.flip(along) if line.dim() else line, along, dim is not None and keepdim)
    return found.reshape(torch.argmax(x, dim, keepdim).shape)


def _signed(x: Tensor) -> Tensor:
    return torch.where(x == 0, torch.where(torch.signbit(x), -1e-30, 1e-30).to(x.dtype), x)


MUTANTS = (
    Mutant("last of equals", _last, "of equal elements the last is taken"),
    Mutant("signed zeros", _of(_signed), "0 is taken to be more than -0"),
    Mutant("argmin", _of(torch.neg), "the smallest element"),
    Mutant("magnitude", _of(torch.abs), "the largest magnitude"),
    Mutant("rounded first", _of(torch.Tensor.bfloat16), "elements are rounded to bfloat16, and become equal"),
    Mutant("32 bits", lambda *a: torch.argmax(*a).int(), "indices of another dtype than int64"),
    Mutant("within a block", lambda *a: torch.argmax(*a) % 1024, "the index within a block, not within the line"),
    Mutant("of the whole", lambda x, d, k: torch.argmax(x, d, k) * 0 + torch.argmax(x), "the index in all of x"),
)
