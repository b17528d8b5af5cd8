"""From times of hand-overs to paces and speeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from kernelworks.records.judgement import Pace, Speed

__all__ = ["pace", "speed"]

WIDE = 0.10  # of a ratio, from which on its interval is called ambiguous


def pace(variant: str, seconds: Sequence[float], nothing: float) -> Pace:
    """Of a variant's hand-overs, less ``nothing``: what one takes that is answered without work."""
    net = sorted(max(0.0, s - nothing) for s in seconds)

    def at(share: float) -> float:
        return net[min(len(net) - 1, int(share * len(net)))]

    return Pace(variant, statistics.median(net), at(0.1), at(0.9), len(net))


def speed(over: str, theirs: Sequence[float], ours: Sequence[float], nothing: float) -> Speed:
    """Each pair is of the same inputs, handed over one after the other. The interval holds the median of all ratios
    with 95%, by the binomial distribution of how many lie below it. Of a pair in which both are quicker than the clock
    can see nothing is known: it counts as 0 for the low end and as the largest ratio for the high one, so that an
    interval that begins at 0 says that there is no ratio."""
    least = 0.02 * nothing  # below it a time is the clock's own
    pairs = [(t - nothing, o - nothing) for t, o in zip(theirs, ours, strict=True)]
    known = [max(t, least) / max(o, least) for t, o in pairs if max(t, o) > least]
    unseen = len(pairs) - len(known)
    ratios = sorted(known + [1.0] * unseen)
    count = len(ratios)
    off = math.ceil(0.98 * math.sqrt(count))  # 1.96 standard deviations of count/2
    low = sorted([0.0] * unseen + known)[max(0, count // 2 - off)]
    high = sorted(known + [max(known, default=1.0)] * unseen)[min(count - 1, count // 2 + off)]
    middle = statistics.median(ratios)
    return Speed(over, middle, low, high, high - low > WIDE * middle)
