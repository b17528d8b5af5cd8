"""Known-wrong eigenvalues and eigenvectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.linalg.eigh.contract import EIGH, lower_symmetric

__all__ = ["MUTANTS"]

Pair = tuple[Tensor, Tensor]
LANES = 16  # matrices that a kernel takes at once


def _turned(w: Tensor, V: Tensor) -> Pair:
    """The first two eigenvectors turned in their plane: still at right angles."""
    if V.shape[-1] < 2:
        return w, V
    x, y = V[..., :1], V[..., 1:2]
    return w, torch.cat([0.8 * x + 0.6 * y, 0.8 * y - 0.6 * x, V[..., 2:]], -1)


def _stale_tail(w: Tensor, V: Tensor) -> Pair:
    V = V.clone()
    if V.dim() == 3 and len(V) % LANES:
        V[len(V) // LANES * LANES :] = 0.0
    return w, V


def _mutant(name: str, change: Callable[[Tensor, Tensor], Pair], why: str) -> Mutant:
    """In float64 and rounded once, with one thing amiss."""

    def run(A: Tensor) -> Pair:
        w, V = change(*EIGH(A.double()))
        return w.to(A.dtype).contiguous(), V.to(A.dtype).contiguous()

    return Mutant(name, run, why)


def _narrowed(A: Tensor) -> Pair:
    w, V = EIGH(A.bfloat16().double())
    return w.to(A.dtype), V.to(A.dtype)


def _of_the_upper(A: Tensor) -> Pair:
    w, V = EIGH(A.double().mT)
    return w.to(A.dtype), V.to(A.dtype)


def _of_the_first(A: Tensor) -> Pair:
    w, V = EIGH((A[:1].expand_as(A) if A.dim() > 2 else A).double())
    return w.to(A.dtype), V.to(A.dtype)


def _short(A: Tensor) -> Pair:
    """After one sweep of rotations by one eigenvector: what is left beside the diagonal counts for nothing."""
    S = lower_symmetric(A.double())
    V = torch.linalg.qr(S)[0]
    w, order = (V.mT @ S @ V).diagonal(dim1=-2, dim2=-1).sort(-1)
    return w.to(A.dtype), V.gather(-1, order.unsqueeze(-2).expand_as(V)).to(A.dtype)


MUTANTS = (
    _mutant("falling", lambda w, V: (w.flip(-1), V.flip(-1)), "the largest eigenvalue comes first"),
    _mutant("vectors in another order", lambda w, V: (w, V.flip(-1)), "the values are sorted, the vectors are not"),
    _mutant("rows are the vectors", lambda w, V: (w, V.mT), "V is written transposed"),
    _mutant("turned in a plane", _turned, "two vectors are turned: at right angles, and no eigenvectors"),
    _mutant(
        "first vector twice", lambda w, V: (w, V[..., :1].expand_as(V)), "each is an eigenvector, all are the same"
    ),
    _mutant("vectors of length 1.001", lambda w, V: (w, V * 1.001), "nobody scales them"),
    _mutant("values without signs", lambda w, V: (w.abs(), V), "as of singular values"),
    _mutant("stale tail", _stale_tail, "matrices that do not fill a vector are never written"),
    _mutant("zeros", lambda w, V: (w, torch.zeros_like(V)), "the vectors are never written"),
    Mutant("bfloat16 inside", _narrowed, "the matrix is rounded to bfloat16 first"),
    Mutant("upper triangle", _of_the_upper, "the triangle above the diagonal is read"),
    Mutant("first matrix for all", _of_the_first, "every result is the first matrix's"),
    Mutant("stopped early", _short, "the rotations stop long before the matrix is diagonal"),
)
