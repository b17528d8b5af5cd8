"""What this machine, its GPU included, was measured to do."""

from kernelworks.measure.peaks.cache import cached, ceilings
from kernelworks.measure.peaks.survey import measure

__all__ = ["cached", "ceilings", "measure"]
