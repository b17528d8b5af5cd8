"""Two records of one kind, figure by figure: what got slower or faster from the first to the second, and by how much
more than the noise.

| record | figures that are judged | figures that say where it lies |
|---|---|---|
| a diagnosis (``kernelworks diagnose --json``) | the wall clock, as it was and with the fix | hotspots, breakdown |
| benches (``kernelworks bench --json``, ``--save``) | our time of each case | |
| the suite (``benchmarks/programs.py``) | each program under each mode, over its own eager | |

The noise of a difference is that of both figures together, 2% at the least; a wall clock's is the interval that its
record shows. Of a figure that was taken while others used the machine (it is rough, or loud) nobody says that it got
slower, and no time on one kind of machine is held against a time on another. What others took of a program's cores (CPU
contention) is no time of the program's: it is left out of the wall clocks that are compared.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelworks.records.base import Record
from kernelworks.records.json_text import parse_json
from kernelworks.records.wall_clocks import CONTENTION, half_spread

__all__ = ["AMBIGUOUS", "SAME", "SLOWER", "ComparedFigure", "Comparison", "NoRecord", "compare"]

OUR_VARIANT = "kernelworks"  # the variant of a bench that is judged
LEAST_NOISE = 0.02  # of a time: two runs of one program are seldom nearer
SAME, SLOWER, AMBIGUOUS = "", "slower", "ambiguous"
CONTENTION_NOTE = "without CPU contention"


class NoRecord(ValueError):
    """A file is no record that can be compared, or the two are of different kinds; the text says which."""


@dataclass(frozen=True)
class ComparedFigure:
    """One figure in both records: seconds, or shares of the eager time of the same minute (``unit`` "x eager")."""

    name: str
    before: float
    after: float
    noise: float  # of the difference
    unit: str = "s"
    judged: bool = True  # of the whole program; else it says where the difference lies
    rough: bool = False  # others used the machine while one of the two was measured

    @property
    def change(self) -> float:
        """Of the first figure: 0.05 is 5% slower."""
        return self.after / self.before - 1 if self.before else math.inf

    @property
    def exceeds_noise(self) -> bool:
        """Whether the difference is more than noise."""
        return abs(self.after - self.before) > self.noise

    @property
    def is_change_known(self) -> bool:
        """Whether the first figure stands out of the noise: a share of nothing says nothing."""
        return self.before > self.noise


@dataclass(frozen=True)
class Comparison(Record):
    what: str  # "diagnoses", "benches", "runs of the suite"
    heads: tuple[dict[str, Any], dict[str, Any]]  # file, machine, date, commit, versions of each
    compared: tuple[ComparedFigure, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]  # names that one of the two alone has
    remarks: tuple[str, ...]  # what a reader must know first
    limit: float | None = None  # what was asked with --fail-if-slower
    verdict: str = SAME

    def slower(self, limit: float = 0.0) -> list[ComparedFigure]:
        """What is slower by more than ``limit`` and more than the noise."""
        return [c for c in self._over(limit) if c.exceeds_noise and not c.rough]

    def unclear(self, limit: float) -> list[ComparedFigure]:
        """What looks slower by more than ``limit``, within the noise or roughly."""
        return [c for c in self._over(limit) if not c.exceeds_noise or c.rough]

    def _over(self, limit: float) -> list[ComparedFigure]:
        return [c for c in self.compared if c.judged and c.change > limit]


@dataclass(frozen=True)
class _Figure:
    value: float
    noise: float = 0.0
    unit: str = "s"
    judged: bool = True
    rough: bool = False
    contention: float = 0.0  # of `value`


@dataclass(frozen=True)
class _Read:
    what: str
    head: dict[str, Any]
    figures: dict[str, _Figure]
    busy: str = ""  # why its figures give no verdict


# ---------------------------------------------------------------- reading


def _diagnosis(found: Mapping[str, Any]) -> _Read:
    fix = found.get("fix") or {}
    wall = float(found["wall_s"])
    rough, breakdown = bool(found.get("rough")), found["time_breakdown"]
    noise = max(float(fix.get("noise_s") or 0.0), half_spread([float(wall) for wall in found.get("walls_s", ())]))
    figures = {"wall clock": _Figure(wall, noise, rough=rough, contention=float(breakdown.get(CONTENTION, 0.0)))}
    if fix.get("rounds"):
        figures["wall clock with the fix"] = _Figure(
            float(fix["after_s"]), noise, rough=rough or bool(fix.get("ambiguous"))
        )
    parts: dict[str, float] = {}
    for hotspot in found["hotspots"]:
        if hotspot["op"] == CONTENTION:  # the time breakdown has it
            continue
        name = " ".join(word for word in (hotspot["op"], hotspot["module"], hotspot["source"]) if word)
        parts[name] = parts.get(name, 0.0) + float(hotspot["seconds"])
    parts |= {f"time breakdown: {name}": float(seconds) for name, seconds in breakdown.items()}
    share = max(noise / wall, LEAST_NOISE) if wall else 0.0
    figures |= {name: _Figure(seconds, share * wall, judged=False, rough=rough) for name, seconds in parts.items()}
    head = {
        "program": found["program"], "machine": found["peaks"]["name"], "kind": found["peaks"].get("kind", ""),
        "threads": found["threads"], "date": found["date"], "versions": found["versions"],
    }  # fmt: skip
    busy = (
        found.get("ambiguous", "")
        or ("it was interrupted" if found.get("interrupted") else "")
        or ("" if breakdown else "it has no figures")
    )
    return _Read("diagnoses", head, figures, busy=busy)


def _head(found: Mapping[str, Any]) -> dict[str, Any]:
    machine = found.get("machine", {})
    kept = {key: found[key] for key in ("threads", "date", "commit", "versions") if key in found}
    return {"machine": machine.get("name", ""), "kind": machine.get("kind", ""), **kept}


def _benches(found: Mapping[str, Any]) -> _Read:
    figures = {}
    for result in found["results"]:
        variant = next((variant for variant in result["variants"] if variant["name"] == OUR_VARIANT), None)
        if variant is None or result["gate"]:
            continue
        threads = f" {result['threads']} threads" if result.get("device", "cpu") == "cpu" else ""
        name = f"{result['op']} {result['dtype']} {result['case']} {result['cache']}{threads}"
        middle = (variant["high_us"] - variant["low_us"]) / 2
        spread = middle / math.sqrt(max(variant["samples"], 1))  # of the median, not of one sample
        figures[name] = _Figure(variant["median_us"] / 1e6, spread / 1e6, rough=bool(result.get("rough")))
    return _Read("benches", _head(found), figures)


def _suite(found: Mapping[str, Any]) -> _Read:
    figures = {}
    for row in found["rows"]:
        name = f"{row['program']} {row['mode']}"
        if "failed" in row or row["mode"] == "eager":
            continue
        if row["mode"] == "fix":
            share, noise = row["after_s"] / row["before_s"], row.get("noise_s", 0.0) / row["before_s"]
        else:
            share, noise = row["share"], row["spread"] * row["share"]
        rough = any(row.get(word) for word in ("loud", "ambiguous", "rough"))
        figures[name] = _Figure(share, noise, "x eager", rough=rough)
    return _Read("runs of the suite", _head(found), figures)


KINDS: tuple[tuple[Callable[[Any], bool], Callable[[Any], _Read]], ...] = (
    (lambda found: "time_breakdown" in found and "hotspots" in found, _diagnosis),
    (lambda found: "results" in found, _benches),
    (lambda found: any("mode" in row for row in found.get("rows", ())), _suite),
)


def _read(path: Path) -> _Read:
    """Raises OSError or NoRecord."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        found = parse_json(text)
        if isinstance(found, list):  # `bench --json` prints its results without a head
            found = {"results": found}
        read = next(read for known, read in KINDS if known(found))(found)
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration) as error:
        raise NoRecord(f"{path}: neither a diagnosis nor benches nor a record of the suite") from error
    return dataclasses.replace(read, head={"file": str(path), **read.head})


# ---------------------------------------------------------------- comparing


def _differ(first: _Read, second: _Read, *named: tuple[str, str]) -> list[str]:
    """In which of these, by the name in a head and in words, the two differ as far as both say it."""
    found = [(word, first.head.get(key), second.head.get(key)) for key, word in named]
    return [f"they are of two {word}: {one} and {two}" for word, one, two in found if one and two and one != two]


def _elsewhere(first: _Read, second: _Read) -> list[str]:
    """Why their times cannot be held against each other."""
    machines = _differ(first, second, ("machine", "machines"), ("kind", "kinds of machine"))
    return [*machines[:1], *_differ(first, second, ("threads", "numbers of threads"))]


def _remarks(first: _Read, second: _Read) -> list[str]:
    said = [*_differ(first, second, ("program", "programs")), *_elsewhere(first, second)]
    was, now = first.head.get("versions", {}), second.head.get("versions", {})
    moved = [f"{name} {was[name]} -> {now[name]}" for name in was if name in now and was[name] != now[name]]
    if moved:
        said.append(f"other versions: {', '.join(moved)}")
    for read in (first, second):
        if read.busy:
            said.append(f"{read.head['file']} gives no verdict: {read.busy}")
        elif any(figure.rough for figure in read.figures.values()):
            said.append(f"{read.head['file']} has rough figures: other processes used the machine")
    return said


def _without_contention(name: str, was: _Figure, now: _Figure) -> tuple[str, _Figure, _Figure]:
    """A figure of both records, as the program alone has it."""
    if not (was.contention or now.contention):
        return name, was, now
    one, other = (dataclasses.replace(each, value=each.value - each.contention) for each in (was, now))
    return f"{name} {CONTENTION_NOTE}", one, other


def _verdict(found: Comparison, reads: tuple[_Read, _Read]) -> str:
    if found.limit is None:
        return SAME
    if any(read.busy for read in reads) or _elsewhere(*reads):
        return AMBIGUOUS
    if found.slower(found.limit):
        return SLOWER
    return AMBIGUOUS if found.unclear(found.limit) else SAME


def compare(first: str | Path, second: str | Path, *, limit: float | None = None) -> Comparison:
    """The figures that both files have, the second's beside the first's.

    Args:
        first: a file of ``kernelworks diagnose --json``, of ``kernelworks bench --json`` or of the suite.
        second: another of the same kind, measured later.
        limit: the share by which nothing may be slower. The verdict is ``slower`` where something is by more than that
            and more than the noise, ``ambiguous`` where it only looks so (within the noise, or while others used the
            machine), or where the two cannot be held against each other: another machine, other threads, or a machine
            that was too busy.

    Raises OSError where a file cannot be read, NoRecord (a ValueError) where it is no record or has nothing in common
    with the other.
    """
    one, other = _read(Path(first)), _read(Path(second))
    if one.what != other.what:
        raise NoRecord(f"{first} has {one.what}, {second} {other.what}: nothing to compare")
    both = [name for name in one.figures if name in other.figures]
    if not any(one.figures[name].judged for name in both) and not (one.busy or other.busy):
        raise NoRecord(f"{first} and {second} have no figure in common")
    compared = []
    for name in both:
        name, was, now = _without_contention(name, one.figures[name], other.figures[name])
        noise = max(math.hypot(was.noise, now.noise), LEAST_NOISE * statistics.mean((was.value, now.value)))
        rough = was.rough or now.rough or bool(one.busy or other.busy)
        compared.append(ComparedFigure(name, was.value, now.value, noise, was.unit, was.judged, rough))
    apart = tuple(tuple(n for n in a.figures if n not in b.figures) for a, b in ((one, other), (other, one)))
    found = Comparison(
        one.what, (one.head, other.head), tuple(compared), (apart[0], apart[1]), tuple(_remarks(one, other)), limit
    )
    return dataclasses.replace(found, verdict=_verdict(found, (one, other)))
