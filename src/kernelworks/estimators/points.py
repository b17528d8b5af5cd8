"""Points as estimators hold them: float64, on their device, with the mean of the training points subtracted.

Products are float32. Far from the origin float32 holds few digits of a point, and all kernels of differences stay what
they are when everything is moved: so it is moved before anything is rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernelworks.estimators.kernel_functions import KernelFunction

__all__ = ["Columns", "as_points", "centre_of", "gamma_of", "products"]

PART = 16384  # rows of a prediction whose copies are held at once
STORED_NUMBERS = 2**20  # numbers of K in float64 that are held at once
UNIT = {True: 2.0**-53, False: 2.0**-24}  # of products in float64 and in float32


def centre_of(kernel: KernelFunction, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What is subtracted of every point."""
    centre: np.ndarray[Any, Any] = x.mean(0) if kernel.is_of_differences else np.zeros(x.shape[1])
    return centre


def as_points(x: np.ndarray[Any, Any], centre: np.ndarray[Any, Any], device: str) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x - centre, dtype=np.float64)).to(device)


def gamma_of(gamma: Any, x: np.ndarray[Any, Any]) -> float:
    """scikit-learn's gamma: a positive number, None or "auto" for 1 / d, "scale" for 1 / (d var(x))."""
    if gamma is None or (isinstance(gamma, str) and gamma == "auto"):
        return 1.0 / float(x.shape[1])
    if isinstance(gamma, str) and gamma == "scale":
        spread = float(x.var())
        return 1.0 / (float(x.shape[1]) * spread) if spread else 1.0
    if isinstance(gamma, str) or not 0.0 < float(gamma) < float("inf"):
        raise ValueError(f"gamma must be positive and finite, 'scale', 'auto' or None; got {gamma!r}")
    return float(gamma)


def products(kernel: KernelFunction, x: Tensor, y: Tensor, weights: Tensor, exact: bool) -> np.ndarray[Any, Any]:
    """K(x, y) @ weights in float64: of blocks in float64 where ``exact``, else by float32's products."""
    made = []
    rows = max(1, STORED_NUMBERS // max(y.shape[0], 1)) if exact else PART
    for part in x.split(rows):
        if exact:
            made.append(kernel.block(part, y) @ weights)
        else:
            made.append(kernel.matmul(part.float(), y.float(), weights.float()).double())
    found: np.ndarray[Any, Any] = torch.cat(made).cpu().numpy()
    return found


class Columns:
    """The matrix of a kernel of points ``x`` with themselves, or of points ``of`` with ``x``: blocks of it in float64,
    products in float32 where that is near enough."""

    def __init__(self, kernel: KernelFunction, x: Tensor, of: Tensor | None = None) -> None:
        self.kernel, self.x, self.rows = kernel, x, x if of is None else of
        self.roots = kernel.diagonal(x).abs().sqrt()
        largest = kernel.diagonal(self.rows).abs().amax().sqrt()
        # |k(x, y)|^2 <= k(x, x) k(y, y), and each k is off by some roundings: those of its formula, and for differences
        # those of the points, which count as much as a length scale is smaller than they are.
        if kernel.is_of_differences:
            roundings = 4.0 + float(self.rows.abs().amax()) / kernel.length_scale
        else:
            roundings = 4.0 + 2.0 * kernel.degree
        self.scale = float(largest) * roundings

    def block(self, at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """K of the points ``at`` among themselves, float64."""
        some = self.x[torch.from_numpy(at)]
        made: np.ndarray[Any, Any] = self.kernel.block(some, some).cpu().numpy()
        return made

    def product(
        self, at: np.ndarray[Any, Any], weights: np.ndarray[Any, Any], error: float
    ) -> tuple[np.ndarray[Any, Any], float]:
        """``K[:, at] @ weights``, and by how much it may be off: at most ``error``, or what float64 rounds."""
        columns = np.ascontiguousarray(weights).reshape(len(at), -1)
        chosen, given = torch.from_numpy(at), torch.from_numpy(columns).to(self.x.device)
        size = self.scale * float((self.roots[chosen] @ given.abs()).max())
        exact = len(self.rows) * len(at) <= STORED_NUMBERS or size * UNIT[False] > error
        made = products(self.kernel, self.rows, self.x[chosen], given, exact)
        return made.reshape(len(self.rows), *weights.shape[1:]), size * UNIT[exact]
