"""Honest timing against honest baselines: gate, race, bound."""

from kernelworks.bench.forecast import limit, predict
from kernelworks.bench.results import document, read, save
from kernelworks.bench.run import OURS, SETS, bench

__all__ = ["OURS", "SETS", "bench", "document", "limit", "predict", "read", "save"]
