"""Steps of one token while a CUDA graph is captured: kernels that do not wait for each other beside each other.

A step of one token is some 20 small kernels a layer, each over within microseconds and waiting for the one before. In a
graph they may stand on branches: the keys' and the values' products beside the queries', the gate's beside the other
factor's, and what a cache of fixed size counts beside all of it. A graph keeps the order that was captured, so branches
are made with streams, forked and joined by events.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

__all__ = ["Branches", "branches", "capturing", "fixed_layer", "write"]


def capturing(device: int) -> bool:
    """Whether what is called on a device is captured by now, not run."""
    return device >= 0 and torch.cuda.is_current_stream_capturing()


class Branches:
    """Two streams beside the current one."""

    def __init__(self) -> None:
        self.streams = torch.cuda.Stream(), torch.cuda.Stream()

    def fork(self) -> None:
        """What is called within ``stream_context`` from now on waits for what was called so far."""
        main = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(main)

    def stream_context(self, number: int) -> Any:
        return torch.cuda.stream(self.streams[number])

    def join(self) -> None:
        """What is called from now on waits for what was called within ``stream_context``."""
        main = torch.cuda.current_stream()
        for stream in self.streams:
            main.wait_stream(stream)


@functools.cache
def branches(device: int) -> Branches:
    with torch.cuda.device(device):
        return Branches()


# ---------------------------------------------------------------- a cache of fixed size


def fixed_layer(past: Any, layer_idx: int) -> Any:
    """The layer of transformers' cache of fixed size, where it holds tokens already; None of any other cache."""
    if past is None or type(past) is not _static_cache() or past.offloading or layer_idx >= len(past.layers):
        return None
    layer = past.layers[layer_idx]
    known = type(layer) is _static_layer() and layer.is_initialized
    return layer if known and isinstance(layer.cumulative_length, Tensor) else None


def write(held: Tensor, layer: Any, token: Tensor) -> None:
    """One token's keys or values [B, H, 1, D] at their place, as a layer's ``update`` writes them: the device counts
    how many there were before."""
    held.index_copy_(2, layer.cumulative_length.view(1), token)


@functools.cache
def _static_cache() -> Any:
    from transformers.cache_utils import StaticCache

    return StaticCache


@functools.cache
def _static_layer() -> Any:
    from transformers.cache_utils import StaticLayer

    return StaticLayer
