"""What this machine was measured to do, its GPU included, and the bound that follows for a piece of work."""

from kernelworks.measure.clock.noise import Ambiguous
from kernelworks.measure.peaks.cache import cached, ceilings
from kernelworks.measure.peaks.survey import measure
from kernelworks.measure.roofline.bound import Bound, bound, regime, settled

__all__ = ["Ambiguous", "Bound", "bound", "cached", "ceilings", "measure", "regime", "settled"]
