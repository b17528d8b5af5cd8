"""Triton rungs verified without a GPU: Triton's interpreter runs each program on CPU tensors, one after the other.

``TRITON_INTERPRET=1 python -m kernelworks.climb.triton_interpreting FOLDER [NUMBER ...]`` writes a line of JSON for
each rung: ``{"rung": n, "sizes": how many, "worst": share of the bound, "wrong": words}``. Only small sizes are run,
since a program takes milliseconds; what only a GPU does (races between programs, its rounding of sums) it cannot show.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kernelworks.build import BuildError
from kernelworks.climb.judge import GuardedTensor, ReferenceCase
from kernelworks.climb.ladder import Ladder, Rung, ladder_named
from kernelworks.climb.problem import Problem, Size
from kernelworks.machine import environment

__all__ = ["InterpretedRung", "interpret_ladder", "interpret_rung"]

MOST_FLOP = 6e5  # of a size: a rung that loops over single numbers takes a second for it
TIMEOUT_S = 300


@dataclasses.dataclass(frozen=True)
class InterpretedRung:
    rung: int
    sizes: int
    worst: float  # the largest error as a share of its bound
    wrong: str = ""


def _small(problem: Problem) -> list[Size]:
    return [size for size in problem.verification_sizes if problem.flop(size) <= MOST_FLOP]


def interpret_rung(ladder: Ladder, rung: Rung) -> InterpretedRung:
    """In this process, whose Triton must have been loaded with TRITON_INTERPRET=1."""
    from kernelworks.climb.triton_rungs import TritonLoader

    problem = dataclasses.replace(ladder.problem, device="cpu")
    loads, worst, count = TritonLoader(problem), 0.0, 0
    for seed, size in enumerate(_small(problem)):
        if not rung.takes(size):
            continue
        count += 1
        case = ReferenceCase.of(problem, size, rung.format, seed)
        held = GuardedTensor(problem.shape(size), problem.dtype, "cpu")
        held.poison()
        try:
            loads.call(rung, size, case.given, held.out)()
        except BuildError as error:
            return InterpretedRung(rung.number, count, worst, str(error))
        except Exception as error:
            return InterpretedRung(rung.number, count, worst, f"{_text(size)}: {type(error).__name__}: {error}")
        share, wrong = case.judge(held.out)
        worst = max(worst, share)
        if not wrong and held.has_overrun():
            wrong = "wrote outside its output"
        if not wrong and not case.has_unchanged_inputs():
            wrong = "changed its inputs"
        if wrong:
            return InterpretedRung(rung.number, count, worst, f"{_text(size)}: {wrong}")
    return InterpretedRung(rung.number, count, worst, "" if count else "no size of the problem is small enough")


def _text(size: Size) -> str:
    return ", ".join(f"{name} {value}" for name, value in size.items())


def interpret_ladder(folder: Path, numbers: Sequence[int] = ()) -> list[InterpretedRung]:
    """All rungs of a ladder, or those, in a process with the interpreter on. Raises BuildError if that ends early.

    Cost: 3 s to load, and about 1 s a rung."""
    command = [sys.executable, "-m", "kernelworks.climb.triton_interpreting", str(folder), *map(str, numbers)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment.variables() | {"TRITON_INTERPRET": "1"},
    )
    if done.returncode:
        raise BuildError(f"Triton's interpreter did not come to an end: {done.stderr.strip()[-300:]}")
    return [InterpretedRung(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]


def _say(found: InterpretedRung) -> None:
    print(json.dumps(dataclasses.asdict(found)), flush=True)


def main() -> None:
    importlib.import_module("kernelworks.build.triton_interpreter_costs").cut_costs()
    ladder, numbers = ladder_named(sys.argv[1]), {int(number) for number in sys.argv[2:]}
    for rung in ladder.rungs:
        if numbers and rung.number not in numbers:
            continue
        child = os.fork()
        if not child:
            _say(interpret_rung(ladder, rung))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:  # the interpreter reads and writes real memory
            ended = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with code {code}"
            _say(
                InterpretedRung(
                    rung.number, 0, float("inf"), f"ended its process {ended}: an address outside all tensors"
                )
            )


if __name__ == "__main__":
    main()
