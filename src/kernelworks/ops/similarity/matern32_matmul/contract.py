"""What matern32_matmul promises."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.templates.pairwise import Pairwise

__all__ = ["CONTRACT", "TEMPLATE"]


def _z(s: Tensor) -> Tensor:
    """sqrt(3 s); where s is 0 a number whose derivative is finite, for others to leave out."""
    return torch.where(s == 0, 1.0, 3 * s).sqrt()


def value(s: Tensor) -> Tensor:
    """k, which has two derivatives where two points are one: its series stands there."""
    z = _z(s)
    finite = torch.nan_to_num(1 + z, nan=torch.nan)  # of an infinite distance, where e^-z is 0
    return torch.where(s == 0, 1 - 1.5 * s, finite * torch.exp(-z))


def slope(s: Tensor) -> Tensor:
    return 3 * torch.where(s == 0, 1.0, torch.exp(-_z(s)))


def matrix(x: Tensor, y: Tensor, length_scale: Tensor) -> Tensor:
    """K, as torch's users write it."""
    z = 3**0.5 * torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") / length_scale
    return (1 + z) * torch.exp(-z)


TEMPLATE = Pairwise(
    op_package=__file__,
    formula="output[i, :] = sum_j (1 + z) exp(-z) v[j, :] with z = sqrt(3) |x_i - y_j| / length_scale",
    source="Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equation 4.17",
    value=value,
    slope=slope,
    slope_change=lambda s: 1.5 * (3 * s).sqrt() * torch.exp(-(3 * s).sqrt()),
    roundings=lambda s: 4 + 3 * (3 * s).sqrt(),
    matrix=matrix,
)
CONTRACT = TEMPLATE.contract
