"""Honest timing against honest baselines: gate, race, bound."""

from kernelworks.measure.bench.results import document, read, save
from kernelworks.measure.bench.run import OURS, SETS, bench
from kernelworks.measure.roofline.forecast import limit, predict

__all__ = ["OURS", "SETS", "bench", "document", "limit", "predict", "read", "save"]
