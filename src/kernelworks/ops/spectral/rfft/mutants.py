"""Known-wrong transforms: what only a Fourier transform gets wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.spectral.rfft.plan import RFFT, scale_of

__all__ = ["MUTANTS"]

Length = int | None
Word = str | None


def _last_left_out(x: Tensor, n: Length, dim: int, norm: Word) -> Tensor:
    y = RFFT(x.double(), n, dim, norm)
    y.select(dim, -1).zero_()
    return y.to(torch.complex64)


def _own_length(x: Tensor, n: Length, dim: int, norm: Word) -> Tensor:
    """n cuts, and never fills."""
    have = x.shape[dim]
    y = RFFT(x.double(), min(n or have, have) or 1, dim, norm).to(torch.complex64)
    K = (n or have) // 2 + 1
    missing = [K - y.shape[dim] if d == dim % y.dim() else size for d, size in enumerate(y.shape)]
    return torch.cat((y, y.new_zeros(missing)), dim)


def _from_the_end(x: Tensor, n: Length, dim: int, norm: Word) -> Tensor:
    have = x.shape[dim]
    cut = x.narrow(dim, max(0, have - (n or have)), min(n or have, have))
    return RFFT(cut.double(), n, dim, norm).to(torch.complex64)


def _scaled_by_the_line(x: Tensor, n: Length, dim: int, norm: Word) -> Tensor:
    N, have = n or x.shape[dim], max(1, x.shape[dim])
    y = RFFT(x.double(), n, dim)
    return (y * scale_of(norm, have if norm else N, False)).to(torch.complex64)


MUTANTS = (
    Mutant("last frequency left out", _last_left_out, "the frequency N / 2 is never written"),
    Mutant("never filled", _own_length, "a line shorter than n is not filled with zeros"),
    Mutant("cut at the front", _from_the_end, "of a longer line the last n numbers are taken"),
    Mutant("scaled by the line", _scaled_by_the_line, "norm takes the line's length for the transform's"),
    Mutant(
        "backward for forward", lambda x, n, dim, norm: RFFT(x.double(), n, dim).to(torch.complex64),
        "norm is ignored",
    ),
)  # fmt: skip
