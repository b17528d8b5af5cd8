"""What no implementation can beat: the bytes that go in and come out, and the arithmetic, at what this machine was
measured to do.

The bytes are the inputs' and the answers', once each, from the innermost cache that holds them. The arithmetic is that
of the reference's products, which another algorithm may need less of: so only the bytes refuse by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelworks.ceilings import bound
from kernelworks.ceilings.bound import Bound, regime
from kernelworks.records import Ceilings, GpuCeilings

__all__ = ["Limit", "limit"]

CLOCKS_DIFFER = 0.8  # of a limit, above which two clocks and two measurements may differ


@dataclass(frozen=True)
class Limit:
    """``seconds`` is the least of the whole; ``moving_s`` what reading the inputs alone takes."""

    whole: Bound
    moving_s: float
    arithmetic_s: float

    @property
    def seconds(self) -> float:
        return self.whole.seconds

    def broken_by(self, seconds: float) -> str:
        """Which law of nature a time is against, "" for none."""
        if seconds < CLOCKS_DIFFER * self.moving_s:
            return f"{seconds:.3g} s a call, and reading its inputs once takes {self.moving_s:.3g} s on this machine"
        return ""

    def less_arithmetic(self, seconds: float) -> str:
        """Whether it must have found a way that needs less arithmetic."""
        if seconds < CLOCKS_DIFFER * self.arithmetic_s:
            return (
                f"{seconds:.3g} s a call, and the reference's arithmetic takes {self.arithmetic_s:.3g} s at this "
                "machine's peak: its answers are right, so it needs less of it"
            )
        return ""

    def waits_on(self, seconds: float) -> str:
        return regime(self.whole, seconds)


def limit(work: Mapping[str, Any], threads: int, ceilings: Ceilings | GpuCeilings) -> Limit:
    """Of the work that the process of the truth counted."""
    calls = work["calls"]
    inputs, weights = work["read"]
    flop = sum(c[1] for c in calls)
    none: list[Any] = ["", 0.0, 0.0, "float32", "exp"]
    busiest = max(calls, key=lambda c: c[1], default=none)
    called = max(calls, key=lambda c: c[2], default=none)
    moved, written = inputs + weights + work["written"], work["written"]
    whole = bound(
        flop, sum(c[2] for c in calls), moved, moved, busiest[3], threads, ceilings,
        written_bytes=written, function=str(called[4]),
    )  # fmt: skip
    near = bound(0.0, 0.0, inputs, inputs, "float32", threads, ceilings)
    return Limit(whole, near.terms["memory"], whole.terms["compute"])
