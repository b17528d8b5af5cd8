"""Known-wrong transforms of complex lines."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["mutants_of"]

Length = int | None
Word = str | None


def mutants_of(function: Callable[..., Tensor]) -> tuple[Mutant, ...]:
    """Those of torch's function, whose name is the op's."""

    def of(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        def run(x: Tensor, n: Length, dim: int, norm: Word) -> Tensor:
            return function(change(x.to(torch.complex128)), n, dim, norm).to(torch.complex64)

        return run

    def conjugated(x: Tensor, n: Length, dim: int, norm: Word) -> Tensor:
        made = function(x.to(torch.complex128).conj().resolve_conj(), n, dim, norm)
        return made.conj().resolve_conj().to(torch.complex64)

    def last_left_out(x: Tensor, n: Length, dim: int, norm: Word) -> Tensor:
        made = function(x.to(torch.complex128), n, dim, norm)
        made.select(dim, -1).zero_()
        return made.to(torch.complex64)

    def never_filled(x: Tensor, n: Length, dim: int, norm: Word) -> Tensor:
        have = x.shape[dim]
        made = function(x.to(torch.complex128), min(n or have, have) or 1, dim, norm).to(torch.complex64)
        missing = [
            (n or have) - made.shape[dim] if d == dim % made.dim() else size for d, size in enumerate(made.shape)
        ]
        return torch.cat((made, made.new_zeros(missing)), dim)

    def from_the_end(x: Tensor, n: Length, dim: int, norm: Word) -> Tensor:
        have = x.shape[dim]
        cut = x.narrow(dim, max(0, have - (n or have)), min(n or have, have))
        return function(cut.to(torch.complex128), n, dim, norm).to(torch.complex64)

    def norm_ignored(x: Tensor, n: Length, dim: int, norm: Word) -> Tensor:
        return function(x.to(torch.complex128), n, dim).to(torch.complex64)

    return (
        Mutant("the other sign", conjugated, "e^(2 pi i j k / N) for its conjugate: the inverse's direction"),
        Mutant("real parts alone", of(lambda x: x.real + 0j), "imaginary parts are not read"),
        Mutant("parts exchanged", of(lambda x: torch.complex(x.imag, x.real)), "both parts change places"),
        Mutant("last number left out", last_left_out, "the last number is never written"),
        Mutant("never filled", never_filled, "a line shorter than n is not filled with zeros"),
        Mutant("cut at the front", from_the_end, "of a longer line the last n numbers are taken"),
        Mutant("norm ignored", norm_ignored, "norm is ignored"),
    )
