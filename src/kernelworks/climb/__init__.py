"""Runs a ladder: rung by rung, proved against float64, raced against the vendors' libraries, written up."""

from kernelworks.climb import peers, peers_cub, peers_ggml  # for the problems of ladders
from kernelworks.climb.ladder import Ladder, Rung, folders, ladder_named
from kernelworks.climb.run import climb

__all__ = ["Ladder", "Rung", "climb", "folders", "ladder_named", "peers", "peers_cub", "peers_ggml"]
