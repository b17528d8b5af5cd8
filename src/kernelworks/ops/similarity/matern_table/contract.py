"""What matern12_matmul and matern52_matmul promise: an entry each."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.ops.similarity.matern_table.mutants import MUTANTS
from kernelworks.templates.op_package import OpTable
from kernelworks.templates.pairwise import PairwiseEntry

__all__ = ["TABLE"]

NEAR = 2.0**-124  # squared distances below it have lost digits in float32, or are 0 there


def _z(s: Tensor, order: float) -> Tensor:
    """sqrt(order s); where s is 0 a number whose derivative is finite, for others to leave out."""
    return torch.where(s == 0, 1.0, order * s).sqrt()


def _apart(x: Tensor, y: Tensor, length_scale: Tensor, order: float) -> Tensor:
    """sqrt(order) |x_i - y_j| / l, as torch's users write it."""
    made: Tensor = order**0.5 * torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") / length_scale
    return made


# ---------------------------------------------------------------- order 1/2


def half_value(s: Tensor) -> Tensor:
    """k, which has no derivative where two points are one; there it is given the gradient 0, as torch.cdist's has."""
    return torch.where(s == 0, 1.0, torch.exp(-_z(s, 1.0)))


def half_slope(s: Tensor) -> Tensor:
    z = _z(s, 1.0)
    return torch.where(s == 0, 0.0, torch.exp(-z) / z)


def half_slope_change(s: Tensor) -> Tensor:
    """Of points so close that their squared distance is not a normal float32 the whole slope may be lost."""
    z = _z(s, 1.0)
    return torch.where((s > 0) & (s < NEAR), 2.0**24, 0.5 * (1 + z)) * half_slope(s)


# ---------------------------------------------------------------- order 5/2


def value(s: Tensor) -> Tensor:
    """k, which has two derivatives where two points are one: its series stands there."""
    z = _z(s, 5.0)
    finite = torch.nan_to_num(1 + z + z.square() / 3, nan=torch.nan)  # of an infinite distance, where e^-z is 0
    return torch.where(s == 0, 1 - s * (5 / 6), finite * torch.exp(-z))


def slope(s: Tensor) -> Tensor:
    z = (5 * s).sqrt()
    return torch.nan_to_num(1 + z, nan=torch.nan) * torch.exp(-z) * (5 / 3)


def matrix(x: Tensor, y: Tensor, length_scale: Tensor) -> Tensor:
    z = _apart(x, y, length_scale, 5.0)
    return (1 + z + z**2 / 3) * torch.exp(-z)


TABLE = OpTable.of(
    [
        PairwiseEntry(
            op_package=__file__,
            op_name="matern12_matmul",
            formula="output[i, :] = sum_j exp(-|x_i - y_j| / length_scale) v[j, :]",
            source="Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equation 4.18",
            value=half_value,
            slope=half_slope,
            slope_change=half_slope_change,
            roundings=lambda s: 6 + 2 * s.sqrt(),
            matrix=lambda x, y, length_scale: torch.exp(-_apart(x, y, length_scale, 1.0)),
            own_mutants=MUTANTS["matern12_matmul"],
        ),
        PairwiseEntry(
            op_package=__file__,
            op_name="matern52_matmul",
            formula="output[i, :] = sum_j (1 + z + z^2 / 3) exp(-z) v[j, :] with z = sqrt(5) |x_i - y_j| / "
            "length_scale",
            source="Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equation 4.17",
            value=value,
            slope=slope,
            slope_change=lambda s: (25 / 6) * torch.nan_to_num(s, nan=torch.nan) * torch.exp(-(5 * s).sqrt()),
            roundings=lambda s: 6 + 3 * (5 * s).sqrt(),
            matrix=matrix,
            own_mutants=MUTANTS["matern52_matmul"],
        ),
    ]
)
