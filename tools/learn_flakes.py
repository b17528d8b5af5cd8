"""Checks every file of the course again and again, and counts what is not said every time: ``make learn-flakes N=20``.

    python tools/learn_flakes.py [ROUNDS] [--only NAME ...]

A round checks the starting file, the solution and all wrong attempts of each exercise, as ``learn check`` does but for
the time. A starting file must be refused, a solution accepted, a wrong attempt refused with its sentence. What is not
is a flake, and is printed with what was said; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

from kernelworks.learn.checking import check_attempts
from kernelworks.learn.cuda_checking import check_cuda_texts
from kernelworks.learn.exercise import Exercise, exercises
from kernelworks.learn.faults import Verdict
from kernelworks.learn.triton_checking import check_triton_texts

Checker = Callable[[Exercise, Sequence[str]], list[Verdict]]


def _cuda(exercise: Exercise, texts: Sequence[str]) -> list[Verdict]:
    return [one.verdict for one in check_cuda_texts(exercise, texts, exercise.file_name)]


def _triton(exercise: Exercise, texts: Sequence[str]) -> list[Verdict]:
    return [one.verdict for one in check_triton_texts([(exercise, text) for text in texts])]


CHECKERS: dict[str, Checker] = {"cpp": check_attempts, "cuda": _cuda, "triton": _triton}


def flakes(exercise: Exercise, checker: Checker) -> Iterator[str]:
    """A line for each file of an exercise that is not told as it must be."""
    paths = (exercise.start_path, exercise.solution_path)
    texts = [*(path.read_text(encoding="utf-8") for path in paths), *(wrong.text for wrong in exercise.wrong)]
    start, solution, *attempts = checker(exercise, texts)
    if start.right:
        yield f"{exercise.name}: the starting file is accepted"
    if not solution.right:
        yield f"{exercise.name}: the solution is refused: {solution.sentence}"
    for wrong, verdict in zip(exercise.wrong, attempts, strict=True):
        if verdict.right or wrong.said not in verdict.sentence:
            said = "it is accepted" if verdict.right else verdict.sentence
            yield f"{exercise.name}, {wrong.name}: {said}"


def count_flakes(
    rounds: int, chosen: Sequence[Exercise], say: Callable[[str], None], checkers: dict[str, Checker] | None = None
) -> int:
    """So many rounds over these exercises; says each flake, and the count after each round."""
    found = 0
    files = sum(2 + len(exercise.wrong) for exercise in chosen)
    for number in range(1, rounds + 1):
        for exercise in chosen:
            for line in flakes(exercise, (checkers or CHECKERS)[exercise.language]):
                found += 1
                say(f"round {number}: {line}")
        say(f"round {number} of {rounds}: {files} files of {len(chosen)} exercises, {found} flakes so far")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=20)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME")
    asked = parser.parse_args()
    known = exercises()
    unknown = [name for name in asked.only if name not in known]
    if unknown:
        parser.error(f"no exercise {unknown[0]}")
    chosen = [exercise for name, exercise in known.items() if not asked.only or name in asked.only]
    return 1 if count_flakes(asked.rounds, chosen, lambda line: print(line, flush=True)) else 0


if __name__ == "__main__":
    sys.exit(main())
