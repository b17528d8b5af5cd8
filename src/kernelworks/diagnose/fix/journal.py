"""What a search has done so far, in plain values: another process goes on from there.

A trial may end the process that it runs in (a segmentation fault, a lost CUDA context, a compiler that does not end).
So the search writes down each trial before it begins and after it has ended. ``Journal`` takes these notes and forgets
them: the search of ``kernelworks.fix`` on a function that no other process can build has nobody to tell. A worker's
journal sends them to its supervisor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.compile_forms import Compilers, candidate_of, plain_candidate
from kernelworks.diagnose.fix.order import COMPILERS, stage
from kernelworks.diagnose.fix.worker_limit import Silence
from kernelworks.diagnose.optimization import Optimization, Promise
from kernelworks.diagnose.verify.agreement import Agreement
from kernelworks.measure.clock.noise import Noise, SampledWindows
from kernelworks.records.json_text import build_record

if TYPE_CHECKING:
    from kernelworks.diagnose.fix.search import Search
    from kernelworks.records import Diagnosis

__all__ = ["Journal", "ProcessSpoilt", "State", "as_state", "device_fault", "most_silent_s", "tries_of"]

RESTS_S = 20.0  # in which a trial's processes may do nothing
SILENT_SHARE = 0.6  # of the rest of the budget, in which a trial may be at work and say nothing
SILENT_S, SILENT_RUNS = 60.0, 3  # at the least, and runs of the program beside

State = dict[str, Any]  # of JSON's types


class ProcessSpoilt(Exception):
    """The process is not what it was, and cannot be put back: nothing else can be tried in it."""


class Journal:
    """Takes what a search notes. ``isolated``: the search has a process of its own, and another follows it.
    ``compilers`` work beside it."""

    isolated = False
    compilers: Compilers = Compilers()

    def note_diagnosis(self, diagnosis: Diagnosis) -> None:
        """Where the time goes, before anything is tried."""

    def note_trial(self, search: Search, one: Try) -> None:
        """A trial begins."""

    def note_outcome(self, search: Search) -> None:
        """It has ended."""

    def note_limit(self, seconds: float, cause: str = "") -> None:
        """A step of it begins that may take so many seconds, else ``cause`` is why it failed; 0 as it has ended."""

    def give_up(self, why: str) -> NoReturn:
        """The process is spoilt."""
        raise ProcessSpoilt(why)


def most_silent_s(search: Search, one: Try) -> Silence:
    """Seconds after which a trial that has said nothing is ended. A compiler that is at work has all that is left of
    the budget if nothing else waits for it, and if it makes anew what was kept."""
    assert search.scene.budget is not None
    left, runs_s = search.scene.budget.seconds_left, SILENT_RUNS * search.scene.wall
    compiles = stage(one) == COMPILERS
    share = 1.0 if compiles and (one.applied or not _waits_for_it(search, one)) else SILENT_SHARE
    return Silence(RESTS_S + runs_s, max(SILENT_S + runs_s, share * left), compiles)


def _waits_for_it(search: Search, one: Try) -> bool:
    """Whether others are still to be predicted or tried."""
    return any(other is not one and not other.why and not other.rejected and not other.found for other in search.tried)


def device_fault() -> str:
    """Why the CUDA device answers no more; "" if it does, or if there is none."""
    if not torch.cuda.is_initialized():
        return ""
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except RuntimeError as error:  # torch.AcceleratorError is one
        if isinstance(error, torch.cuda.OutOfMemoryError):
            return ""
        return str(error).strip().splitlines()[0]
    return ""


# ---------------------------------------------------------------- tries as plain values

PLAIN_FIELDS = ("why", "predicted", "told", "applied", "rejected", "allotted_s", "needs_s", "remaining", "displaced")


def as_state(search: Search, running: Try | None = None) -> State:
    """What a search knows of its candidates."""
    place = {id(one): number for number, one in enumerate(search.tried)}
    return {
        "tries": [_as_plain(one, place) for one in search.tried],
        "kept": [place[id(one)] for one in search.kept],
        "last": None if search.last is None else place.get(id(search.last)),
        "over": [place[id(one)] for one in search.over if id(one) in place],
        "impossible": [dataclasses.asdict(one) for one in search.impossible],
        "reports": [dataclasses.asdict(one) for one in search.reports],
        "steps": [dataclasses.asdict(one) for one in search.steps],
        "running": None if running is None else place.get(id(running)),
    }


def _as_plain(one: Try, place: Mapping[int, int]) -> State:
    promise, found = one.promise, one.found
    return {
        **{name: getattr(one, name) for name in PLAIN_FIELDS},
        "candidate": plain_candidate(one.candidate),
        "promise": promise and [promise.saves, promise.cost_s, promise.cost_bytes, promise.how],
        "parts": promise is not None and promise.less is not None,
        "upon": [place[id(other)] for other in one.upon if id(other) in place],
        "agreement": one.agreement and dataclasses.asdict(one.agreement),
        "samples": found and [list(pair) for pair in found.samples],
        "noise": found and dataclasses.asdict(found.noise),
        "loud": found is not None and found.loud,
    }  # fmt: skip


def tries_of(state: State, optimizations: Sequence[Optimization]) -> list[Try]:
    """The tries of a state; of those that were kept nothing is in place yet."""
    known = {optimization.name: optimization for optimization in optimizations}
    tries = [_as_try(one, known) for one in state["tries"]]
    for one, plain in zip(tries, state["tries"], strict=True):
        one.upon = tuple(tries[number] for number in plain["upon"])
    return tries


def _as_try(plain: State, known: Mapping[str, Optimization]) -> Try:
    candidate = candidate_of(plain["candidate"])
    one = Try(known[candidate.optimization], candidate, **{name: plain[name] for name in PLAIN_FIELDS})
    if plain["promise"] is not None:
        one.promise = Promise(*plain["promise"])
    if plain["agreement"] is not None:
        one.agreement = build_record(Agreement, plain["agreement"])
    if plain["samples"] is not None:
        window = tuple((was, now) for was, now in plain["samples"])
        one.found = SampledWindows((window,), (build_record(Noise, plain["noise"]),), 0, plain["loud"])
    if plain["parts"] and one.promise is not None and not one.found:
        one.promise = None  # which parts of it may be tried instead is known to the process that predicted it alone
    return one
