"""What kernel_matmul promises."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.templates.pairwise import Pairwise

__all__ = ["CONTRACT", "TEMPLATE"]


def value(s: Tensor) -> Tensor:
    """k, which is its own slope."""
    return torch.exp(-0.5 * s)


def matrix(x: Tensor, y: Tensor, length_scale: Tensor) -> Tensor:
    """K, as torch's users write it."""
    distance = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.exp(-(distance**2) / (2 * length_scale**2))


TEMPLATE = Pairwise(
    op_package=__file__,
    formula="output[i, :] = sum_j exp(-|x_i - y_j|^2 / (2 length_scale^2)) v[j, :]",
    source="Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equation 4.9; Charlier et al., "
    "Kernel Operations on the GPU, with Autodiff, without Memory Overflows (KeOps), 2021",
    value=value,
    slope=value,
    slope_change=lambda s: 0.5 * s * value(s),
    matrix=matrix,
)
CONTRACT = TEMPLATE.contract
