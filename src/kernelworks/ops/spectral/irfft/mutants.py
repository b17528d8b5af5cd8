"""Known-wrong inverse transforms: what only they get wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.spectral.rfft.contract import frequency_weights
from kernelworks.ops.spectral.rfft.plan import IRFFT

__all__ = ["MUTANTS"]

Definition = Callable[[Tensor, int | None, int, str | None], Tensor]


def _of(change: Callable[[Tensor, int, int], Tensor]) -> Definition:
    """The definition of frequencies that ``change(x, N, dim)`` made of the right ones."""

    def run(x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
        N = n or 2 * (x.shape[dim] - 1)
        return IRFFT(change(x.to(torch.complex128), N, dim), N, dim, norm).float()

    return run


def _last_lost(x: Tensor, N: int, dim: int) -> Tensor:
    x = x.clone()
    if N % 2 == 0 and x.shape[dim] > N // 2:
        x.select(dim, N // 2).zero_()
    return x


def _single(x: Tensor, N: int, dim: int) -> Tensor:
    halves = frequency_weights(N, dim, x, 0.5)
    used = min(x.shape[dim], N // 2 + 1)
    return x.narrow(dim, 0, used) * halves.narrow(dim, 0, used)


def _with_imaginary_ends(x: Tensor, N: int, dim: int) -> Tensor:
    x = x.clone()
    if x.shape[dim]:
        first = x.select(dim, 0)
        first += first.imag
    return x


def _even_always(x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    N = n or 2 * (x.shape[dim] - 1)
    y = IRFFT(x.to(torch.complex128), N // 2 * 2 or 1, dim, norm)
    if y.shape[dim] < N:
        y = torch.cat((y, torch.zeros_like(y.narrow(dim, 0, 1))), dim)
    return y.float()


def _norm_ignored(x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    return IRFFT(x.to(torch.complex128), n, dim).float()


MUTANTS = (
    Mutant("conjugated", _of(lambda x, N, dim: x.conj().resolve_conj()), "the line runs backwards"),
    Mutant(
        "parts exchanged", _of(lambda x, N, dim: torch.complex(x.imag, x.real)), "real and imaginary part change places"
    ),
    Mutant("last frequency left out", _of(_last_lost), "the frequency N / 2 is not read"),
    Mutant("frequencies once", _of(_single), "what stands for two frequencies is counted once"),
    Mutant("imaginary ends", _of(_with_imaginary_ends), "the imaginary part of the first frequency counts"),
    Mutant("even always", _even_always, "an odd length is taken for the even one below"),
    Mutant("norm ignored", _norm_ignored, "norm is ignored"),
)
