"""What laplacian_matmul and polynomial_matmul promise: an entry each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case
from kernelworks.contract.arguments import Int64, Number
from kernelworks.contract.cases import normal
from kernelworks.ops.similarity.metric_table.mutants import laplacian_mutants, polynomial_mutants
from kernelworks.templates.op_package import OpTable
from kernelworks.templates.pairwise_arguments import CASES, DEVICE_CASES, draw_points
from kernelworks.templates.pairwise_metric import Metric, MetricPairwise, PairErrors

__all__ = ["TABLE"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149
F32 = (torch.float32,)


class Laplacian(Metric):
    """``e^-q`` of ``q = sum_d |x_d - y_d| / l``."""

    power, flop, own_flop, transcendental = 1.0, 2.0, 1.0, 1.0

    def _q(self, x: Tensor, y: Tensor, length_scale: Tensor) -> Tensor:
        total = x.new_zeros(x.shape[0], y.shape[0])
        for d in range(x.shape[1]):
            total = total + ((x[:, d, None] - y[None, :, d]) / length_scale).abs()
        return total

    def value(self, x: Tensor, y: Tensor, length_scale: Tensor, **numbers: Any) -> Tensor:
        return torch.exp(-self._q(x, y, length_scale))

    def errors(self, x: Tensor, y: Tensor, length_scale: Tensor, **numbers: Any) -> PairErrors:
        """q meets D roundings (a difference, sums) and its factor with two products; the exponential 4 of its own."""
        q = self._q(x, y, length_scale)
        k = torch.exp(-q)
        off = torch.nan_to_num(((x.shape[1] + 4) * q + 4) * U32 * k, 0.0) + SMALLEST
        return PairErrors(k, off, k, off, q, (x.shape[1] + 4) * U32 * q)

    def direction(self, own: Tensor, other: Tensor) -> Tensor:
        return (own - other).sign().abs()

    def matrix(self, x: Tensor, y: Tensor, length_scale: Tensor, **numbers: Any) -> Tensor:
        return torch.exp(-torch.cdist(x, y, p=1.0) / length_scale)


class Polynomial(Metric):
    """``(q + coef0)^degree`` of ``q = x . y / l^2``."""

    power, flop, own_flop, transcendental = 2.0, 2.0, 4.0, 0.0

    def value(self, x: Tensor, y: Tensor, length_scale: Tensor, **numbers: Any) -> Tensor:
        total = x.new_zeros(x.shape[0], y.shape[0])
        for d in range(x.shape[1]):
            total = total + x[:, d, None] / length_scale * (y[None, :, d] / length_scale)
        power: Tensor = (total + numbers["coef0"]) ** numbers["degree"]
        return power

    def errors(self, x: Tensor, y: Tensor, length_scale: Tensor, **numbers: Any) -> PairErrors:
        """q meets D sums, a product, and both points' factors with two products each. What t^p makes of an error of t
        is taken whole, for t may be all error where a product and the offset cancel."""
        p, offset = numbers["degree"], numbers["coef0"]
        q = (x / length_scale) @ (y / length_scale).T
        q_off = (x.shape[1] + 6) * U32 * ((x / length_scale).abs() @ (y / length_scale).abs().T)
        t = (q + offset).abs()
        most = t + q_off + U32 * (t + abs(offset))
        k_off = most**p - t**p + p * U32 * most**p + SMALLEST
        slope, most_slope = p * t ** (p - 1), p * most ** (p - 1)
        slope_off = most_slope - slope + (p + 1) * U32 * most_slope + SMALLEST
        return PairErrors((q + offset) ** p, k_off, slope, slope_off, q.abs(), q_off)

    def direction(self, own: Tensor, other: Tensor) -> Tensor:
        return other.abs().expand(own.shape[0], -1)

    def matrix(self, x: Tensor, y: Tensor, length_scale: Tensor, **numbers: Any) -> Tensor:
        power: Tensor = (x @ y.T / length_scale.square() + numbers["coef0"]) ** numbers["degree"]
        return power


# ---------------------------------------------------------------- cases of polynomials

Sizes = tuple[int, int, int, int]
CUBIC_NUMBERS = {"degree": 3, "coef0": 1.0}
SIZES: tuple[tuple[Sizes, int, float], ...] = (
    ((0, 5, 3, 1), 2, 1.0), ((5, 0, 3, 1), 3, 1.0), ((5, 5, 3, 0), 2, 1.0), ((1, 1, 1, 1), 1, 0.0),
    ((2, 1, 3, 1), 2, 0.0), ((1, 300, 3, 1), 3, 1.0), ((70, 1, 3, 1), 2, -1.0), ((33, 70, 1, 1), 4, 0.5),
    ((67, 515, 3, 1), 3, 1.0), ((21, 35, 3, 8), 5, 1.0), ((130, 61, 5, 2), 7, 0.25), ((17, 31, 16, 3), 3, 1.0),
    ((40, 19, 64, 8), 2, 0.0), ((35, 40, 4, 1), 1, 3.0),
)  # fmt: skip


def _polynomial(sizes: Sizes, degree: int, coef0: float, name: str = "", **drawn: Any) -> Case:
    more = {key: drawn.pop(key) for key in ("dtypes", "layouts", "pieces") if key in drawn}
    label = " ".join(f"{letter}={size}" for letter, size in zip("NMDE", sizes, strict=True))
    return Case(
        f"{name} {label} degree={degree} coef0={coef0:g}".strip(),
        lambda g, t: draw_points(g, t, sizes, **drawn) | {"degree": degree, "coef0": coef0},
        **more,
    )


def _same(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    made = draw_points(generator, dtype, (40, 40, 3, 2))
    return made | {"y": made["x"]} | CUBIC_NUMBERS


def _cancelling(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """Products of exactly -coef0, where k is 0 and of degree 2 its slope too."""
    made = draw_points(generator, dtype, (20, 24, 2, 2), length_scale=2.0)
    x = torch.randint(-2, 3, (20, 2), generator=generator).to(dtype)
    y = torch.randint(-2, 3, (24, 2), generator=generator).to(dtype)
    return made | {"x": x, "y": y, "degree": 2, "coef0": 0.5}


def _with(value: float) -> Any:
    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        made = draw_points(generator, dtype, (19, 35, 3, 2))
        made["x"][4, 1] = made["y"][34, 2] = value
        return made | CUBIC_NUMBERS

    return make


def _own_dtype(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    made = draw_points(generator, dtype, (19, 35, 3, 2))
    return made | {"length_scale": torch.full((1, 1), 1.7, dtype=dtype)} | CUBIC_NUMBERS


POLYNOMIALS = (
    *(_polynomial(*each, layouts=each[0] in ((35, 40, 4, 1), (17, 31, 16, 3))) for each in SIZES),
    Case("length scale of the points' dtype", _own_dtype),
    Case("same tensor twice", _same),
    Case("products that cancel the offset", _cancelling),
    _polynomial((19, 33, 3, 2), 3, 1.0, "a mean beside the spread", mean=30.0, length_scale=20.0),
    _polynomial((19, 33, 3, 2), 2, 1.0, "large units", scale=1e12, dtypes=F32),
    _polynomial((19, 33, 3, 2), 2, 1.0, "small units", scale=1e-12, dtypes=F32),
    Case("nan in the points", _with(torch.nan), gradients=False),
    _polynomial((40, 2305, 3, 1), 3, 1.0, "in pieces", pieces=12, dtypes=F32),
)
DEVICE_POLYNOMIALS = (
    _polynomial((1031, 2053, 3, 1), 3, 1.0, dtypes=F32),
    _polynomial((513, 777, 16, 8), 2, 1.0, layouts=True),
    _polynomial((257, 300, 64, 3), 4, 0.5),
    _polynomial((20_000, 100_003, 3, 1), 3, 1.0, "in pieces", pieces=16, dtypes=F32),
)


def _ties(generator: Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    """Whole coordinates, many of which are equal: there the gradient is 0."""
    made = draw_points(generator, dtype, (30, 40, 3, 2))
    x, y = (torch.randint(-2, 3, made[name].shape, generator=generator).to(dtype) for name in "xy")
    return made | {"x": x, "y": y, "v": normal(generator, dtype, 40, 2)}


TABLE = OpTable.of(
    [
        MetricPairwise(
            op_package=__file__,
            op_name="laplacian_matmul",
            formula="output[i, :] = sum_j exp(-sum_d |x_id - y_jd| / length_scale) v[j, :]",
            source="sklearn.metrics.pairwise.laplacian_kernel with gamma = 1 / length_scale; Rahimi and Recht, Random "
            "Features for Large-Scale Kernel Machines, 2007",
            metric=Laplacian(),
            cases=(*CASES, Case("equal coordinates", _ties)),
            device_cases=DEVICE_CASES,
            mutants=laplacian_mutants(Laplacian().value),
        ),
        MetricPairwise(
            op_package=__file__,
            op_name="polynomial_matmul",
            formula="output[i, :] = sum_j (x_i . y_j / length_scale^2 + coef0)^degree v[j, :]",
            source="sklearn.metrics.pairwise.polynomial_kernel with gamma = 1 / length_scale^2; Rasmussen and "
            "Williams, Gaussian Processes for Machine Learning, 2006, section 4.2.2",
            metric=Polynomial(),
            cases=POLYNOMIALS,
            device_cases=DEVICE_POLYNOMIALS,
            mutants=polynomial_mutants(Polynomial().value),
            numbers={"degree": Int64(least=1), "coef0": Number(least=None, finite=True)},
            shown=CUBIC_NUMBERS,
        ),
    ]
)
