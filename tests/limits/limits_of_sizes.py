"""Sizes that no kernel of ours takes, each with a call that shows it; the table is in ``limits.py``."""

from __future__ import annotations

import torch
from limit import Limit, x

import kernelworks as kw

__all__ = ["SIZES"]


def by_name(N: int) -> None:
    kw.rfft(x(3, N), kernel="scalar")


def by_torch(N: int) -> tuple[torch.Tensor, torch.Tensor]:
    line = torch.complex(x(3, N), x(3, N))
    return kw.fft(line), torch.fft.fft(line)


SIZES = [
    Limit(
        "Fourier transforms of a length with a prime factor above 7 are torch's: no kernel here has Bluestein's or "
        "Rader's algorithm.", lambda: by_name(22), RuntimeError, "prime factors are 2, 3, 5 and 7; 22 has 11",
    ),
    Limit(
        "So are those of more than 2^20 numbers.", lambda: by_name(2**20 + 2), RuntimeError, "lengths up to 1048576",
    ),
    Limit("`fft` of such a length runs torch's function.", lambda: by_torch(17)),
    Limit(
        "`eigh` takes matrices of at most 32 rows; larger ones are torch's.",
        lambda: kw.eigh(x(2, 33, 33), kernel="scalar"), RuntimeError, "at most 32 rows",
    ),
]  # fmt: skip
