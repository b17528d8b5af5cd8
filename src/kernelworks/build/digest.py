"""Whether tensors of the CPU are what they were, bytes and all.

A version counter does not see what is written through ``.data``, NumPy, DLPack or a storage, and an address is given
again to another tensor. The bytes tell: ``Contents`` has a digest of them, made at the speed of reading them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build import TARGETS, library
from kernelworks.contract.tensors import PLAIN_TYPES, is_plain, version_of
from kernelworks.machine import machine

__all__ = ["Contents", "fingerprint", "has_digest", "look", "readable"]

SOURCE = Path(__file__).with_name("digest.cpp")
BLOCK = 1 << 16  # bytes, as digest.cpp has it
GRAIN = 1 << 21  # bytes that are worth a thread

_keys = torch._C._dispatch_keys


@functools.cache
def _digest() -> Any:
    target = next(name for name in ("avx512", "avx2", "scalar") if TARGETS[name].needs <= machine().features)
    return library(SOURCE, target).digest


@functools.cache
def has_digest() -> bool:
    """Whether there is a digest here: it is compiled once on each machine."""
    try:
        _digest()
    except Exception:  # no compiler, or a cache that cannot be written
        return False
    return True


def readable(tensors: Sequence[Tensor]) -> bool:
    """Whether their bytes can be read by the host, and are all that there is to them."""
    return all(t.device.type == "cpu" and t.layout is torch.strided for t in tensors) and is_plain(*tensors)


def look(t: Tensor) -> tuple[Any, ...]:
    """What says which numbers the bytes of a tensor are. The keys have its device, and what is to be done with them
    first (negated, conjugated)."""
    kind = t.__class__
    if kind not in PLAIN_TYPES or t.layout is not torch.strided:
        return kind, t.shape, t.dtype, t.layout
    return kind, t.data_ptr(), t.shape, t.stride(), t.dtype, _keys(t).raw_repr()


class Contents:
    """What ``readable`` tensors hold at one moment. It holds none of them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.looks = tuple(map(look, tensors))
        rows, self.blocks = [], 0
        for t in tensors:
            held = t.untyped_storage().nbytes() - t.storage_offset() * t.itemsize
            extent = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1 if t.numel() else 0
            size = max(0, min(held, extent * t.itemsize))
            rows.append((t.data_ptr(), size, self.blocks))
            self.blocks += -(-size // BLOCK)
        self.table = torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(-1, 3)
        self.nbytes = sum(size for _, size, _ in rows)
        self.digest = self._digest()

    def _digest(self) -> int:
        threads = max(1, min(torch.get_num_threads(), self.nbytes // GRAIN))
        result = torch.zeros(threads, dtype=torch.int64, device="cpu")
        _digest()(result, self.table, self.blocks, threads)
        return int(sum(result.tolist())) % 2**64

    def same(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these tensors lie where those lay, and hold what they held."""
        return tuple(map(look, tensors)) == self.looks and self._digest() == self.digest


def fingerprint(tensor: Tensor) -> tuple[Any, ...]:
    """What tells two moments of one tensor apart: where it lies and what it holds. Where the host cannot read the bytes
    without waiting for a device, its version stands for them."""
    if readable([tensor]) and has_digest():
        return look(tensor), Contents([tensor]).digest
    return look(tensor), version_of(tensor)
