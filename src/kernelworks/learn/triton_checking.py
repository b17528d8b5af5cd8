"""A learner's Triton source checked without a GPU: run in Triton's interpreter with every access watched, compared with
float64, then compiled for sm_90.

| key of ``[limits]`` in ``exercise.toml`` | the most that is allowed in a call |
|---|---|
| launches | launches of kernels |
| atomics | elements that atomics update |
| loads | elements that are loaded, for each ``what`` |
| per, what | the arguments whose sizes multiply to the count, and the word for it |
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelworks.build.cache import BuildError
from kernelworks.learn.compiling import CompilerMessage, NotCompiled
from kernelworks.learn.exercise import Exercise
from kernelworks.learn.faults import Verdict
from kernelworks.learn.triton_words import in_triton_words
from kernelworks.learn.worker_process import Attempt, Report, printed_in, run_worker

__all__ = ["UNTIMED_REASON", "TritonCheck", "check_triton_files", "check_triton_texts", "compile_triton_files"]

UNTIMED_REASON = "a time needs a GPU: your kernel ran in Triton's interpreter, and compiles for sm_90"
INTERPRETED, COMPILED = {"TRITON_INTERPRET": "1"}, {"TRITON_INTERPRET": "0"}


@dataclass(frozen=True)
class TritonCheck:
    """``refused``: why Python cannot load the file, and then there is nothing else. ``printed``: the case that the
    verdict names, or the first one, and what its first call prints; of a file that is checked alone."""

    verdict: Verdict
    printed: str = ""
    refused: tuple[CompilerMessage, ...] = ()


def _message(refused: dict[str, Any], path: Path) -> CompilerMessage:
    line, code = int(refused["line"]), path.read_text(encoding="utf-8", errors="replace").splitlines()
    said, own = str(refused["text"]), code[line - 1].strip() if 0 < line <= len(code) else ""
    return CompilerMessage(line, said, own, in_triton_words(said, own))


def _run(
    exercises: Sequence[Exercise], paths: Sequence[Path], module: str, variables: dict[str, str]
) -> tuple[list[tuple[Attempt, Path]], Report]:
    if importlib.util.find_spec("triton") is None:
        raise BuildError("no Triton here: pip install triton (Linux)")
    attempts = [(str(exercise.folder), str(path)) for exercise, path in zip(exercises, paths, strict=True)]
    report = run_worker({"attempts": attempts}, len(paths), f"kernelworks.learn.{module}", variables)
    return list(zip(report.attempts[:-1], paths, strict=True)), report


def check_triton_files(exercises: Sequence[Exercise], paths: Sequence[Path]) -> list[TritonCheck]:
    """What is to be said of each file, one for each exercise, all by one process.

    Cost: 2 s to load Triton and torch, up to 1 s a file. Raises BuildError if there is no Triton.
    """
    found, report = _run(exercises, paths, "triton_worker", INTERPRETED)
    checks = []
    for attempt, path in found:
        if attempt.refused:
            checks.append(TritonCheck(Verdict(False), refused=(_message(attempt.refused, path),)))
            continue
        verdict, about = attempt.verdict, attempt.call.get("case", "")
        if verdict is None and not attempt.calls:
            raise BuildError(report.error or report.printed[-300:] or "the process that was to run the file ended")
        verdict = verdict or Verdict(False, "ends the process without a word", f"with {about}", failures=1, case=about)
        checks.append(TritonCheck(verdict, printed_in(report.printed, verdict) if len(paths) == 1 else ""))
    return checks


def check_triton_texts(texts: Sequence[tuple[Exercise, str]]) -> list[TritonCheck]:
    """The same of sources, each of an exercise: what the tests ask of solutions and of wrong attempts."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"attempt_{number}.py" for number in range(len(texts))]
        for path, (_, text) in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8")
        return check_triton_files([exercise for exercise, _ in texts], paths)


def compile_triton_files(exercises: Sequence[Exercise], paths: Sequence[Path]) -> list[str]:
    """What the kernels of each file, one for each exercise, take on an sm_90, in words. Raises NotCompiled (the first
    file that Triton's compiler refuses), BuildError.

    Cost: 3 s to load, 0.2 to 2 s for each kernel that was not compiled before.
    """
    said = []
    found, report = _run(exercises, paths, "triton_compiling", COMPILED)
    for attempt, path in found:
        if attempt.refused:
            raise NotCompiled([_message(attempt.refused, path)])
        if not attempt.compiled:
            raise BuildError(report.error or report.printed[-300:] or "no kernel was launched")
        said.append("; ".join(dict.fromkeys(_takes(*kernel) for kernel in attempt.compiled)))
    return said


def _takes(name: str, registers: int, shared: int, local: int) -> str:
    memory = f", {shared} bytes of shared memory" if shared else ""
    spills = f", {local} bytes spilled" if local else ""
    return f"{name}: {registers} registers a thread{memory}{spills}"
