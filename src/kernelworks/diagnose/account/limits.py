"""The least time for a call's work on this machine, with each input at the level of memory where it lies."""

from __future__ import annotations

import dataclasses
import functools
import math

from kernelworks.measure.roofline.bound import RIDGE, Bound, bound
from kernelworks.profile.cost import Work
from kernelworks.records import Ceilings

__all__ = ["limit"]


def limit(work: Work, far: float, threads: int, ceilings: Ceilings) -> Bound:
    """T_min of the work: ``far`` of what it reads comes from DRAM, the rest from the level that the call fits in.

    The terms are those of ``ceilings.bound``; the two kinds of reads take turns on the same cores, so they add.
    """
    return _limit(work, round(far, 2), threads, _Held(ceilings))


class _Held:
    """Ceilings as a key: they hold dictionaries, so they have no hash of their own."""

    def __init__(self, ceilings: Ceilings) -> None:
        self.ceilings = ceilings

    def __hash__(self) -> int:
        return hash(self.ceilings.fingerprint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self.ceilings is other.ceilings


@functools.lru_cache(maxsize=65536)
def _limit(work: Work, far: float, threads: int, held: _Held) -> Bound:
    ceilings = held.ceilings
    near_read, far_read = work.read * (1 - far), work.read * far
    near = bound(
        work.flop, work.transcendental, near_read + work.written, near_read + work.written, work.dtype, threads,
        ceilings, written_bytes=work.written, function=work.function,
    )  # fmt: skip
    if not far_read:
        return near
    distant = bound(0.0, 0.0, far_read, math.inf, work.dtype, threads, ceilings)
    terms = near.terms | {"memory": near.terms["memory"] + distant.terms["memory"]}
    farther = distant.terms["memory"] >= near.terms["memory"]
    level = "DRAM" if farther else near.level
    first, second = sorted(terms, key=lambda t: -terms[t])[:2]
    shown = {t: f"memory {level}" if t == "memory" else t for t in terms}
    close = terms[second] >= RIDGE * terms[first] and "dispatch" not in (first, second)
    if first == "memory":
        ceiling = distant.ceiling if farther and distant.terms["memory"] >= distant.terms["dispatch"] else near.ceiling
        ceiling = ceiling if level in ceiling else f"{level} read"
    else:
        ceiling = near.ceiling if near.regime.startswith(first) else first
    return dataclasses.replace(
        near,
        seconds=terms[first],
        regime=f"ridge {shown[first]}/{shown[second]}" if close else shown[first],
        ceiling=ceiling,
        terms=terms,
        level=level,
    )
