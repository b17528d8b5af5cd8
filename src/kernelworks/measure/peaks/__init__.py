"""What this machine, its GPU included, was measured to do."""

from kernelworks.measure.peaks.cache import cached_peaks, get_peaks
from kernelworks.measure.peaks.gpu import unmeasured_gpu_peaks
from kernelworks.measure.peaks.survey import measure, unmeasured_peaks

__all__ = ["cached_peaks", "get_peaks", "measure", "unmeasured_gpu_peaks", "unmeasured_peaks"]
