"""What every experiment is: a question, an expectation that is written down first, and a function that finds out."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelworks.machine import machine
from kernelworks.records.experiment import Axis, Experiment, Point, Series

if TYPE_CHECKING:
    from kernelworks.measure.clock.race import TimeStats

__all__ = ["Findings", "Plan", "Say", "computed_point", "one_thread", "run_plan", "timed_point", "timed_variants"]

Say = Callable[[str], None]
VARIANT_S = 0.25  # of each variant: a figure of a lesson needs less than one that decides between kernels


@dataclass(frozen=True)
class Findings:
    """What a run of an experiment found."""

    x: Axis
    y: Axis
    series: tuple[Series, ...]
    readings: tuple[str, ...]
    rough: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """``run(say, rough)`` does it. ``seconds``: about what it takes. ``page``: a file of ``docs/explanation``."""

    name: str
    question: str
    expected: str
    page: str
    seconds: int
    is_timed: bool
    run: Callable[[Say, bool], Findings]


def run_plan(plan: Plan, say: Say, *, rough: bool = False) -> Experiment:
    """The record of one run here. Raises Ambiguous if a timed one found the machine busy, unless it may be ``rough``;
    BuildError without a C++ compiler, if it needs one."""
    found = plan.run(say, rough)
    return Experiment(
        name=plan.name,
        question=plan.question,
        expected=plan.expected,
        machine=machine().name,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        x=found.x,
        y=found.y,
        series=found.series,
        readings=found.readings,
        page=f"docs/explanation/{plan.page}",
        is_timed=plan.is_timed,
        rough=found.rough,
        notes=found.notes,
    )


def timed_variants(
    calls: Mapping[str, Callable[[], object]], say: Say, *, rough: bool
) -> tuple[dict[str, TimeStats], str]:
    """Seconds a call of each, all in turns, and how rough they are ("" if they are not). Raises Ambiguous."""
    from kernelworks.measure.clock.noise import Quiet
    from kernelworks.measure.clock.race import race

    def numbered(call: Callable[[], object]) -> Callable[[int], object]:
        return lambda _number: call()

    say(f"{len(calls)} variants in turns, about {len(calls) * VARIANT_S + 1:.0f} s")
    quiet = Quiet(patience=40, rough=rough)
    found = race({name: numbered(call) for name, call in calls.items()}, 1, budget_s=VARIANT_S, quiet=quiet)
    taken = f"other processes used {100 * found.taken:.0f}% of the cores" if found.taken else ""
    return {name: found.stats(name) for name in calls}, taken


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread meanwhile: an experiment that is not about threads should not hang on how many there are."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def timed_point(x: float, stats: TimeStats, work: float, label: str = "") -> Point:
    """A rate: ``work`` a second, in 10^9 of it."""
    return Point(x, work / stats.median / 1e9, work / stats.high / 1e9, work / stats.low / 1e9, label)


def computed_point(x: float, value: float, label: str = "") -> Point:
    return Point(x, value, value, value, label)
