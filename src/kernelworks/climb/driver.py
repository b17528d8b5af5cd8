"""Climbs a ladder: every rung is built here, then verified and benchmarked in a process of its own that may crash."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime
import importlib.metadata
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelworks.build import BuildError, cpp, cuda
from kernelworks.climb.climber import unmeasured_result
from kernelworks.climb.compilation import build_rung
from kernelworks.climb.counters import read_counters
from kernelworks.climb.ladder import Ladder, Rung
from kernelworks.climb.problem import Problem, Size
from kernelworks.climb.task import Task
from kernelworks.machine import gpu, has_gpu
from kernelworks.measure import peaks
from kernelworks.measure.bench.results import commit
from kernelworks.records import GpuPeaks, Peaks, from_json, to_json
from kernelworks.records.climb import Climb, RungResult

__all__ = ["build_all", "climb"]

Progress = Callable[[str, int, int], None]
SILENT_S = {"cpu": 300.0, "cuda": 60.0}  # a rung that lets nobody hear for so long hangs
COMPILERS = 4  # at once


def build_all(problem: Problem, rungs: Sequence[Rung]) -> dict[int, str]:
    """Compiles rungs, several at once; why not, for those that do not compile."""

    def reason(rung: Rung) -> str:
        try:
            build_rung(problem, rung)
        except BuildError as error:
            return str(error)
        return ""

    with concurrent.futures.ThreadPoolExecutor(min(COMPILERS, os.cpu_count() or 1)) as pool:
        return {rung.number: why for rung, why in zip(rungs, pool.map(reason, rungs), strict=True) if why}


# ---------------------------------------------------------------- the process


def _lines(task: Task, silent_s: float, ended: list[str]) -> Generator[dict[str, Any], None, None]:
    """What a worker says, until it ends; ``ended`` then holds how, where it was not by itself."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "kernelworks.climb.worker", str(writing)]
    # What a rung prints must not end up in the JSON on our own output.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, pass_fds=(writing,)) as process:
        os.close(writing)
        try:
            assert process.stdin is not None
            process.stdin.write(to_json(task, line=True).encode())
            process.stdin.close()
            yield from _heard(reading, silent_s)
        except BrokenPipeError:
            pass
        except TimeoutError:
            ended.append(f"did not come back within {silent_s:.0f} s")
        finally:
            os.close(reading)
            if ended or sys.exc_info()[0] is not None:
                process.kill()
    if process.returncode < 0 and not ended:
        ended.append(f"crashed with signal {-process.returncode} ({signal.Signals(-process.returncode).name})")
    elif process.returncode and not ended:
        ended.append(f"ended its process with code {process.returncode}")


def _heard(reading: int, silent_s: float) -> Iterator[dict[str, Any]]:
    """Raises TimeoutError."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while True:
            if not selector.select(silent_s):
                raise TimeoutError
            got = os.read(reading, 1 << 16)
            if not got:
                return
            *whole, rest = (rest + got).split(b"\n")
            for line in whole:
                yield json.loads(line)


@dataclass
class _Climbing:
    ladder: Ladder
    task: Task
    progress: Callable[[Rung, str], None]
    done: Callable[[RungResult], None] | None
    results: list[RungResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def rung(self, number: int) -> Rung:
        return next(r for r in self.ladder.rungs if r.number == number)

    def add(self, result: RungResult) -> None:
        self.results.append(result)
        if self.done is not None:
            self.done(result)

    def go(self) -> None:
        """Climbs all rungs, in as many processes as it takes."""
        left = list(self.task.rungs)
        while left:
            right = [r.number for r in self.results if r.status in ("verified", "ambiguous")]
            before = right or [n for n in self.task.before if n < left[0]]
            task = dataclasses.replace(
                self.task, rungs=tuple(left), before=tuple(before), trusted=(*self.task.trusted, *right)
            )
            left = self._one_process(task, left)

    def _one_process(self, task: Task, left: list[int]) -> list[int]:
        """The rungs that it did not come to."""
        ended, current = list[str](), left[0]
        lines = _lines(task, SILENT_S[self.ladder.problem.device], ended)
        for said in lines:
            if "begin" in said:
                current = said["begin"]
                self.progress(self.rung(current), "")
            elif "beat" in said:
                self.progress(self.rung(current), said["beat"])
            elif "result" in said:
                self.notes += [note for note in said["notes"] if note not in self.notes]
                self.add(from_json(RungResult, json.dumps(said["result"])))
                left = left[left.index(current) + 1 :]
            elif "stopped" in said:
                ended.append(said["stopped"])
            elif "error" in said:
                lines.close()
                raise ValueError(f"{self.ladder.name}, rung {current}: {said['error']}")
        if not ended:
            return []
        if not left:
            return []  # it crashed on its way out, with all that was asked for
        self.add(unmeasured_result(self.rung(current), "wrong", ended[0]))
        return left[left.index(current) + 1 :]


# ---------------------------------------------------------------- the climb


def _versions(device: str, language: str) -> dict[str, str]:
    if device == "cpu":
        return {"torch": torch.__version__, "compiler": cpp.toolchain()}
    return {
        "torch": torch.__version__, "cuda": str(torch.version.cuda), "driver": gpu().driver,
        "compiler": f"triton {importlib.metadata.version('triton')}" if language == "triton" else cuda.toolchain(),
    }  # fmt: skip


def _peak_text(ladder: Ladder) -> str:
    """The measured peak in words."""
    kind, unit = ladder.problem.arithmetic, ladder.problem.unit
    if ladder.problem.device == "cuda":
        if unit == "GB/s":
            return "the best rate at which this GPU's memory was read"
        if kind == "float32":
            return "the rate of multiply-adds outside the matrix units, from registers alone, in a burst"
        return f"the best rate of torch.mm in {kind}, square products, in a burst"
    ours = "reads of memory" if unit == "GB/s" else f"{kind} multiply-adds"
    return f"the measured rate of {ours}: the higher of the machine's record and what the race saw"


def _document(
    ladder: Ladder, size: Size, known: Peaks | GpuPeaks, results: Sequence[RungResult], notes: Sequence[str]
) -> Climb:
    problem = ladder.problem
    return Climb(
        ladder=ladder.name, title=problem.title, size=size, flop=problem.flop(size), bytes=problem.bytes(size),
        lessons=problem.lessons, date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=commit(), versions=_versions(problem.device, problem.language), peaks=known, rungs=tuple(results),
        notes=tuple(notes),
        seconds=0.0, device=problem.device, unit=problem.unit, arithmetic=problem.arithmetic,
        peak=_peak_text(ladder), baselines=problem.said, problem=ladder.sha256(),
    )  # fmt: skip


def climb(
    ladder: Ladder,
    rung: int | None = None,
    *,
    size: Size | None = None,
    known: Peaks | GpuPeaks | None = None,
    budget_s: float = 0.5,
    watch: bool = True,
    rough: bool = False,
    progress: Progress | None = None,
    done: Callable[[RungResult], None] | None = None,
) -> Climb:
    """Builds, verifies and benchmarks every rung of a ladder, or one of them; ``done`` is called after each.

    Verification: at every verification size and every timed one, with each thread count, outputs poisoned and guarded,
    inputs compared, everything twice. A rung that is wrong gets no figure, nor one that crashes, hangs or stops the
    GPU.
    Benchmark: the rung, the rung before it (if right), the problem's baselines and on the CPU the measured peak
    itself run in alternation, ``budget_s`` seconds a variant and at least seven rounds; five of a CPU's calls that take
    long.

    Args:
        size: what to time instead of the problem's own. known: measured peaks, by default this machine's, measured if
            need be. watch: throw away what was timed while other processes used the cores.
            rough: keep it if nothing else came; such a time says that it is rough, and goes from the least to the
            most.
    Raises: ValueError for a rung that the ladder does not have or a problem that cannot be stated; RuntimeError for a
        ladder of a device that is not here; Ambiguous if the peaks could not be measured.
    """
    begin = time.monotonic()
    device = ladder.problem.device
    if device == "cuda" and not has_gpu():
        raise RuntimeError(f"{ladder.name} needs a CUDA GPU, and torch sees none (torch.cuda.is_available() is False)")
    wanted = [r for r in ladder.rungs if rung in (None, r.number)]
    if not wanted:
        raise ValueError(f"{ladder.name} has rungs {', '.join(str(r.number) for r in ladder.rungs)}, got {rung}")
    earlier = [r for r in ladder.rungs if rung is not None and r.number < rung]
    if progress is not None:
        progress("compiling", 0, len(wanted))
    unbuilt = build_all(ladder.problem, [*earlier[-1:], *wanted])
    here = known or peaks.get_peaks(progress, device=device, rough=rough)
    timed = size or ladder.problem.size
    runs = tuple(r.number for r in wanted if r.number not in unbuilt)
    before = tuple(r.number for r in earlier if r.number not in unbuilt)
    task = Task(str(ladder.folder), timed, runs, before, (), here, budget_s, watch, rough)

    def step(one: Rung, what: str) -> None:
        if progress is not None:
            progress(f"{one.number} {one.title}{': ' if what else ''}{what}", wanted.index(one), len(wanted))

    climbing = _Climbing(ladder, task, step, done)
    for one in wanted:
        if one.number in unbuilt:
            climbing.add(unmeasured_result(one, "not run", unbuilt[one.number]))
    climbing.go()
    results, notes = sorted(climbing.results, key=lambda r: r.number), list(climbing.notes)
    if device == "cuda":
        if progress is not None:
            progress("reading counters", len(wanted), len(wanted))
        results, why = read_counters(ladder, timed, results)
        notes += [why] if why else []
    return dataclasses.replace(_document(ladder, timed, here, results, notes), seconds=time.monotonic() - begin)
