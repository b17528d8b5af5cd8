"""Kernel functions by name: products with their matrices by the ops of the similarity family, and blocks of them.

| name | k(x, y) | length scale l of scikit-learn's gamma |
|---|---|---|
| linear | x . y | none |
| poly | (x . y / l^2 + coef0)^degree | gamma^(-1/2) |
| rbf | exp(-r^2 / (2 l^2)) | (2 gamma)^(-1/2) |
| laplacian | exp(-r_1 / l), of the L1 distance | 1 / gamma |
| matern12, matern32, matern52 | Rasmussen and Williams 2006, section 4.2.1 | 1 / gamma |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.dispatch.op import OPS

__all__ = ["KERNELS", "KernelFunction", "need_kernel", "of_gamma"]

# name -> op, and what of gamma is the length scale: (factor * gamma) ** power
KERNELS: Mapping[str, tuple[str, float, float]] = {
    "linear": ("", 1.0, 0.0),
    "poly": ("polynomial_matmul", 1.0, -0.5),
    "rbf": ("kernel_matmul", 2.0, -0.5),
    "laplacian": ("laplacian_matmul", 1.0, -1.0),
    "matern12": ("matern12_matmul", 1.0, -1.0),
    "matern32": ("matern32_matmul", 1.0, -1.0),
    "matern52": ("matern52_matmul", 1.0, -1.0),
}
STORED_NUMBERS = 2**22  # numbers of K that are stored together where torch forms it
UNIT_DIAGONAL = frozenset(KERNELS) - {"linear", "poly"}  # k(x, x) = 1, and k is a function of differences


@dataclass(frozen=True)
class KernelFunction:
    """A kernel function of points that ``centre`` was subtracted from, in the dtype of the points it is given."""

    name: str
    length_scale: float = 1.0
    degree: int = 3
    coef0: float = 1.0

    @property
    def is_of_differences(self) -> bool:
        return self.name in UNIT_DIAGONAL

    @property
    def _numbers(self) -> dict[str, Any]:
        return {"degree": self.degree, "coef0": self.coef0} if self.name == "poly" else {}

    def matmul(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """K(x, y) @ v [N, E] of float32 tensors, without K."""
        if self.name == "linear":
            return x @ (y.T @ v)
        if self.name == "poly" and self.degree == 0:  # k is 1
            return v.sum(0).repeat(x.shape[0], 1)
        op = OPS[KERNELS[self.name][0]]
        scale = torch.tensor(self.length_scale, dtype=torch.float32, device=x.device)
        rest = (y, v, scale, *self._numbers.values())
        rows = max(1, x.shape[0])
        if op.choice((x, *rest), None).kernel.source is None:  # torch stores K: a few rows of it at a time
            rows = max(16, STORED_NUMBERS // max(y.shape[0], 1))
        made = x.new_empty(x.shape[0], v.shape[1])
        for first in range(0, x.shape[0], rows):  # a list of small results would stand between freed blocks of K
            made[first : first + rows] = op(x[first : first + rows], *rest)
        return made

    def block(self, x: Tensor, y: Tensor) -> Tensor:
        """K(x, y) [N, M] itself, in the dtype of x."""
        if self.name == "linear":
            return x @ y.T
        template = OPS[KERNELS[self.name][0]].template
        matrix = getattr(template, "matrix", None) or template.metric.matrix
        made: Tensor = matrix(x, y, torch.tensor(self.length_scale, dtype=x.dtype, device=x.device), **self._numbers)
        return made

    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        """What ``of_distances`` takes: L1, or squared Euclidean, distances [N, M]; dot products of the rest."""
        if not self.is_of_differences:
            return x @ y.T
        if self.name == "laplacian":
            return torch.cdist(x, y, p=1.0)
        return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()

    def of_distances(self, distances: Tensor) -> tuple[Tensor, Tensor]:
        """K, and its derivative by the logarithm of the length scale."""
        if self.name == "laplacian":
            q = distances / self.length_scale
            k = torch.exp(-q)
            return k, q * k
        if self.name == "linear":
            return distances, torch.zeros_like(distances)
        s = distances / self.length_scale**2
        if self.name == "poly":
            t = s + self.coef0
            return t**self.degree, -2 * self.degree * s * t ** max(self.degree - 1, 0)
        template = OPS[KERNELS[self.name][0]].template
        return template.value(s), template.slope(s) * s

    def diagonal(self, x: Tensor) -> Tensor:
        """k(x_i, x_i) [N]."""
        if self.is_of_differences:
            return torch.ones(x.shape[0], dtype=x.dtype, device=x.device)
        squares = x.square().sum(1)
        if self.name == "linear":
            return squares
        return (squares / self.length_scale**2 + self.coef0) ** self.degree


def need_kernel(name: str, degree: Any) -> None:
    """Raises ValueError unless there is a kernel function of this name and degree."""
    if name not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(KERNELS)}; got {name!r}")
    if degree != int(degree) or degree < 0:
        raise ValueError(f"degree must be a whole number of at least 0, got {degree!r}")


def of_gamma(name: str, gamma: float, degree: int = 3, coef0: float = 1.0) -> KernelFunction:
    """The kernel function of scikit-learn's parameters. Raises ValueError for a name that is none, and for a
    degree that is no whole number of at least 0."""
    need_kernel(name, degree)
    _, factor, power = KERNELS[name]
    return KernelFunction(name, float(factor * gamma) ** power, int(degree), float(coef0))
