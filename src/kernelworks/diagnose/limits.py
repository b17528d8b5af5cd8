"""The least time for a call's work on this machine, with each input at the level of memory where it lies."""

from __future__ import annotations

import dataclasses
import functools
import math

from kernelworks.ceilings.bound import RIDGE, Bound, bound
from kernelworks.observe.trace import Call
from kernelworks.records import Ceilings
from kernelworks.work import Work
from kernelworks.work.operands import Arguments, Operand

__all__ = ["Reuse", "limit"]


class Reuse:
    """Which inputs of a call have left the caches since they were last touched.

    A tensor is far when more bytes than the last cache holds were touched since it was read or written. Weights that
    a run reads once were last touched a whole run ago. A tensor seen for the first time that is no weight has just
    been made. Calls are to be given in the order of the program.
    """

    def __init__(self, cache_bytes: int, persistent: dict[int, int], run_bytes: float) -> None:
        self.cache_bytes, self.persistent, self.run_bytes = cache_bytes, persistent, run_bytes
        self.clock = 0.0
        self.touched: dict[int, float] = {}
        self._known: dict[int, list[tuple[int, int]]] = {}

    def far(self, call: Call, work: Work) -> float:
        """The share of the call's input bytes that comes from beyond the last cache."""
        far, total = 0.0, 0.0
        tensors = self._known.get(call.like)
        if tensors is None:
            tensors = _tensors(call)
            if call.like:
                self._known[call.like] = tensors
        for pointer, size in tensors:
            total += size
            if pointer in self.touched:
                distance = self.clock - self.touched[pointer]
            else:
                distance = self.run_bytes if pointer in self.persistent else size
            far += size if distance > self.cache_bytes else 0
        self.clock += work.read + work.written
        for pointer, _ in tensors:
            self.touched[pointer] = self.clock
        return far / total if total else 0.0


def _tensors(call: Call) -> list[tuple[int, int]]:
    """Address and bytes of every tensor argument."""
    found = []
    for item, pointer in zip(Arguments(call).items, call.pointers, strict=False):
        pairs = zip(item, pointer, strict=False) if isinstance(item, list) and isinstance(pointer, list) else ()
        for operand, address in (*pairs, (item, pointer)):
            if isinstance(operand, Operand) and isinstance(address, int) and address:
                found.append((address, operand.bytes))
    return found


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
