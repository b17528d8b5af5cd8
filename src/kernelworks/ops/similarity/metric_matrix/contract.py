"""What laplacian_kernel, linear_kernel and polynomial_kernel promise: an entry each."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.contract.arguments import Argument, Int64, Number

__all__ = ["FUNCTIONS", "KernelFunction", "PairErrors"]

U32, SMALLEST = UNIT_ROUNDOFF[torch.float32], 2.0**-149
# A number that float32 holds with all its digits; points are scaled by a power of two near it or near its root.
GAMMA = Number(least=2.0**-126, below=2.0**127, optional=True)


@dataclass(frozen=True)
class PairErrors:
    """Of pairs, in float64: how far a float32 kernel may be off in k; the slope of k by q, and how far that may."""

    k_off: Tensor
    slope: Tensor  # its size
    slope_off: Tensor


class KernelFunction(abc.ABC):
    """k of a pair by q, a sum over coordinates: ``own_flop`` and ``flop`` a coordinate are its cost."""

    formula: str
    source: str
    numbers: Mapping[str, Argument]
    settings: tuple[dict[str, Any], ...]  # numbers that the cases have in turn
    flop, own_flop, transcendental = 2.0, 0.0, 0.0

    @abc.abstractmethod
    def value(self, x: Tensor, y: Tensor, **numbers: Any) -> Tensor:
        """K [N, M] by sums over coordinates, as exact as its dtype says it."""

    @abc.abstractmethod
    def in_torch(self, x: Tensor, y: Tensor, **numbers: Any) -> Tensor:
        """K as torch's users write it, in float32."""

    @abc.abstractmethod
    def errors(self, x: Tensor, y: Tensor, **numbers: Any) -> PairErrors:
        """What float32 makes of it."""

    @abc.abstractmethod
    def direction(self, own: Tensor, other: Tensor, **numbers: Any) -> tuple[Tensor, float]:
        """The size of dq by ``own``, a coordinate of one of the points, and what a sum of N of them loses to numbers
        below float32's, by N."""

    @abc.abstractmethod
    def native_numbers(self, d: int, *numbers: Any) -> tuple[int, float, float]:
        """The degree, gamma and the offset that kernels take."""


def gamma_of(gamma: float | None, d: int) -> float:
    """scikit-learn's default is 1 / d."""
    return 1.0 / d if gamma is None else float(gamma)


class Polynomial(KernelFunction):
    """``t^degree`` of ``t = gamma x . y + coef0``."""

    formula = "output[i, j] = (gamma x_i . y_j + coef0)^degree"
    source = "sklearn.metrics.pairwise.polynomial_kernel; Rasmussen and Williams, Gaussian Processes for Machine "\
        "Learning, 2006, section 4.2.2"  # fmt: skip
    numbers: Mapping[str, Argument] = {
        "degree": Int64(least=0), "gamma": GAMMA, "coef0": Number(least=None, finite=True)
    }  # fmt: skip
    own_flop = 4.0
    settings = tuple(
        {"degree": degree, "gamma": gamma, "coef0": coef0}
        for degree, gamma, coef0 in (
            (3, None, 1.0), (2, 0.5, 0.0), (0, 0.7, 1.0), (1, 0.3, 0.0), (3, 1.7, 0.0), (5, None, -0.5), (4, 0.01, 3.0),
        )
    )  # fmt: skip

    def _t(self, x: Tensor, y: Tensor, gamma: float | None, coef0: float) -> Tensor:
        total = x.new_zeros(x.shape[0], y.shape[0])
        root = gamma_of(gamma, x.shape[1]) ** 0.5  # of either point, so that no unit overflows
        for d in range(x.shape[1]):
            total = total + (x[:, d, None] * root) * (y[None, :, d] * root)
        return total + coef0

    def value(
        self, x: Tensor, y: Tensor, *, degree: int = 1, gamma: float | None = 1.0, coef0: float = 0.0, **rest: Any
    ) -> Tensor:
        power: Tensor = self._t(x, y, gamma, coef0) ** degree
        return power

    def in_torch(
        self,
        x: Tensor,
        y: Tensor,
        *,
        degree: int = 1,
        gamma: float | None = 1.0,
        coef0: float = 0.0,
        **rest: Any,
    ) -> Tensor:
        power: Tensor = (x @ y.T * gamma_of(gamma, x.shape[1]) + coef0) ** degree
        return power

    def errors(
        self,
        x: Tensor,
        y: Tensor,
        *,
        degree: int = 1,
        gamma: float | None = 1.0,
        coef0: float = 0.0,
        **rest: Any,
    ) -> PairErrors:
        """q meets D roundings of products and sums, one of gamma and one with it. What t^p makes of an error of t is
        taken whole, for t may be all error where a product and the offset cancel. Scaled points and their products
        may be subnormal, of at most 2 D of which a product of the other point is lost."""
        p, d, factor = degree, x.shape[1], gamma_of(gamma, x.shape[1])
        a, b = (t.abs() * factor**0.5 for t in (x, y))
        q_off = (d + 2) * U32 * (a @ b.T) + 8 * SMALLEST * (a.sum(1, keepdim=True) + b.sum(1) + d)
        t = self._t(x, y, gamma, coef0).abs()
        most = t + q_off + U32 * (t + abs(coef0))
        k_off = most**p - t**p + p * U32 * most**p + SMALLEST
        if p == 0:
            return PairErrors(k_off, torch.zeros_like(t), torch.zeros_like(t))
        slope, most_slope = p * t ** (p - 1), p * most ** (p - 1)
        return PairErrors(k_off, slope, most_slope - slope + (p + 1) * U32 * most_slope + SMALLEST)

    def direction(
        self, own: Tensor, other: Tensor, *, gamma: float | None = 1.0, **numbers: Any
    ) -> tuple[Tensor, float]:
        factor = gamma_of(gamma, own.shape[1])
        return factor * other.abs(), 4 * SMALLEST * factor**0.5

    def native_numbers(self, d: int, *numbers: Any) -> tuple[int, float, float]:
        degree, gamma, coef0 = numbers or (1, 1.0, 0.0)
        return int(degree), gamma_of(gamma, d), float(coef0)


class Linear(Polynomial):
    """A polynomial of degree 1, of gamma 1 and no offset."""

    formula = "output[i, j] = x_i . y_j"
    source = "sklearn.metrics.pairwise.linear_kernel"
    numbers: Mapping[str, Argument] = {}
    own_flop = 0.0
    settings = ({},)

    def in_torch(self, x: Tensor, y: Tensor, **numbers: Any) -> Tensor:
        return x @ y.T


class Laplacian(KernelFunction):
    """``e^-q`` of ``q = gamma sum_d |x_d - y_d|``."""

    formula = "output[i, j] = exp(-gamma sum_d |x_id - y_jd|)"
    source = "sklearn.metrics.pairwise.laplacian_kernel; Rahimi and Recht, Random Features for Large-Scale Kernel "\
        "Machines, 2007"  # fmt: skip
    numbers: Mapping[str, Argument] = {"gamma": GAMMA}
    own_flop = transcendental = 1.0
    settings = ({"gamma": None}, {"gamma": 0.3}, {"gamma": 1.7})

    def _q(self, x: Tensor, y: Tensor, gamma: float | None) -> Tensor:
        total = x.new_zeros(x.shape[0], y.shape[0])
        for d in range(x.shape[1]):
            total = total + (x[:, d, None] - y[None, :, d]).abs() * gamma_of(gamma, x.shape[1])
        return total

    def value(self, x: Tensor, y: Tensor, *, gamma: float | None = None, **rest: Any) -> Tensor:
        return torch.exp(-self._q(x, y, gamma))

    def in_torch(self, x: Tensor, y: Tensor, *, gamma: float | None = None, **rest: Any) -> Tensor:
        return torch.exp(-gamma_of(gamma, x.shape[1]) * torch.cdist(x, y, p=1.0))

    def errors(self, x: Tensor, y: Tensor, *, gamma: float | None = None, **rest: Any) -> PairErrors:
        """q meets D roundings (a difference, sums), one of gamma, one of its product and one of that with log2(e); the
        exponential has 4 of its own."""
        q = self._q(x, y, gamma)
        k = torch.exp(-q)
        off = torch.nan_to_num(((x.shape[1] + 3) * q + 4) * U32 * k, 0.0) + SMALLEST
        return PairErrors(off, k, off)

    def direction(self, own: Tensor, other: Tensor, *, gamma: float | None = None, **rest: Any) -> tuple[Tensor, float]:
        factor = gamma_of(gamma, own.shape[1])
        return factor * (own[:, None] - other[None]).sign().abs(), SMALLEST * factor

    def native_numbers(self, d: int, *numbers: Any) -> tuple[int, float, float]:
        return 1, gamma_of(numbers[0], d), 0.0


FUNCTIONS: Mapping[str, KernelFunction] = {
    "laplacian_kernel": Laplacian(), "linear_kernel": Linear(), "polynomial_kernel": Polynomial(),
}  # fmt: skip
