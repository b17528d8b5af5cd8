"""Where a program's time goes on this machine, what is recoverable, and with ``fix`` the gain predicted and got."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any

import torch

from kernelworks.build import BuildError, background
from kernelworks.diagnose.account.on_cpu import Cpu
from kernelworks.diagnose.account.on_gpu import Gpu
from kernelworks.diagnose.counters import checks
from kernelworks.diagnose.fix.compiler_warnings import without_compiler_warnings
from kernelworks.diagnose.fix.journal import Journal, State
from kernelworks.diagnose.fix.plan import apply, load_plan
from kernelworks.diagnose.fix.search import Search
from kernelworks.diagnose.forecast.device import Device
from kernelworks.diagnose.forecast.forecaster import Forecaster
from kernelworks.diagnose.forecast.races import NoRaces
from kernelworks.diagnose.record import make_diagnosis, with_alarms
from kernelworks.diagnose.sentence import ROUGH_NOW, contention
from kernelworks.diagnose.slow_paths.look import slow_paths
from kernelworks.machine.environment import cache_dir, can_keep
from kernelworks.measure.clock.noise import Ambiguous, with_noise
from kernelworks.measure.clock.page_faults import Memory
from kernelworks.measure.clock.turns import measuring_alone
from kernelworks.measure.peaks import get_peaks as measured_peaks
from kernelworks.measure.peaks import unmeasured_gpu_peaks, unmeasured_peaks
from kernelworks.measure.peaks.survey import BRIEF_WAIT_S
from kernelworks.profile import overhead
from kernelworks.profile.on_cpu import expected_runs
from kernelworks.profile.on_gpu import GpuTimeline, uses_gpu
from kernelworks.profile.process_state import Surroundings
from kernelworks.profile.program import Program, from_function, from_target, note_reruns
from kernelworks.profile.timeline import PATIENCE, Timeline, first_run
from kernelworks.records import Diagnosis, GpuPeaks, Peaks
from kernelworks.records.fix import CHANGES
from kernelworks.report.diagnose import INTERRUPTION
from kernelworks.report.terminal import Notice

__all__ = ["Fixing", "DiagnosisInterrupt", "apply", "diagnose", "diagnose_script", "run_diagnosis"]

Say = Callable[[str], None]
BUDGET_S = 15.0  # the timed runs take at most so many seconds
MALLOC_FINDING = (
    "during the diagnosis malloc was set to keep freed memory (mallopt): the program takes no fresh pages by itself, "
    "or the setting was tried; from here on malloc keeps blocks up to 32 MiB, which is as far as it adapts by itself, "
    "and it adapts no more"
)
ONE_ROUND = (
    "what this machine can do was measured in one round, which serves for half an hour; "
    "`kernelworks machine` measures until two rounds agree, once"
)
FIRST_RUN = "First run here: measuring peak rates, about {seconds} s, {kept}"
NOT_YET = "not measured yet"
FIX = 16.0  # a fix may take so many times the budget of a diagnosis: compilers take their time
WORTH_SAYING_S = 15.0  # A diagnosis that is expected to take longer says so.
BUILD_WAIT_S = 60.0  # for a build that runs in the background
RACES = 0.2  # of a diagnosis's budget, for benchmarks of single calls


def diagnose(
    fn: Callable[..., Any],
    *args: Any,
    fix: bool | list[Search] = False,
    program: str = "",
    peaks: Peaks | GpuPeaks | None = None,
    budget_s: float = BUDGET_S,
    progress: Say | None = None,
    rough: bool = False,
    fix_s: float | None = None,
    allow: Sequence[str] = (),
) -> Diagnosis:
    """Runs ``fn(*args)`` several times and says where its wall clock goes.

    Every op is timed, modelled (flop, bytes, elementary functions) and held against what this machine was measured to
    do; the parts of the time breakdown add to the wall clock. The first call warms up. ``fn`` must do the same work
    each time.

    Args:
        fn: the program: a function that does the whole work once.
        *args: its arguments.
        fix: also search for optimizations: predict what each gains (our kernels, ``torch.compile``, ...), check the
            outputs against float64, measure in alternation, keep what gains, and undo everything at the end. A list is
            given the search besides.
        program: the name to show, by default the function's.
        peaks: what the machine can do; by default measured once (up to a minute) and cached.
        budget_s: seconds for the timed runs and for sorting their calls; at least one plain and one profiled run are
            made, and of a program of very many calls the first are surveyed for all.
        fix_s: seconds for a fix beside the program's own runs, by default sixteen times ``budget_s``. An
            optimization that would take more than is left of it is not tried, and says which budget would do.
        allow: which changes of numbers may be tried: ``tf32``, ``bf16``, ``int8``, ``fp8``.
        progress: called with one line of text at each step.
        rough: give figures even if other processes use the machine: their intervals are wide, and they are marked.

    Returns:
        records.Diagnosis: the hotspots worst first, the time breakdown, the findings, and with ``fix`` the fix. If
        others used the machine too much for figures and ``rough`` was not asked for, its ``ambiguous`` says so, as does
        the sentence; nothing is predicted then, and nothing is fixed. If only its peaks could not be measured, they are
        unknown, and so is each op's share of them.

    Raises:
        TypeError: ``fn`` cannot be called; ``budget_s`` is no number.
        ValueError: ``budget_s`` is not above 0, or not finite.
        RuntimeError: torch's profiler is running already or in ``fn``; ``fn`` exits with a code, or is async in a
            running event loop.
        Whatever ``fn`` raises.
    """
    made, say = from_function(fn, args, program), progress or _silent
    return run_diagnosis(made, Fixing.of(fix, fix_s, budget_s, allow), peaks, budget_s, say, given=args, rough=rough)


def diagnose_script(
    target: str,
    args: Sequence[str] = (),
    fix: bool = False,
    progress: Say | None = None,
    *,
    peaks: Peaks | GpuPeaks | None = None,
    budget_s: float = BUDGET_S,
    counters: bool = False,
    rough: bool = False,
    module: bool = False,
    fix_s: float | None = None,
    allow: Sequence[str] = (),
    plan: str | PathLike[str] | None = None,
) -> Diagnosis:
    """``diagnose`` for a script with its arguments, or for ``file.py:function``.

    With ``module`` the target is what ``python -m`` takes. ``counters`` (GPU programs only) also runs the program in a
    process of its own under Nsight Compute and holds our flop and bytes against its counters; if they cannot be read
    a finding says why. With a ``plan``, as a fix made it, that is applied, verified and measured, and nothing is
    searched.

    A fix is searched in worker processes: a trial that ends, hangs or outgrows its process costs that trial alone. It
    ends within ``fix_s`` and 30 s and three runs of the program.

    Raises program.TargetError (a FileNotFoundError, AttributeError or TypeError) if ``target`` names no program that
    can be run, OSError or ValueError if ``plan`` is none, RuntimeError if a script exits with a code, and what
    ``diagnose`` raises.
    """
    fixing, say = Fixing.of(fix, fix_s, budget_s, allow, plan), progress or _silent
    counted = (target, *args) if counters else ()
    command = (*(["-m"] if module else []), target, *(("--", *args) if args else ()))
    try:
        if fixing is None:
            program = from_target(target, args, module=module)
            found = run_diagnosis(program, None, peaks, budget_s, say, counted, rough=rough)
        else:
            from kernelworks.diagnose.fix.supervisor import Request, supervise

            request = Request(
                target=target, args=args, module=module, peaks=peaks, budget_s=budget_s, fix_s=fixing.seconds,
                allow=fixing.allow, plan=fixing.plan, counters=counted, rough=rough,
            )  # fmt: skip
            found = supervise(request, say)
    except DiagnosisInterrupt as stopped:
        stopped.command = command
        raise
    return dataclasses.replace(found, command=command, unfixed=fix and found.fix is None)


def _silent(line: str) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Fixing:
    """What a fix may take, and which changes of numbers it may try."""

    seconds: float
    allow: tuple[str, ...]
    searched: list[Search] | None = None  # the search is appended to it
    plan: Mapping[str, Any] | None = None  # it is applied in place of a search
    journal: Journal = dataclasses.field(default_factory=Journal)
    resumed: State | None = None  # what another process has noted
    began: float | None = None  # on the monotonic clock, if the search began in another process

    @classmethod
    def of(
        cls, fix: bool | list[Search], fix_s: float | None, budget_s: float, allow: Sequence[str], plan: Any = None
    ) -> Fixing | None:
        """None without a fix. Raises OSError, TypeError or ValueError."""
        check_budget(budget_s)
        if fix_s is not None:
            check_budget(fix_s)
        unknown = [word for word in allow if word not in CHANGES]
        if unknown:
            raise ValueError(f"allow takes {', '.join(CHANGES)}, got {unknown[0]!r}")
        if fix is False:
            return None
        seconds, searched = FIX * budget_s if fix_s is None else fix_s, fix if isinstance(fix, list) else None
        return cls(seconds, tuple(allow), searched, None if plan is None else load_plan(plan))


def check_budget(budget_s: float) -> None:
    """Raises TypeError or ValueError if ``budget_s`` is no finite number above 0."""
    if isinstance(budget_s, bool) or not isinstance(budget_s, (int, float)):
        raise TypeError(f"budget_s must be a number of seconds, got {type(budget_s).__name__} {budget_s!r}"[:200])
    if not 0 < budget_s < math.inf:
        raise ValueError(f"budget_s must be a finite number of seconds above 0, got {budget_s}")


def run_diagnosis(
    program: Program,
    fix: Fixing | None,
    peaks: Peaks | GpuPeaks | None,
    budget_s: float,
    say: Say,
    counters: tuple[str, ...] = (),
    given: Sequence[Any] = (),
    *,
    rough: bool = False,
) -> Diagnosis:
    """The process is as it was when this returns, but for what the findings say of its memory; what the program changed
    in it is among them too."""
    check_budget(budget_s)
    seen = _Seen(program.name)
    program = dataclasses.replace(program, run=note_reruns(seen.timed_run(program.run)))
    alone, built = measuring_alone(say), background.measuring(say, BUILD_WAIT_S)
    with alone, built, Surroundings(given) as around, Memory() as memory, seen:
        found = _observed(program, fix, peaks, budget_s, say, counters, memory, around, seen, rough=rough)
        once = isinstance(found.peaks, Peaks) and found.peaks.versions.get("rounds") == "1"
        more = (*([MALLOC_FINDING] if memory.has_changed else ()), *([ONE_ROUND] if once else ()))
        return dataclasses.replace(found, findings=(*found.findings, *around.look()), notes=(*found.notes, *more))


class DiagnosisInterrupt(KeyboardInterrupt):
    """A diagnosis was interrupted. ``walls`` are the seconds of the program's runs until then."""

    def __init__(self, walls: Sequence[float], partial: Callable[[], Diagnosis | None]) -> None:
        super().__init__()
        self.walls, self._partial = tuple(walls), partial
        self.command: tuple[str, ...] = ()
        self.options: tuple[str, ...] = ()

    def diagnosis(self) -> Diagnosis | None:
        """What was measured until then, if every op was timed: times, calls and lines, and the fix as far as it got."""
        found = self._partial()
        if found is None:
            return None
        said = f"{INTERRUPTION}; {found.sentence}"
        return dataclasses.replace(found, sentence=said, interrupted=True, command=self.command, options=self.options)


@dataclasses.dataclass
class _Seen:
    """What a diagnosis has measured so far. As a context: an interrupt carries it."""

    name: str
    walls: list[float] = dataclasses.field(default_factory=list)
    timeline: Timeline | None = None
    device: Device | None = None

    def timed_run(self, run: Callable[[], Any]) -> Callable[[], Any]:
        def once() -> Any:
            begin = time.perf_counter()
            found = run()
            if self.timeline is None:
                self.walls.append(time.perf_counter() - begin)
            return found

        return once

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt) and not isinstance(error, DiagnosisInterrupt):
            raise DiagnosisInterrupt(self.walls, self._partial) from None

    def _partial(self) -> Diagnosis | None:
        if self.timeline is None or self.device is None:
            return None
        return make_diagnosis(self.name, self.timeline, self.device, NoRaces(0.0, torch.get_num_threads()))


def _observed(
    program: Program,
    fix: Fixing | None,
    peaks: Peaks | GpuPeaks | None,
    budget_s: float,
    say: Say,
    counters: tuple[str, ...],
    memory: Memory,
    around: Surroundings,
    seen: _Seen,
    *,
    rough: bool,
) -> Diagnosis:
    begun = time.monotonic()
    # Before anything long is measured: it may raise, and others may be at work.
    first, noise = with_noise(lambda: first_run(program.run, say))
    on_cuda = _has_context()  # made by the first run, with all the libraries: what that took says nothing of the others
    if not on_cuda:
        _foretell(first.wall, fix, budget_s, say)
    if noise.loud:
        say(Notice(contention(noise, most_wait_s(budget_s), rough=rough)))
    device = _device(program, peaks, say)
    if on_cuda:
        _foretell(min(seen.walls, default=first.wall), fix, budget_s, say)
    timeline = device.observe(program.run, budget_s, say, first=first, memory=memory)
    seen.timeline, seen.device = timeline, device
    resumed = fix is not None and fix.resumed is not None
    alarms = () if resumed else _alarms(program, timeline, budget_s, say)
    device, unknown = _with_peaks(device, timeline, say, rough=rough, wanted=not resumed)
    around.mark()
    done = None
    if fix and (rough or not timeline.loud):
        began = time.monotonic()
        before = make_diagnosis(program.name, timeline, device, rough=rough)
        fix.journal.note_diagnosis(with_alarms(_explained(before, unknown), alarms))
        forecaster = Forecaster(timeline, device, device.fixing * budget_s)
        search = Search(
            program, timeline.walls, forecaster, budget_s=fix.seconds, say=say, allow=fix.allow, plan=fix.plan,
            journal=fix.journal, resumed=fix.resumed, spent_s=began - fix.began if fix.began is not None else 0.0,
        )  # fmt: skip
        with without_compiler_warnings():
            done = search.fix()
        done = dataclasses.replace(done, diagnosis_s=began - begun, search_s=time.monotonic() - began)
        if fix.searched is not None:
            fix.searched.append(search)
    say("grouping calls into hotspots, and benchmarking the kernels that a swap would take")
    races = device.races(0.0 if done else RACES * budget_s, say)  # a fix has benchmarked them
    found = make_diagnosis(program.name, timeline, device, races, fix=done, rough=rough)
    found = with_alarms(_explained(found, unknown), alarms)
    return _checked(found, timeline, counters, say) if counters else found


def _alarms(program: Program, timeline: Timeline, budget_s: float, say: Say) -> tuple[str, ...]:
    """The slow paths that it takes. A compiled program is not looked at: it would be compiled anew for it."""
    if timeline.compiled or timeline.wall > budget_s:
        return ()
    say("looking for slow paths")
    return slow_paths(program.run, timeline.wall - timeline.taken)  # what others took is none of its time


def _foretell(run_s: float, fix: Fixing | None, budget_s: float, say: Say) -> None:
    """Says how long the diagnosis of a program takes that runs for seconds."""
    runs = expected_runs(budget_s, run_s)
    if run_s * runs < WORTH_SAYING_S:
        return
    then = f"; then a fix, {fix.seconds:.0f} s at the most (--budget)" if fix is not None else ""
    say(Notice(f"A run takes {run_s:.0f} s. About {runs} more are made, about {run_s * runs:.0f} s{then}."))


def _has_context() -> bool:
    return bool(torch.cuda.is_initialized())


def most_wait_s(budget_s: float) -> float:
    """Seconds for which a diagnosis waits for a quiet machine, all its steps together: three of its program's own, and
    the peaks."""
    return 3 * PATIENCE * budget_s + BRIEF_WAIT_S


def _device(program: Program, peaks: Peaks | GpuPeaks | None, say: Say) -> Device:
    """What the program runs on, with what that can do; peaks that are not given are unknown yet."""
    gpu = uses_gpu(program.run)
    if not gpu and isinstance(peaks, GpuPeaks):
        raise TypeError("the program ran on the CPU, and peaks are those of a GPU")
    say("measuring the least that a call costs")
    floors = overhead.measure()
    if gpu:
        return Gpu(peaks if isinstance(peaks, GpuPeaks) else unmeasured_gpu_peaks(NOT_YET), floors)
    known = peaks if isinstance(peaks, Peaks) else unmeasured_peaks(NOT_YET)
    return Cpu(known, floors, torch.get_num_threads())


def _with_peaks(
    device: Device, timeline: Timeline, say: Say, *, rough: bool, wanted: bool
) -> tuple[Device, Exception | None]:
    """The device with this machine's measured peaks. They come after the program's own times, which need none and are
    kept whatever becomes of the peaks; if there are none, the reason comes with the device. They are not ``wanted`` by
    a search that goes on: the first process has measured them, or could not."""
    if device.peaks.unknown != NOT_YET or not wanted:
        return device, None
    on_cpu, said = isinstance(device, Cpu), False

    def progress(what: str, done: float = 0, total: float = 0) -> None:
        """Called only if there is something to measure."""
        nonlocal said
        if on_cpu and timeline.loud and not rough:  # it will hardly be quiet enough now
            raise Ambiguous(timeline.noise.share)
        if not said:
            folder = cache_dir("peaks")
            kept = f"kept in {folder}" if can_keep(folder) else f"for this run alone: {folder} cannot be written"
            say(Notice(FIRST_RUN.format(seconds=10 if on_cpu else 25, kept=kept)))
        said = True
        say(f"measuring peak rates, {f'{done + 1:.0f} of {total:.0f}' if total > 1 else 'once'}: {what}")

    try:
        if on_cpu:
            known: Peaks | GpuPeaks = measured_peaks(progress=progress, rough=rough, brief=not rough)
        else:
            known = measured_peaks(progress=progress, device="cuda", rough=rough)
    except (Ambiguous, BuildError, torch.OutOfMemoryError) as error:
        why = str(error).splitlines()[0]
        return dataclasses.replace(device, peaks=(unmeasured_peaks if on_cpu else unmeasured_gpu_peaks)(why)), error
    return dataclasses.replace(device, peaks=known), None


def _explained(diagnosis: Diagnosis, unknown: Exception | None) -> Diagnosis:
    """The diagnosis with why this machine's peaks are unknown, if they are. A busy machine may be quiet another time,
    so that is ambiguous; a machine without a compiler has told what it can."""
    if not isinstance(unknown, Ambiguous) or diagnosis.ambiguous:
        return diagnosis
    why = str(unknown).splitlines()[0].removeprefix("ambiguous: ")
    sentence = f"ambiguous: {why}: peaks are unknown, and nothing is predicted; {ROUGH_NOW}; {diagnosis.sentence}"
    return dataclasses.replace(diagnosis, ambiguous=why, sentence=sentence)


def _checked(diagnosis: Diagnosis, timeline: Timeline, counters: tuple[str, ...], say: Say) -> Diagnosis:
    """With our model of kernels held against the hardware's counters, if there is a GPU."""
    if diagnosis.gpu is None or not isinstance(timeline, GpuTimeline):
        return diagnosis
    say("reading counters")
    torch.cuda.empty_cache()  # the other process needs the memory
    counted, line = checks(timeline, counters[0], counters[1:])
    times = dataclasses.replace(diagnosis.gpu, counters=counted)
    return dataclasses.replace(diagnosis, gpu=times, findings=(*diagnosis.findings, line))
