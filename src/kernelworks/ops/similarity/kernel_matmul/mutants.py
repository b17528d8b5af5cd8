"""Known-wrong versions that only a Gaussian kernel has."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.templates.pairwise import squared_distances

__all__ = ["MUTANTS"]


def _other(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """The op with another function of s."""

    def run(x: Tensor, y: Tensor, v: Tensor, length_scale: Tensor) -> Tensor:
        s = squared_distances(x.double(), y.double(), length_scale.double())
        return (function(s) @ v.double()).to(v.dtype)

    return run


MUTANTS = (
    Mutant("missing half", _other(lambda s: torch.exp(-s)), "exp(-r^2 / l^2): the 2 is left out"),
    Mutant("distance unsquared", _other(lambda s: torch.exp(-0.5 * s.sqrt())), "exp(-r / (2 l)), a Laplacian"),
    Mutant("cut off early", _other(lambda s: torch.exp(-0.5 * s) * (s < 40)), "k is 0 from e^-20 on"),
)
