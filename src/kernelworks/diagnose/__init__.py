"""Where a program's time goes on this machine, what is recoverable, and with ``fix`` the gain predicted and got."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import torch

from kernelworks.build import background
from kernelworks.diagnose.account.on_cpu import Cpu
from kernelworks.diagnose.account.on_gpu import Gpu
from kernelworks.diagnose.counters import checks
from kernelworks.diagnose.fix.plan import apply, load_plan
from kernelworks.diagnose.fix.search import Search
from kernelworks.diagnose.forecast.device import Device
from kernelworks.diagnose.forecast.forecaster import Forecaster
from kernelworks.diagnose.record import make_diagnosis
from kernelworks.measure.clock.page_faults import Memory
from kernelworks.measure.peaks import get_peaks as measured_peaks
from kernelworks.profile import overhead
from kernelworks.profile.on_gpu import GpuTimeline, uses_gpu
from kernelworks.profile.process_state import Surroundings
from kernelworks.profile.program import Program, from_function, from_target, note_reruns
from kernelworks.profile.timeline import Timeline, first_run
from kernelworks.records import Diagnosis, GpuPeaks, Peaks

__all__ = ["apply", "diagnose", "diagnose_script"]

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
FIX = 16.0  # a fix may take so many times the budget of a diagnosis: compilers take their time
CHANGES = ("tf32", "bf16", "int8", "fp8")  # of numbers: each is tried only if it is allowed
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
        the sentence; nothing is predicted then, and nothing is fixed.

    Raises:
        TypeError: ``fn`` cannot be called; ``budget_s`` is no number.
        ValueError: ``budget_s`` is not above 0, or not finite.
        RuntimeError: torch's profiler is running already or in ``fn``; ``fn`` exits with a code, or is async in a
            running event loop.
        Ambiguous: the peaks had to be measured and the machine was too busy, and ``rough`` was not asked for.
        Whatever ``fn`` raises.
    """
    made, say = from_function(fn, args, program), progress or _silent
    return _diagnose(made, _Fixing.of(fix, fix_s, budget_s, allow), peaks, budget_s, say, given=args, rough=rough)


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

    Raises program.TargetError (a FileNotFoundError, AttributeError or TypeError) if ``target`` names no program that
    can be run, OSError or ValueError if ``plan`` is none, RuntimeError if a script exits with a code, and what
    ``diagnose`` raises.
    """
    check_budget(budget_s)
    program, say = from_target(target, args, module=module), progress or _silent
    fixing = _Fixing.of(fix, fix_s, budget_s, allow, plan)
    return _diagnose(program, fixing, peaks, budget_s, say, (target, *args) if counters else (), rough=rough)


def _silent(line: str) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class _Fixing:
    """What a fix may take, and which changes of numbers it may try."""

    seconds: float
    allow: tuple[str, ...]
    searched: list[Search] | None = None  # the search is appended to it
    plan: Mapping[str, Any] | None = None  # it is applied in place of a search

    @classmethod
    def of(
        cls, fix: bool | list[Search], fix_s: float | None, budget_s: float, allow: Sequence[str], plan: Any = None
    ) -> _Fixing | None:
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


@background.measuring()
def _diagnose(
    program: Program,
    fix: _Fixing | None,
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
    program = dataclasses.replace(program, run=note_reruns(program.run))
    with Surroundings(given) as around, Memory() as memory:
        found = _observed(program, fix, peaks, budget_s, say, counters, memory, around, rough=rough)
        once = isinstance(found.peaks, Peaks) and found.peaks.versions.get("rounds") == "1"
        more = (*around.look(), *([MALLOC_FINDING] if memory.has_changed else ()), *([ONE_ROUND] if once else ()))
        marked = [f"rough: {line}" for line in more] if found.rough else more
        return dataclasses.replace(found, findings=(*found.findings, *marked))


def _observed(
    program: Program,
    fix: _Fixing | None,
    peaks: Peaks | GpuPeaks | None,
    budget_s: float,
    say: Say,
    counters: tuple[str, ...],
    memory: Memory,
    around: Surroundings,
    *,
    rough: bool,
) -> Diagnosis:
    first = first_run(program.run, say)  # before anything long is measured: it may raise
    device = _device(program, peaks, say, rough=rough)
    timeline = device.observe(program.run, budget_s, say, first=first, memory=memory)
    around.mark()
    done = None
    if fix and (rough or not timeline.loud):
        forecaster = Forecaster(timeline, device, device.fixing * budget_s)
        search = Search(
            program, timeline.walls, forecaster, budget_s=fix.seconds, say=say, allow=fix.allow, plan=fix.plan
        )  # fmt: skip
        done = search.fix()
        if fix.searched is not None:
            fix.searched.append(search)
    say("grouping calls into hotspots, and benchmarking the kernels that a swap would take")
    races = device.races(0.0 if done else RACES * budget_s, say)  # a fix has benchmarked them
    found = make_diagnosis(program.name, timeline, device, races, fix=done, rough=rough)
    return _checked(found, timeline, counters, say) if counters else found


def _device(program: Program, peaks: Peaks | GpuPeaks | None, say: Say, *, rough: bool) -> Device:
    """What the program runs on, with what that can do."""
    gpu = uses_gpu(program.run)
    if peaks is None or (gpu and not isinstance(peaks, GpuPeaks)):
        say(f"measuring what this {'GPU' if gpu else 'machine'} can do")
        peaks = _measured(gpu=gpu, rough=rough)
    if not gpu and not isinstance(peaks, Peaks):
        raise TypeError("the program ran on the CPU, and peaks are those of a GPU")
    say("measuring the least that a call costs")
    floors = overhead.measure()
    if isinstance(peaks, GpuPeaks):
        return Gpu(peaks, floors)
    return Cpu(peaks, floors, torch.get_num_threads())


def _measured(*, gpu: bool, rough: bool) -> Peaks | GpuPeaks:
    if gpu:
        return measured_peaks(device="cuda")
    return measured_peaks(rough=True) if rough else measured_peaks(brief=True)


def _checked(diagnosis: Diagnosis, timeline: Timeline, counters: tuple[str, ...], say: Say) -> Diagnosis:
    """With our model of kernels held against the hardware's counters, if there is a GPU."""
    if diagnosis.gpu is None or not isinstance(timeline, GpuTimeline):
        return diagnosis
    say("reading counters")
    torch.cuda.empty_cache()  # the other process needs the memory
    counted, line = checks(timeline, counters[0], counters[1:])
    times = dataclasses.replace(diagnosis.gpu, counters=counted)
    return dataclasses.replace(diagnosis, gpu=times, findings=(*diagnosis.findings, line))
