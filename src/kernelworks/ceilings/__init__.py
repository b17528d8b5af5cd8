"""What this machine was measured to do, its GPU included, and the bound that follows for a piece of work."""

from kernelworks.ceilings.bound import Bound, bound, regime, settled
from kernelworks.ceilings.cache import cached, ceilings
from kernelworks.ceilings.quiet import Ambiguous
from kernelworks.ceilings.survey import measure

__all__ = ["Ambiguous", "Bound", "bound", "cached", "ceilings", "measure", "regime", "settled"]
