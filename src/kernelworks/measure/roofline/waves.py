"""How the work of a call falls to multiprocessors: tiles dealt out to them, and programs that take turns on each."""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "ALL_KEYS_SHARE",
    "Pipe",
    "Share",
    "TileSplit",
    "Turn",
    "cut_along",
    "lengths_seen",
    "makespan",
    "product_of",
    "turns",
]

MANY = 32  # After so many rounds of tiles it no longer matters which multiprocessor ends last.
LANES = 32
ALL_KEYS_SHARE = 0.95  # A query that sees this share of the keys counts as seeing all.
VECTOR = 8  # 16 bytes hold so many elements of 16 bits.


@dataclass(frozen=True)
class Share:
    """``last``: what the multiprocessor that ends last has to do, as a share of what each would have of the counted
    work were it shared out evenly. Over how many ``rounds`` of tiles, which share of them is at work
    (``busy``), and which share of the result is put away when all else is done (``at_end``)."""

    last: float = 1.0
    rounds: float = 1.0
    busy: float = 1.0
    at_end: float = 1.0


@dataclass(frozen=True)
class TileSplit:
    """Of tiles that are left over after whole rounds, each is cut ``along`` a dimension, in steps of ``step``, so that
    all end together: if ``steps`` are at least ``least``, at ``cost`` steps for adding up what the parts found."""

    along: str
    step: int
    least: int
    cost: int


@dataclass(frozen=True)
class Pipe:
    """A tile goes ``along`` a dimension in steps of ``step``, with so many ``under_way``, so many tiles being
    ``resident`` on a multiprocessor."""

    along: str
    step: int
    under_way: int
    resident: int = 1


@dataclass(frozen=True)
class Turn:
    """Programs that each read what they need, compute and write it: ``each`` says what of the dimensions one takes,
    ``padded`` to what the elements along the last dimension are filled up, if a program takes all of it. So many are
    ``resident`` on a multiprocessor, of so many ``threads`` each; ``slots`` are instructions an element, ``unaligned``
    if a row of N does not begin at whole 16 bytes, so that elements are loaded one by one; ``waits`` is how
    often a program waits for memory, one after the other."""

    each: Mapping[str, int]
    resident: int
    threads: int
    slots: float
    unaligned: float = 0.0
    padded: int = 0
    waits: float = 1.0


def product_of(words: str, dims: Mapping[str, float]) -> float:
    """The value of factors between ``*``: numbers, and names of dimensions. KeyError for a name that is none."""
    value = 1.0
    for word in words.split("*"):
        name = word.strip()
        value *= float(name) if name.replace(".", "", 1).isdigit() else dims[name]
    return value


def cut_along(tiles: int, units: int, cut: TileSplit | None, dims: Mapping[str, float]) -> float:
    """Rounds that ``units`` need for so many tiles that take equally long. If none is cut, whole ones."""
    whole = math.ceil(tiles / units)
    rest = tiles % units
    if cut is None or not rest or tiles <= units:
        return whole
    steps = math.ceil(dims[cut.along] / cut.step)
    rest += units if 2 * rest < units else 0  # else a tile would be cut into more than two
    parts = rest * steps / units + cut.cost
    if steps < cut.least or parts >= math.ceil(rest / units) * steps:
        return whole
    return (tiles - rest) / units + parts / steps


def lengths_seen(each: float, down: int, high: int, wide: int, keys: float) -> list[float]:
    """Keys that each tile of queries passes over, if a query sees ``each`` on average: all, those up to its own
    place, or a window behind that. Blocks that an edge crosses are computed whole."""
    whole = math.ceil(keys / wide) * wide
    if each > ALL_KEYS_SHARE * keys:
        return [whole] * down
    if each > 0.45 * keys:  # up to its own place
        return [min(whole, math.ceil((at + 1) * high * keys / (down * high) / wide) * wide) for at in range(down)]
    return [min(whole, math.ceil((each + high) / wide) * wide + wide / 2, (at + 1) * high + wide) for at in range(down)]


@functools.lru_cache(maxsize=1024)
def makespan(lengths: tuple[float, ...], bands: int, multiprocessors: int) -> float:
    """When the last multiprocessor ends, of tiles of these lengths in each of ``bands``, dealt out longest first to
    whichever is free. Of many tiles the mean says it."""
    total = bands * sum(lengths)
    if bands * len(lengths) > MANY * multiprocessors:
        return total / multiprocessors + max(lengths) / 2 * (min(lengths) == max(lengths))
    free = [0.0] * multiprocessors
    for length in sorted(lengths, reverse=True):
        for _ in range(bands):
            heapq.heapreplace(free, free[0] + length)
    return max(free)


def turns(turn: Turn, dims: Mapping[str, float], multiprocessors: int) -> tuple[float, float, float]:
    """Turns that each multiprocessor's places have, one after the other; instructions of a thread of a program, and of
    all warps together."""
    programs = math.prod(math.ceil(dims[name] / size) for name, size in turn.each.items())
    elements = math.prod(turn.each.values())
    if turn.padded:
        elements *= math.ceil(dims["N"] / turn.padded) * turn.padded
    slots = turn.unaligned if turn.unaligned and dims["N"] % VECTOR else turn.slots
    of_thread = slots * elements / turn.threads
    return (
        max(1.0, programs / (multiprocessors * turn.resident)),
        of_thread,
        programs * of_thread * math.ceil(turn.threads / LANES),
    )
