"""What a rule sees and what it says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from kernelworks.dispatch.op import OPS

__all__ = ["FREE", "PYTHON", "REACH", "Advice", "Rule", "View", "replacement_ops"]

PYTHON, FREE = "python", "free memory"  # the names of the hotspots between ops
REACH = 0.6  # of the measured peak: a good kernel reaches at least that; the low end of a range assumes it


@dataclass(frozen=True)
class View:
    """A hotspot as the rules see it. Times are seconds of one run; ``parts`` are those of the time breakdown."""

    op: str
    module: str
    source: str
    shapes: tuple[tuple[int, ...], ...]  # of a typical call's tensor arguments
    dtypes: tuple[str, ...]
    calls: int
    seconds: float
    wall: float
    bottleneck: str
    bound: float  # what its calls take at least, dispatch included
    parts: dict[str, float] = field(default_factory=dict)
    siblings: frozenset[str] = frozenset()  # the ops called in the same module
    shares: dict[str, float] = field(default_factory=dict)  # of the seconds, in calls that are part of a pattern
    strides: tuple[tuple[int, ...], ...] = ()  # of the typical call's tensor arguments
    result: str = ""  # the dtype that a typical call returns
    unit: str = "float32"  # the dtype that its arithmetic is done in
    written: float = math.inf  # bytes that its calls write
    kernel: str = ""  # "kw.linear: avx512", if a verified kernel of ours would be taken
    threads: int = 1
    device: str = "cpu"
    critical: float = math.inf  # of the seconds, those on the critical path

    @property
    def base_op(self) -> str:
        """The op's name without what says that it is part of a backward."""
        return self.op.removesuffix(" (backward)")

    @property
    def share(self) -> float:
        return self.seconds / self.wall if self.wall else 0.0

    @property
    def achieved_share(self) -> float:
        return min(1.0, self.bound / self.seconds) if self.seconds else 1.0

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the first tensor."""
        return int(getattr(torch, self.dtypes[0]).itemsize) if self.dtypes else 4

    @property
    def layout(self) -> str:
        """How the first tensor lies if it is a batch of images: by channels first, or last; "" if that is one."""
        if not self.shapes or not self.strides or len(self.shapes[0]) != 4 or len(self.strides[0]) != 4:
            return ""
        (_, channels, height, width), (_, of_channel, _, of_column) = self.shapes[0], self.strides[0]
        if channels == 1 or height * width == 1:
            return ""
        return "channels first" if of_column < of_channel else "channels last"

    def within(self, pattern: str) -> float:
        """The share of the seconds in calls that are part of a pattern (``patterns``)."""
        return self.shares.get(pattern, 0.0)

    def part(self, word: str) -> float:
        """Seconds of the part whose name starts with ``word``."""
        return sum(value for name, value in self.parts.items() if name.startswith(word))

    def excess(self, reach: float = 1.0) -> float:
        """Seconds above what the work takes at ``reach`` of its measured peak."""
        return max(0.0, self.seconds - self.bound / reach)


@dataclass(frozen=True)
class Advice:
    """What is wrong, what to do, and the recoverable time: its low and its high end, in seconds of one run.

    ``ops`` are those of ours that the action puts in place of several of torch's: nothing is predicted for them if no
    tuning record says that they are faster here.
    """

    problem: str
    action: str
    low: float
    high: float
    ops: tuple[str, ...] = ()
    optimization: str = ""  # that does it, if a fix tries one
    unknown: bool = False  # a kernel of ours could serve it and was not benchmarked: its gain is unknown, not 0


def replacement_ops(pattern: str) -> tuple[str, ...]:
    """The ops of ours that do a whole pattern in one call. Their op packages say so."""
    return tuple(op.name for op in OPS.values() if op.pattern == pattern)


@dataclass(frozen=True)
class Rule:
    """One problem. ``applies`` gives the advice, or None if the hotspot does not have this problem. It
    is asked about programs on these ``devices`` only. ``optimization`` names the one that does what the rule advises:
    if a fix has tried that on the whole program and rejected it, nothing is predicted for it."""

    name: str
    applies: Callable[[View], Advice | None]
    devices: tuple[str, ...] = ("cpu", "cuda")
    optimization: str = ""
