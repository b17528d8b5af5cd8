"""One problem's judge, kept open: its reference, its processes and what candidates are timed against are made at the
start, and serve as many candidates as come."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from kernelworks.judge.formats import candidate_of
from kernelworks.judge.harness import Bench, Budget, NoVerdict
from kernelworks.judge.least_time import Limit, limit
from kernelworks.judge.problem import Candidate, Misread, Problem
from kernelworks.judge.process.pool import Nursery, ProcessEnded
from kernelworks.judge.process.sanitise import one_line, sanitize_text
from kernelworks.judge.roles.device import Host
from kernelworks.judge.roles.handle import DeviceInUse
from kernelworks.judge.roles.on_cuda import Cuda
from kernelworks.judge.speed import pace, speed
from kernelworks.judge.trial import Trial
from kernelworks.judge.trial_result import TrialResult
from kernelworks.machine import gpu, has_gpu, machine
from kernelworks.measure.clock.turns import measuring_alone
from kernelworks.measure.peaks import get_peaks as measured_peaks
from kernelworks.profile.program import versions
from kernelworks.records import GpuPeaks, Peaks
from kernelworks.records.judgement import BASELINES, Charge, Judgement

__all__ = ["OVER", "Sitting", "Work"]

CLOCKS_APART = 2.0  # what the events of a process say and what the supervisor sees, from which on both are shown
OVER = BASELINES[:1]  # where nothing is asked for
Say = Callable[[str], None]
Text = tuple[str, str, str]  # name, text, language
Turn = Callable[[], AbstractContextManager[None]]


def _silent(line: str) -> None:
    pass


@contextlib.contextmanager
def _on_one_thread() -> Iterator[None]:
    """The supervisor writes and compares on one thread: a second one would spin, for milliseconds after each loop that
    it had a part in, on a core that the candidate has just been let go on with."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Work:
    """What a problem cannot do without, and how long that takes here at the least."""

    def __init__(self, counted: Mapping[str, Any], threads: int, peaks: Peaks | GpuPeaks) -> None:
        self._counted, self.peaks = counted, peaks
        self.limit = self.limit_on(threads)
        self.flop = float(sum(call[1] for call in counted["calls"]))
        self.bytes = float(sum(counted["read"]) + counted["written"])

    def limit_on(self, threads: int) -> Limit:
        """The least time on a number of threads."""
        return limit(self._counted, threads, self.peaks)


class Sitting:
    """``with Sitting(problem) as sitting: sitting.judge(candidate)``, as often as wanted. ``work`` is None, and
    ``nothing`` says why, where the problem allows no verdict. ``alone()`` lasts as long as times are taken: where
    several sit on one machine, one of them at a time. On a GPU that they share it lasts as long as a candidate's calls
    do, since others' kernels there would count as its own, and ``beside()`` as long as references are run and
    candidates are built: any number of those beside each other, while nobody is ``alone()``. ``known`` says of a text
    whether it is a kernel of ours, and ``provided`` are files that such a one would compile anew; ``modules`` are those
    of a ``Nursery`` of its own. With ``keep_builds`` what was built of a candidate that is right waits in its nursery
    for whoever judges the same text once more. Where ``many`` come, what serves all of them is made at the start too,
    whoever the first is.

    Raises ValueError for a baseline that there is not.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        over: Sequence[str] = OVER,
        budget: Budget | None = None,
        threads: int | None = None,
        peaks: Peaks | GpuPeaks | None = None,
        nursery: Nursery | None = None,
        interpreted: bool = False,
        device: Host | None = None,
        progress: Say | None = None,
        alone: Turn | None = None,
        beside: Turn | None = None,
        known: Callable[[str], bool] | None = None,
        provided: Sequence[Path] = (),
        modules: Sequence[str] = (),
        many: bool = False,
        keep_builds: bool = False,
    ) -> None:
        unknown = [word for word in over if word not in BASELINES]
        if unknown:
            raise ValueError(f"over takes {', '.join(BASELINES)}, got {unknown[0]!r}")
        self.problem, self.over, self.budget = problem, over, budget or Budget()
        self.device = device or (Cuda() if problem.device == "cuda" else Host())
        self.threads = threads or torch.get_num_threads()
        self.say = progress or _silent
        self.work: Work | None = None
        self.nothing: NoVerdict | None = None
        self._peaks, self._nursery, self._interpreted = peaks, nursery, interpreted
        self._turn, self._beside = alone or contextlib.nullcontext, beside or contextlib.nullcontext
        self._provided, self._modules, self._many = provided, modules, many
        self._known, self._keep_builds = known or (lambda source: False), keep_builds

    def __enter__(self) -> Sitting:
        missing, limits = self._missing(), self._peaks
        with contextlib.ExitStack() as stack:
            nursery = self._nursery or Nursery(interpreted=self._interpreted, modules=self._modules)
            if self._nursery is None and missing is None:
                stack.enter_context(nursery)
            self.bench = stack.enter_context(Bench(nursery, self.problem, self.budget, self.threads, self.device))
            self.bench.alone, self.bench.beside = self._alone, self._beside
            self.bench.provided = self._provided
            if missing is None:
                limits = limits or measured_peaks(rough=True, device=self.device.name)
                stack.enter_context(_on_one_thread())
                self._set_up(limits)
            self.nothing = self.nothing or missing
            self._open = stack.pop_all()
        return self

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """While times are taken: after those of this judge's host, and of any other measurement of this user's."""
        with self._turn(), measuring_alone(self.say):
            yield

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _missing(self) -> NoVerdict | None:
        """Why candidates cannot be judged here at all, where they cannot."""
        if self.problem.device not in ("cpu", "cuda"):
            said = f"the problem is for {self.problem.device}; candidates are judged on a CPU or with CUDA"
        elif self.device.name == "cuda" and not has_gpu():
            said = "the problem is for a GPU, and torch sees none here"
        else:
            return None
        return NoVerdict("undecided", said)

    def _set_up(self, limits: Peaks | GpuPeaks) -> None:
        """The reference, and the least time; or why there is none."""
        try:
            self.say("the reference")
            self.bench.collect()
            work = Work(self.bench.work(), self.threads, limits)
            if self._many:
                self.bench.prepare(self.over)
            self.work = work
        except NoVerdict as error:
            self.nothing = error

    def judge_text(self, name: str, source: str, language: str, coming: Sequence[Text] = ()) -> Judgement:
        """Of a candidate's whole text; one that is not of the problem's format is refused like one that does not
        load. ``coming``: the names, texts and languages of those that are asked for next, which may be built beside
        it."""
        try:
            one = self._read(name, source, language)
        except Misread as error:
            tried = TrialResult(reasons=[Charge("does not load", sanitize_text(str(error)))])
            return self._judgement(Candidate(name, {}, "", language), tried, self.nothing, 0.0)
        later = list[Candidate]()
        for text in coming:
            with contextlib.suppress(Misread):
                later.append(self._read(*text))
        return self.judge(one, later)

    def _read(self, name: str, source: str, language: str) -> Candidate:
        """Raises Misread."""
        read = candidate_of(name, source, self.problem, language)
        return dataclasses.replace(read, known=self._known(source))

    def judge(self, one: Candidate, coming: Sequence[Candidate] = ()) -> Judgement:
        """What is found of a candidate. Nothing of it runs in this process, and nothing of it stays behind."""
        begin, tried, why = time.monotonic(), TrialResult(), self.nothing
        if why is None and one.language == "cuda" and self.device.name == "cpu":
            why = NoVerdict("undecided", "a candidate in CUDA, and its problem is judged on the CPU: judge it for cuda")
        if why is None:
            try:
                tried = Trial(self.bench, one, self.over, self.say, coming).run()
            except NoVerdict as error:
                why = error
            except ProcessEnded as error:
                why = NoVerdict("undecided", f"a process of the judge's own {error}")
            except DeviceInUse as error:
                why = NoVerdict("undecided", str(error))
            finally:
                again = self._keep_builds and why is None and not tried.reasons
                self.bench.dismiss(one if again else None)
        return self._judgement(one, tried, why, time.monotonic() - begin)

    def _judgement(self, one: Candidate, tried: TrialResult, why: NoVerdict | None, seconds: float) -> Judgement:
        bench, problem, least = self.bench, self.problem, self.work.limit if self.work else None
        reasons, remarks = list(tried.reasons), [*bench.remarks, *tried.remarks]
        ours = tried.seconds.get("candidate", [])
        nothing = tried.nothing_s
        paces = tuple(pace(name, of, nothing) for name, of in tried.seconds.items() if of and len(of) == len(ours))
        speeds = tuple(speed(name, tried.seconds[name], ours, nothing) for name in self.over if ours and nothing)
        if any(one.low <= 0 for one in speeds):
            said = f"most calls are quicker than the clock can see beside {nothing:.2g} s of a hand-over"
            remarks.append(Charge("no ratio", said))
        net = next((p.median_s for p in paces if p.variant == "candidate"), 0.0)
        interpreted = one.language == "triton" and self.device.name == "cpu"
        if least is not None and tried.took is not None and not interpreted:
            broken, less = least.broken_by(tried.took, bench.cases[0].given), net and least.less_arithmetic(net)
            if broken:
                reasons.append(Charge("faster than physics", broken))
            elif less:
                remarks.append(Charge("less arithmetic", less))
        if interpreted and paces:
            paces, speeds = (), ()
            said = "Triton's interpreter ran its kernels: right or wrong alone is judged"
            remarks.append(Charge("interpreted", said))
        if tried.events_s and net and max(tried.events_s, net) > CLOCKS_APART * min(tried.events_s, net):
            said = f"{tried.events_s:.3g} s a call by its own events, {net:.3g} s by the judge's clock, which counts"
            remarks.append(Charge("clocks", said))
        if one.language == "torch" and tried.calls and not reasons:
            remarks.append(Charge("no kernel of its own", "all of its work is torch's"))
        if why is not None:
            reasons = [Charge(why.kind, str(why))]
        verdict = why.kind if why is not None else "refused" if reasons else "right"
        return Judgement(
            candidate=one_line(one.name), problem=problem.name, format=problem.format, language=one.language,
            verdict=verdict,
            reasons=tuple(reasons), remarks=(*(Charge("read", line) for line in problem.remarks), *remarks),
            worst=tried.worst if tried.calls else None, calls=tried.calls, elements=tried.elements,
            draws=tuple(dict.fromkeys(c.draw for c in bench.cases)), shapes=(problem.shapes[0].name, *tried.shapes),
            bound=bench.cases[0].why if bench.cases else (), paces=paces, speeds=speeds,
            limit_s=least.seconds if least else None, bound_by=least.bound_by(net) if least and paces else "",
            peak=least.whole.peak if least else "", weights=tried.weights, kernels=tried.kernels,
            kept_from=tried.kept, open_to=tried.open, threads=bench.threads, build_s=tried.build_s, seconds=seconds,
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            machine=gpu().name if self.device.name == "cuda" and has_gpu() else machine().name, versions=versions(),
            device=self.device.name, events_s=tried.events_s or None,
        )  # fmt: skip
