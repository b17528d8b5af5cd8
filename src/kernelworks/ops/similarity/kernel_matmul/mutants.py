"""Known-wrong versions that only a Gaussian kernel has."""

from __future__ import annotations

import torch

from kernelworks.contract import Mutant
from kernelworks.templates.pairwise_mutants import of_function

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant("missing half", of_function(lambda s: torch.exp(-s)), "exp(-r^2 / l^2): the 2 is left out"),
    Mutant("distance unsquared", of_function(lambda s: torch.exp(-0.5 * s.sqrt())), "exp(-r / (2 l)), a Laplacian"),
    Mutant("cut off early", of_function(lambda s: torch.exp(-0.5 * s) * (s < 40)), "k is 0 from e^-20 on"),
)
