"""Known-wrong versions that only a Matern kernel of order 1/2 or 5/2 has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.templates.pairwise_mutants import of_function

__all__ = ["MUTANTS"]


def _three_halves(s: Tensor) -> Tensor:
    z = (3 * s).sqrt()
    return torch.where(s.isinf(), 0.0, (1 + z) * torch.exp(-z))


def _five_halves(s: Tensor, order: float = 5.0, third: float = 1 / 3) -> Tensor:
    z = (order * s).sqrt()
    return torch.where(s.isinf(), 0.0, (1 + z + third * z.square()) * torch.exp(-z))


MUTANTS: Mapping[str, Sequence[Mutant]] = {
    "matern12_matmul": (
        Mutant("squared distance", of_function(lambda s: torch.exp(-0.5 * s)), "a Gaussian kernel"),
        Mutant("halved", of_function(lambda s: torch.exp(-0.5 * s.sqrt())), "exp(-r / (2 l))"),
        Mutant("order 3/2", of_function(_three_halves), "the next smoother kernel"),
        Mutant(
            "powers of two", of_function(lambda s: torch.exp2(-s.sqrt())), "2^-z: the exponent's factor is left out"
        ),
    ),
    "matern52_matmul": (
        Mutant("order 3/2", of_function(_three_halves), "the next rougher kernel"),
        Mutant("missing 5", of_function(lambda s: _five_halves(s, 1.0)), "z = r / l"),
        Mutant("missing third", of_function(lambda s: _five_halves(s, 5.0, 1.0)), "1 + z + z^2"),
        Mutant("missing square", of_function(lambda s: _five_halves(s, 5.0, 0.0)), "1 + z alone"),
    ),
}
