"""``learn check``: compile, run guarded, compare with float64, time; and what of it to say."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelworks.build.cache import BuildError
from kernelworks.learn.compiling import (
    CompilerMessage,
    NotCompiled,
    build_all,
    build_signals,
    build_to_check,
    build_to_time,
    build_with_zeros,
    compiler_notes,
)
from kernelworks.learn.cuda_checking import UNTIMED_REASON, check_cuda_texts
from kernelworks.learn.exercise import Exercise
from kernelworks.learn.faults import Verdict, crash_sentence
from kernelworks.learn.signature import changed_signature, missing_function
from kernelworks.learn.triton_checking import UNTIMED_REASON as TRITON_UNTIMED
from kernelworks.learn.triton_checking import check_triton_files, compile_triton_files
from kernelworks.learn.unset_locals import has_unset_local, with_unset_local
from kernelworks.learn.worker_process import MOST_PRINTED_BYTES, Attempt, printed_in, run_worker

__all__ = ["CheckResult", "Times", "check", "check_attempts"]

PRINTS = "your file prints; take it out to get a time"


@dataclass(frozen=True)
class Times:
    """Seconds of a call on the inputs ``about`` describes; the work of a call."""

    about: str
    flop: float
    bytes: float
    threads: int
    yours_s: float
    low_s: float
    high_s: float
    solution_s: float
    ratio: float  # to the solution's, of samples taken in turns
    busy: str = ""  # what other processes used meanwhile, if it was much


@dataclass(frozen=True)
class CheckResult:
    """``outcome``: ``right``, ``wrong`` or ``not compiled``."""

    exercise: str
    outcome: str
    verdict: Verdict | None = None
    messages: tuple[CompilerMessage, ...] = ()
    notes: tuple[CompilerMessage, ...] = ()  # what the compiler warns of in a file that is wrong
    times: Times | None = None
    untimed: str = ""  # why a right function has no time
    printed: str = ""  # the case in a line, and the beginning of what one call of it wrote to its stdout


def _line_of(library: str, offset: int) -> int:
    """The line of a source that an instruction belongs to, 0 if that is not known."""
    command = ["addr2line", "-i", "-e", library, hex(offset)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    own = [line for line in done.stdout.splitlines() if not line.startswith(("/usr/", "?"))]  # not what was inlined
    number = own[0].rpartition(":")[2].split() if own else []
    return int(number[0]) if number and number[0].isdigit() else 0


def _ended(attempt: Attempt, library: str, text: str) -> Verdict:
    """The verdict on an attempt, whose source is ``text``, and whose process ended in a call."""
    about, slices = attempt.call.get("case", ""), attempt.call.get("slices")
    detail = f"with {about}" + (f", slice {slices[0]} of {slices[1]}" if slices else "")
    if not attempt.signal:
        return Verdict(False, "ends the process without a word", detail, failures=1, case=about)
    own, line = attempt.signal.get("in") == library, int(attempt.signal.get("line", 0))
    line = _line_of(library, attempt.signal["at"]) if own else line
    code = (text.splitlines() + [""] * line)[line - 1] if line else ""
    said = crash_sentence(attempt.signal, attempt.call.get("buffers", ()), code)
    return Verdict(False, said, detail, line=line, failures=1, case=about)


def _verdict(attempt: Attempt, library: str, error: str, text: str) -> Verdict:
    found = attempt.verdict or attempt.so_far
    if found is not None:
        return found
    if attempt.calls:
        return _ended(attempt, library, text)
    raise BuildError(error or "the process in which the function was to run ended before it did")


def check_attempts(exercise: Exercise, texts: Sequence[str]) -> list[Verdict]:
    """The verdict on each of several files, compiled together and not timed: what the tests ask of the solution and of
    wrong attempts. Raises BuildError."""
    library = str(build_all(exercise, texts))
    task = {
        "folder": str(exercise.folder), "signals": str(build_signals()), "timed": {},
        "attempts": [(library, f"{exercise.symbol}_{at}") for at in range(len(texts))],
    }  # fmt: skip
    report = run_worker(task, len(texts))
    pairs = zip(report.attempts[:-1], texts, strict=True)
    return [_verdict(attempt, library, report.error, text) for attempt, text in pairs]


def _check_cpp(exercise: Exercise, source: Path, *, timed: bool) -> CheckResult:
    text = source.read_text(encoding="utf-8", errors="replace")
    with ThreadPoolExecutor() as pool:
        signals, to_check = pool.submit(build_signals), pool.submit(build_to_check, source)
        to_time = {
            "yours": pool.submit(build_to_time, source),
            "solution": pool.submit(build_to_time, exercise.solution_path),
        } if timed else {}  # fmt: skip
        try:
            library = str(to_check.result())
            task: dict[str, Any] = {
                "folder": str(exercise.folder), "signals": str(signals.result()),
                "attempts": [(library, exercise.symbol)], "timed": {},
            }  # fmt: skip
            report = run_worker(task, 1)
            verdict = _verdict_or_missing(report.attempts[0], library, report.error, exercise, text)
        except NotCompiled as refused:
            return CheckResult(exercise.name, "not compiled", messages=refused.messages)
        printed = printed_in(report.printed, verdict)
        verdict = _with_unset_local(exercise, source, text, task, verdict)
        if not verdict.right:
            notes = (*_signature_notes(exercise, text), *compiler_notes(source))
            return CheckResult(exercise.name, "wrong", verdict, notes=notes, printed=printed)
        if not timed or printed:
            untimed = PRINTS if timed else ""
            return CheckResult(exercise.name, "right", verdict, untimed=untimed, printed=printed)
        task |= {"attempts": [], "timed": {name: str(made.result()) for name, made in to_time.items()}}
    race = run_worker(task, 0)
    times = race.times
    if race.attempts[0].signal:
        ended = _ended(race.attempts[0], task["timed"]["yours"], text)
        return CheckResult(exercise.name, "wrong", ended)
    if not times:
        untimed = race.error or "the process that timed it ended"
        return CheckResult(exercise.name, "right", verdict, untimed=untimed)
    if "yours" in times["wrong"]:
        said = Verdict(False, times["wrong"]["yours"], f"optimised for this machine, with {times['about']}", failures=1)
        return CheckResult(exercise.name, "wrong", said)
    return CheckResult(exercise.name, "right", verdict, times=_times(times))


def _signature_notes(exercise: Exercise, text: str) -> list[CompilerMessage]:
    """That the function takes something else than the check hands over: a compiler cannot know."""
    changed = changed_signature(exercise, text)
    return [CompilerMessage(changed[0], changed[1], text.splitlines()[changed[0] - 1].strip())] if changed else []


def _with_unset_local(
    exercise: Exercise, source: Path, text: str, task: Mapping[str, Any], verdict: Verdict
) -> Verdict:
    """The verdict, with another sentence if it comes of a local that nobody set: with 0 there it is another one."""
    if not has_unset_local(text):
        return verdict
    library = str(build_with_zeros(source))
    (attempt, _) = run_worker({**task, "attempts": [(library, exercise.symbol)]}, 1).attempts
    if not attempt.calls or _verdict(attempt, library, "", text).sentence == verdict.sentence:
        return verdict
    return with_unset_local(text, verdict)


def _times(found: Mapping[str, Any]) -> Times:
    yours, solution = found["median_s"]["yours"], found["median_s"]["solution"]
    return Times(
        found["about"], found["flop"], found["bytes"], found["threads"], yours, found["low_s"]["yours"],
        found["high_s"]["yours"], solution, found["ratio"], found["busy"],
    )  # fmt: skip


def _verdict_or_missing(attempt: Attempt, library: str, error: str, exercise: Exercise, source: str) -> Verdict:
    if "undefined symbol" in error:
        line, said = missing_function(exercise, source)
        raise NotCompiled([CompilerMessage(line, said, source.splitlines()[line - 1].strip() if line else "")])
    return _verdict(attempt, library, error, source)


def _check_cuda(exercise: Exercise, source: Path, *, timed: bool) -> CheckResult:
    text = source.read_text(encoding="utf-8", errors="replace")
    try:
        (found,) = check_cuda_texts(exercise, [text], source.name)
    except NotCompiled as refused:
        return CheckResult(exercise.name, "not compiled", messages=refused.messages)
    verdict, printed = found.verdict, found.printed[:MOST_PRINTED_BYTES]
    if not verdict.right:
        return CheckResult(exercise.name, "wrong", verdict, printed=printed)
    return CheckResult(exercise.name, "right", verdict, untimed=UNTIMED_REASON if timed else "", printed=printed)


def _refused_by_compiler(compiled: Future[list[str]] | None) -> tuple[CompilerMessage, ...]:
    """What Triton's compiler has against a file that is wrong in the interpreter: it may be the reason."""
    error = compiled.exception() if compiled else None
    return error.messages if isinstance(error, NotCompiled) else ()


def _check_triton(exercise: Exercise, source: Path, *, timed: bool) -> CheckResult:
    try:
        with ThreadPoolExecutor() as pool:  # both processes spend their time on loading
            compiled = pool.submit(compile_triton_files, [exercise], [source]) if timed else None
            (found,) = check_triton_files([exercise], [source])
            if found.refused:
                return CheckResult(exercise.name, "not compiled", messages=found.refused)
            if not found.verdict.right:
                notes = _refused_by_compiler(compiled)
                return CheckResult(exercise.name, "wrong", found.verdict, notes=notes, printed=found.printed)
            takes = compiled.result()[0] if compiled else ""
    except NotCompiled as refused:
        return CheckResult(exercise.name, "not compiled", messages=refused.messages)
    untimed = f"{TRITON_UNTIMED} ({takes})" if timed else ""
    return CheckResult(exercise.name, "right", found.verdict, untimed=untimed, printed=found.printed)


Checker = Callable[..., CheckResult]
CHECKERS: dict[str, Checker] = {"cpp": _check_cpp, "cuda": _check_cuda, "triton": _check_triton}  # by language


def check(exercise: Exercise, source: Path, *, timed: bool = True) -> CheckResult:
    """Checks one file. Raises BuildError if there is no compiler, ValueError for a language that has no checker here,
    OSError if the file cannot be read."""
    checker = CHECKERS.get(exercise.language)
    if checker is None:
        raise ValueError(f"exercises in {exercise.language} cannot be checked here")
    source = source.resolve()
    source.read_bytes()
    return checker(exercise, source, timed=timed)
