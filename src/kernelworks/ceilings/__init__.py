"""What this machine was measured to do, and the bound that follows for a piece of work."""

from kernelworks.ceilings.bound import Bound, bound, regime
from kernelworks.ceilings.cache import cached, ceilings
from kernelworks.ceilings.quiet import Ambiguous
from kernelworks.ceilings.survey import measure

__all__ = ["Ambiguous", "Bound", "bound", "cached", "ceilings", "measure", "regime"]
