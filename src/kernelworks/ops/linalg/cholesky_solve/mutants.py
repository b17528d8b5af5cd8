"""Known-wrong solves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.linalg.cholesky_solve.contract import SOLVE

__all__ = ["MUTANTS"]

LANES = 16  # systems that a kernel solves at once


def _substituted(B: Tensor, L: Tensor, transposed: bool, upper: bool) -> Tensor:
    """One of the two substitutions."""
    M = L.double().triu() if upper else L.double().tril()
    solved: Tensor = torch.linalg.solve_triangular(M.mT if transposed else M, B.double(), upper=upper is not transposed)
    return solved


def _stale_tail(B: Tensor, L: Tensor, upper: bool) -> Tensor:
    x = SOLVE(B, L, upper).clone()
    if x.dim() == 3 and len(x) % LANES:
        x[len(x) // LANES * LANES :] = 0.0
    return x


def _halved_precision(B: Tensor, L: Tensor, upper: bool) -> Tensor:
    return SOLVE(B, L.bfloat16().double(), upper)


def _unscaled(B: Tensor, L: Tensor, upper: bool) -> Tensor:
    """The diagonal is taken for ones."""
    d = L.diagonal(dim1=-2, dim2=-1)
    return SOLVE(B, L - torch.diag_embed(d) + torch.eye(L.shape[-1], dtype=L.dtype), upper)


def _last_row(B: Tensor, L: Tensor, upper: bool) -> Tensor:
    x = SOLVE(B, L, upper).clone()
    x[..., -1:, :] = 0.0
    return x


def _of_the_square(B: Tensor, L: Tensor, upper: bool) -> Tensor:
    """The triangle that is not to be read is read."""
    A = (L.mT @ L if upper else L @ L.mT).nan_to_num()
    solved: Tensor = torch.linalg.pinv(A) @ B
    return solved


def _of_the_first(B: Tensor, L: Tensor, upper: bool) -> Tensor:
    return SOLVE(B, L[:1].expand_as(L) if L.dim() > 2 else L, upper)


def _backwards(B: Tensor, L: Tensor, upper: bool) -> Tensor:
    return SOLVE(B, L, upper).flip(-2)


def _mutant(name: str, change: Callable[[Tensor, Tensor, bool], Tensor], why: str) -> Mutant:
    """In float64 and rounded once, with one thing amiss."""
    return Mutant(name, lambda B, L, upper: change(B.double(), L.double(), upper).to(B.dtype), why)


MUTANTS = (
    _mutant("upper ignored", lambda B, L, upper: SOLVE(B, L, False), "the lower triangle is always read"),
    _mutant("upper always", lambda B, L, upper: SOLVE(B, L, True), "the upper triangle is always read"),
    _mutant(
        "first substitution alone", lambda B, L, upper: _substituted(B, L, upper, upper),
        "the second substitution is left out",
    ),
    _mutant("from the last row", _backwards, "the result is written from the last row"),
    _mutant("whole square", _of_the_square, "the triangle that is not to be read is read"),
    _mutant("stale tail", _stale_tail, "systems that do not fill a vector are never written"),
    _mutant("bfloat16 inside", _halved_precision, "the factor is rounded to bfloat16 first"),
    _mutant("unit diagonal", _unscaled, "the diagonal is taken for ones"),
    _mutant("last row lost", _last_row, "the last row is never written"),
    _mutant("zeros", lambda B, L, upper: torch.zeros_like(SOLVE(B, L, upper)), "nothing is written"),
    _mutant("first matrix for all", _of_the_first, "every system has the first matrix"),
)  # fmt: skip
