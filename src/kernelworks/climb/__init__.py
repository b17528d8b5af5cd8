"""Runs a ladder: each rung is verified against float64, benchmarked beside the vendors' libraries, and written up."""

from kernelworks.climb import baselines, baselines_cub, baselines_ggml  # for the problems of ladders
from kernelworks.climb.driver import climb
from kernelworks.climb.ladder import Ladder, Rung, folders, ladder_named

__all__ = ["Ladder", "Rung", "climb", "folders", "ladder_named", "baselines", "baselines_cub", "baselines_ggml"]
