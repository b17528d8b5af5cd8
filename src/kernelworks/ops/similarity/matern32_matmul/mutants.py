"""Known-wrong versions that only a Matern kernel has."""

from __future__ import annotations

import torch

from kernelworks.contract import Mutant
from kernelworks.templates.pairwise_mutants import of_function

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant("order 1/2", of_function(lambda s: torch.exp(-s.sqrt())), "the exponential alone: a Laplacian"),
    Mutant("missing 3", of_function(lambda s: (1 + s.sqrt()) * torch.exp(-s.sqrt())), "z = r / l"),
    Mutant("missing term", of_function(lambda s: torch.exp(-(3 * s).sqrt())), "1 + z is left out"),
)
