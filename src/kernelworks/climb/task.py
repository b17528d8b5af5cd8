"""What the process in which rungs run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from kernelworks.records import GpuPeaks, Peaks

__all__ = ["Task"]


@dataclass(frozen=True)
class Task:
    """``rungs`` are climbed in this order. ``before``: rungs of which the last one that is right is the first one's
    rung before; those of ``trusted`` were verified already."""

    folder: str
    size: dict[str, int]
    rungs: tuple[int, ...]
    before: tuple[int, ...]
    trusted: tuple[int, ...]
    known: Peaks | GpuPeaks
    budget_s: float
    watch: bool
    rough: bool = False
