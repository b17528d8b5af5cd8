"""The process in which a learner's Triton file runs, in Triton's interpreter: no GPU, every access watched.

``TRITON_INTERPRET=1 python -m kernelworks.learn.triton_worker FD`` reads a task as JSON and answers as ``worker.py``
does. A file that cannot be loaded is ``{"refused": {"line": n, "text": words}}``. Each attempt runs in a fork.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import sys
import tomllib
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernelworks.build.triton_interpreter_costs import cut_costs
from kernelworks.learn.buffers import PATTERNS, place_case
from kernelworks.learn.case import Array, Case, Columns, Reference, Rows, exact_arguments, load_reference
from kernelworks.learn.exercise import Exercise, load_exercise
from kernelworks.learn.faults import Observation, Verdict, describe_elements, element, judge
from kernelworks.learn.triton_autotuning import configured_by_inputs
from kernelworks.learn.triton_memory import Memory, region_of, watched_by
from kernelworks.learn.triton_sentences import KernelFault, order_sentence, tf32_sentence, undefined_sentence
from kernelworks.learn.triton_words import in_triton_words
from kernelworks.learn.worker import close_buffers, differing_bits, observe
from kernelworks.learn.worker_process import PRINT_MARK
from kernelworks.machine.source_module import execute_file

__all__ = ["RefusedFile", "file_line", "function_of"]

CALL_S = 3.0  # of the processor that one call may use: each takes milliseconds
OTHER_LANES = 0x7E  # of each byte of a lane that is off, in a call that is compared with one where it is PATTERNS[0]

Say = Callable[..., None]


class RefusedFile(Exception):
    """A file that cannot be loaded: the line, 0 if there is none, and why."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line, self.text = line, text


def file_line(error: BaseException, path: str) -> int:
    """The last line of a file on the way to an error, or to what caused it; 0 if there is none."""
    found = 0
    now: BaseException | None = error
    while now is not None:
        lines = [frame.lineno or 0 for frame in traceback.extract_tb(now.__traceback__) if frame.filename == path]
        found = lines[-1] if lines else found
        now = now.__cause__
    return found


def function_of(path: str, symbol: str) -> Callable[..., Any]:
    """The learner's function. Raises RefusedFile."""
    try:
        module = execute_file("learner", Path(path))
    except SyntaxError as error:
        raise RefusedFile(error.lineno or 0, f"{error.msg}: this is no Python") from None
    except Exception as error:
        raise RefusedFile(file_line(error, path), f"{type(error).__name__}: {error}") from None
    function = getattr(module, symbol, None)
    if function is None or not callable(function):
        raise RefusedFile(0, f"the file defines no function {symbol}")
    if hasattr(function, "arg_names"):
        raise RefusedFile(
            0, f"{symbol} is the function that the CPU calls: it launches a kernel, and has no @triton.jit"
        )
    return function  # type: ignore[no-any-return]


def _time_out(number: int, frame: Any) -> None:
    raise KernelFault("does not come back: a loop whose end is never reached", 0)


class _Runner:
    """Calls of one attempt, and what its launches asked of memory."""

    def __init__(self, exercise: Exercise, path: str, say: Say) -> None:
        self.exercise, self.path, self.say = exercise, path, say
        self.function = function_of(path, exercise.symbol)
        self.changed: set[str] = set()
        self.gaps: set[str] = set()
        self.lanes_off = PATTERNS[0]
        self.memory = Memory(path, (), 0)

    def call(self, case: Case, order: Sequence[tuple[int, ...]], **placed: Any) -> dict[str, Array]:
        """The outputs of one call. Raises KernelFault."""
        given = {n: Rows(v.array.T, v.gap) if isinstance(v, Columns) else v for n, v in case.arguments.items()}
        buffers = place_case(dataclasses.replace(case, arguments=given), **placed)
        tensors = {name: torch.from_numpy(buffer.view) for name, buffer in buffers.items()}
        for name, value in case.arguments.items():
            if isinstance(value, Columns):
                tensors[name] = tensors[name].T
        regions = [
            region_of(n, t, is_written=buffers[n].before is not None, is_input=not buffers[n].is_output)
            for n, t in tensors.items()
        ]
        self.memory = Memory(self.path, regions, self.lanes_off)
        sys.stdout.flush()
        os.write(1, f"\n{PRINT_MARK}{case.about}\n".encode())
        self.say(call={"case": case.about, "buffers": []})
        arguments = [tensors.get(p.name, case.arguments.get(p.name)) for p in self.exercise.parameters]
        signal.setitimer(signal.ITIMER_VIRTUAL, CALL_S)
        try:
            with watched_by(self.memory):
                self.function(*arguments)
        except Exception as error:
            raise _fault(error, self.path) from None
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            sys.stdout.flush()
        del tensors, arguments
        return close_buffers(buffers, self)


def _fault(error: BaseException, path: str) -> KernelFault:
    """What ended a call: the fault, or an error of Python's in the learner's words."""
    line, now = file_line(error, path), error
    while now.__cause__ is not None and not isinstance(now, KernelFault):
        now = now.__cause__
    if isinstance(now, KernelFault):
        return KernelFault(now.sentence, now.line or line)
    said = f"{type(now).__name__}: {(str(now).strip().splitlines() or [''])[0]}"
    code = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    plain = in_triton_words(said, code[line - 1] if 0 < line <= len(code) else "")
    return KernelFault(f"line {line} ends with {said}" + (f". Here: {plain}" if plain else ""), line)


def _undefined(runner: _Runner, case: Case, seen: Observation) -> str:
    """Which elements depend on lanes that a mask switches off, in a sentence; empty if none does."""
    line = runner.memory.undefined_line
    if not line:
        return ""
    runner.lanes_off = OTHER_LANES
    try:
        other = runner.call(case, [()], at_end=True, pattern=PATTERNS[0])
    finally:
        runner.lanes_off = PATTERNS[0]
    for name, got in seen.outputs.items():
        mask = differing_bits(got, other[name])
        if mask.any():
            said = describe_elements(name, mask)
            return undefined_sentence(said, "depend" if said[0].isdigit() or "elements" in said else "depends", line)
    return ""


def _beyond_limit(case: Case, memory: Memory, limits: dict[str, Any]) -> str:
    """What a right kernel does beyond a limit of its exercise; empty if nothing."""
    if memory.launches > limits.get("launches", np.inf):
        most = limits["launches"]
        return f"{memory.launches} launches where {most} would do: what one leaves in memory the next one has to read"
    if memory.atomics > limits.get("atomics", np.inf):
        return f"{memory.atomics} elements are updated by atomics: here it has to do without"
    if "per" in limits:
        count = int(np.prod([np.prod(np.shape(exact_arguments(case)[name]) or case.arguments[name])
                             for name in limits["per"]]))  # fmt: skip
        most = limits.get("loads", np.inf)
        if count and memory.loads > most * count:
            return f"{memory.loads / count:.3g} loads for each {limits['what']}, where {most:g} would do"
    return ""


def _other_order(case: Case, memory: Memory, reference: Reference) -> str:
    """Which element another program has written than the contract says; empty if none."""
    if reference.owners is None:
        return ""
    due = reference.owners(**exact_arguments(case))
    for region in memory.regions:
        if region.name in due:
            got = np.lib.stride_tricks.as_strided(region.writer, region.shape, [4 * step for step in region.strides])
            other = np.argwhere(got != due[region.name])
            if len(other):
                at = tuple(other[0])
                return order_sentence(element(region.name, at), int(got[at]), int(due[region.name][at]))
    return ""


def _attempt(exercise: Exercise, path: str, cases: list[Case], reference: Reference, say: Say) -> Verdict:
    """The verdict on one file. Raises RefusedFile."""
    runner, seen, beyond, tf32_line = _Runner(exercise, path, say), list[Observation](), ("", ""), 0
    limits = tomllib.loads((exercise.folder / "exercise.toml").read_text(encoding="utf-8")).get("limits", {})
    for case in cases:
        try:
            observation = observe(exercise, case, reference, runner)
            said = _beyond_limit(case, runner.memory, limits) or _other_order(case, runner.memory, reference)
            tf32_line = tf32_line or runner.memory.tf32_line
            line = runner.memory.undefined_line
            observation.undefined = _undefined(runner, case, observation)
        except KernelFault as fault:
            verdict = judge(seen, reference)
            if seen and not verdict.right:
                return verdict
            return Verdict(False, fault.sentence, f"with {case.about}", line=fault.line, case=case.about)
        seen.append(observation)
        beyond = beyond if beyond[0] else (said, case.about)
        if observation.undefined:
            return dataclasses.replace(judge(seen, reference), line=line)
    verdict = judge(seen, reference)
    if verdict.right and beyond[0]:
        return Verdict(False, beyond[0], f"the results are right; with {beyond[1]}", case=beyond[1])
    if tf32_line and verdict.sentence.startswith("close, but"):
        return dataclasses.replace(verdict, sentence=tf32_sentence(verdict.sentence, tf32_line), line=tf32_line)
    return verdict


@functools.cache
def _exercise(folder: str) -> tuple[Exercise, list[Case], Reference]:
    exercise = load_exercise(Path(folder))
    reference = load_reference(exercise.folder)
    cases = sorted(reference.cases(), key=lambda case: case.is_empty)  # ordinary ones come first
    return exercise, cases, reference


def main() -> None:
    out = os.fdopen(int(sys.argv[1]), "w", buffering=1, encoding="utf-8")

    def say(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")

    task = json.loads(sys.stdin.read())
    try:
        cut_costs()
        configured_by_inputs()
        np.seterr(all="ignore")
        signal.signal(signal.SIGVTALRM, _time_out)
        for index, (folder, path) in enumerate(task["attempts"]):
            exercise, cases, reference = _exercise(folder)
            say(attempt=index)
            child = os.fork()
            if not child:
                code = 1
                try:
                    say(verdict=dataclasses.asdict(_attempt(exercise, path, cases, reference, say)))
                    code = 0
                except RefusedFile as refused:
                    say(refused={"line": refused.line, "text": refused.text})
                except Exception as error:
                    say(error=f"{type(error).__name__}: {error}")
                os._exit(code)
            os.waitpid(child, 0)
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
