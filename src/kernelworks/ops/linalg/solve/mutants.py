"""Known-wrong solves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.linalg.solve.contract import SOLVE, as_columns, is_vector

__all__ = ["MUTANTS"]

LANES = 16  # systems that a kernel solves at once


def _without_pivots(A: Tensor, B: Tensor) -> Tensor:
    """In float32, by the diagonal as it is."""
    a, x = A.float().clone(), as_columns(A, B).float().clone()
    N = a.shape[-1]
    for k in range(N):
        factor = a[..., k + 1 :, k : k + 1] / a[..., k : k + 1, k : k + 1]
        x[..., k + 1 :, :] -= factor * x[..., k : k + 1, :]
        a[..., k + 1 :, :] -= factor * a[..., k : k + 1, :]
    solved: Tensor = torch.linalg.solve_triangular(a, x, upper=True)
    return solved.squeeze(-1) if is_vector(A, B) else solved


def _forgotten_swap(A: Tensor, B: Tensor) -> Tensor:
    """Rows of A change places, those of B do not."""
    _, L, U = torch.linalg.lu(A)
    return SOLVE(L @ U, B)


def _of_the_triangle(A: Tensor, B: Tensor) -> Tensor:
    return SOLVE(A.triu() + torch.diag_embed((A.diagonal(dim1=-2, dim2=-1) == 0).double()), B)


def _stale_tail(A: Tensor, B: Tensor) -> Tensor:
    x = SOLVE(A, B).clone()
    if x.dim() == 3 and len(x) % LANES:
        x[len(x) // LANES * LANES :] = 0.0
    return x


def _last_row(A: Tensor, B: Tensor) -> Tensor:
    x = SOLVE(A, B).clone()
    (x[..., -1:] if is_vector(A, B) else x[..., -1:, :]).zero_()
    return x


def _of_the_first(A: Tensor, B: Tensor) -> Tensor:
    return SOLVE(A[:1].expand_as(A) if A.dim() > 2 else A, B)


def _mutant(name: str, change: Callable[[Tensor, Tensor], Tensor], why: str) -> Mutant:
    """In float64 and rounded once, with one thing amiss."""
    return Mutant(name, lambda A, B: change(A.double(), B.double()).to(B.dtype), why)


MUTANTS = (
    _mutant("without pivots", _without_pivots, "rows never change places"),
    _mutant("forgotten swap", _forgotten_swap, "the right-hand sides keep their places where rows change theirs"),
    _mutant("transposed", lambda A, B: SOLVE(A.mT, B), "columns are taken for rows"),
    _mutant("upper triangle", _of_the_triangle, "what lies below the diagonal is not looked at"),
    _mutant("stale tail", _stale_tail, "systems that do not fill a vector are never written"),
    _mutant("bfloat16 inside", lambda A, B: SOLVE(A.bfloat16().double(), B), "the matrix is rounded to bfloat16 first"),
    _mutant("last row lost", _last_row, "the last row is never written"),
    _mutant("zeros", lambda A, B: torch.zeros_like(SOLVE(A, B)), "nothing is written"),
    _mutant("first matrix for all", _of_the_first, "every system has the first matrix"),
)
