"""``(K + diag(noise)) c = b`` with a kernel's matrix: by Cholesky of K in float64 where K is small, else by conjugate
gradients on products with K, which is not stored.

The preconditioner is a partial Cholesky factor of K with pivots (Harbrecht, Peters and Schneider 2012; Gardner et
al., GPyTorch, 2018): ``P = L L^T + diag(noise)`` with ``L`` [n, rank], inverted by the Woodbury identity. Vectors are
float64; products are float32, so a residual below about ``2^-24 |K| |c|`` is not reached.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelworks.estimators.kernel_functions import KernelFunction

__all__ = ["SMALL", "SOLVERS", "CholeskySolver", "GradientSolver", "make_solver", "partial_cholesky"]

SOLVERS = ("auto", "cholesky", "cg")
SMALL = 1024  # points of which K is stored: 8 MB
RANK = 100  # columns of the preconditioner at most
STALLED_STEPS = 50  # steps without a smaller residual, after which float32's products have no more to give


def partial_cholesky(kernel: KernelFunction, x: Tensor, rank: int, tolerance: float = 1e-8) -> Tensor:
    """L [n, rank] with ``L L^T`` near K: columns of K at the points that are worst served, until the trace of what is
    left is below ``tolerance`` of K's. n rank^2 flop, n rank memory."""
    left = kernel.diagonal(x).double()
    whole = float(left.sum())
    columns: list[Tensor] = []
    for _ in range(min(rank, x.shape[0])):
        pivot = int(left.argmax())
        largest = float(left[pivot])
        if not largest > 0.0 or float(left.clamp(min=0).sum()) <= tolerance * whole:
            break
        column = kernel.block(x, x[pivot : pivot + 1])[:, 0].double()
        for done in columns:
            column = column - done * done[pivot]
        column = column / largest**0.5
        columns.append(column)
        left = left - column.square()
        left[pivot] = 0.0
    if not columns:
        return torch.zeros(x.shape[0], 0, dtype=torch.float64, device=x.device)
    low: Tensor = torch.stack(columns, 1)
    return low


@dataclass(frozen=True)
class CholeskySolver:
    """``L L^T = K + diag(noise)``, stored."""

    factor: Tensor

    def solve(self, b: Tensor) -> Tensor:
        return torch.cholesky_solve(b, self.factor)

    def half_solve(self, b: Tensor) -> Tensor:
        """``L^-1 b``."""
        half: Tensor = torch.linalg.solve_triangular(self.factor, b, upper=False)
        return half


class GradientSolver:
    """Preconditioned conjugate gradients, all columns of b at once."""

    def __init__(self, kernel: KernelFunction, x: Tensor, noise: Tensor, tol: float, max_iter: int, rank: int) -> None:
        self.noise, self.tol, self.max_iter = noise, tol, max_iter
        points = x.float()
        self.product: Callable[[Tensor], Tensor] = lambda v: kernel.matmul(points, points, v.float()).double()
        self.iterations = 0
        low = partial_cholesky(kernel, x, rank)
        self.scaled = low / noise[:, None]
        inner = low.T @ self.scaled
        inner.diagonal().add_(1.0)
        self.factor = torch.linalg.cholesky(inner)

    def _precondition(self, r: Tensor) -> Tensor:
        """``P^-1 r = r / noise - N^-1 L (I + L^T N^-1 L)^-1 L^T N^-1 r``."""
        return r / self.noise[:, None] - self.scaled @ torch.cholesky_solve(self.scaled.T @ r, self.factor)

    def solve(self, b: Tensor) -> Tensor:
        c, r = torch.zeros_like(b), b.clone()
        size = b.norm(dim=0).clamp(min=torch.finfo(torch.float64).tiny)
        z = self._precondition(r)
        p, energy = z.clone(), (r * z).sum(0)
        best, kept, since = r.norm(dim=0) / size, c.clone(), 0
        for step in range(self.max_iter):
            self.iterations = step
            if bool((best <= self.tol).all()) or since >= STALLED_STEPS:
                break
            image = self.product(p) + self.noise[:, None] * p
            curvature = (p * image).sum(0)
            rate = torch.where(curvature > 0, energy / curvature, 0.0)
            c, r = c + rate * p, r - rate * image
            if step % 25 == 24:  # what was added up has drifted from what is
                r = b - self.product(c) - self.noise[:, None] * c
            left = r.norm(dim=0) / size
            better = left < best
            since = 0 if bool((left < 0.99 * best).any()) else since + 1
            kept, best = torch.where(better, c, kept), torch.where(better, left, best)
            z = self._precondition(r)
            before, energy = energy, (r * z).sum(0)
            p = z + torch.where(before > 0, energy / before, 0.0) * p
        if bool((best > self.tol).any()):
            from sklearn.exceptions import ConvergenceWarning

            warnings.warn(
                f"conjugate gradients stopped at a relative residual of {float(best.max()):.1e}, above "
                f"tol={self.tol:.1e}, after {self.iterations} steps; a larger alpha or max_iter brings it down",
                ConvergenceWarning,
                stacklevel=3,
            )
        return kept


def _factor(k: Tensor) -> Tensor:
    """The Cholesky factor of k. Where k is positive definite but for its roundings (large values of a polynomial kernel
    beside little noise), as much is added to the diagonal as rounding can have taken: of n numbers and their sums,
    ``4 n 2^-53`` times the largest. It is warned."""
    factor: Tensor
    factor, wrong = torch.linalg.cholesky_ex(k)
    if not bool(wrong):
        return factor
    lost = 4 * k.shape[0] * 2.0**-53 * float(k.diagonal().max())
    k.diagonal().add_(lost)
    made: Tensor = torch.linalg.cholesky(k)
    warnings.warn(
        f"K with its noise is not positive definite in float64; {lost:.1e} was added to its diagonal: raise alpha",
        stacklevel=4,
    )
    return made


def make_solver(
    kernel: KernelFunction, x: Tensor, noise: Tensor, *, solver: str, tol: float, max_iter: int, rank: int = RANK
) -> CholeskySolver | GradientSolver:
    """What solves with K of the points x (float64, [n, d]) and the noise [n]. Raises ValueError for a name that is
    none, torch.linalg.LinAlgError where K with the noise is not positive definite."""
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}; got {solver!r}")
    if solver == "cholesky" or (solver == "auto" and x.shape[0] <= SMALL):
        k = kernel.block(x, x)
        k.diagonal().add_(noise)
        return CholeskySolver(_factor(k))
    return GradientSolver(kernel, x, noise, tol, max_iter, rank)
