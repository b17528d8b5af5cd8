"""Honest timing against honest baselines: gate, race, bound."""

from kernelworks.measure.bench.benchmark import OURS, SETS, bench, check_names
from kernelworks.measure.bench.results import document, read_results, save_results
from kernelworks.measure.roofline.forecast import limit, predict

__all__ = ["OURS", "SETS", "bench", "check_names", "document", "limit", "predict", "read_results", "save_results"]
