"""Known-wrong versions of relu, beside those that every pointwise op has."""

import torch.nn.functional as F

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant("leaky", lambda x: F.leaky_relu(x), "a negative value keeps a share"),
    Mutant("identity", lambda x: x.clone(), "nothing is cut"),
    Mutant("abs", lambda x: x.abs(), "a negative value is mirrored"),
    Mutant("NaN to 0", lambda x: x.where(x > 0, 0.0), "a comparison that NaN fails gives 0"),
)
