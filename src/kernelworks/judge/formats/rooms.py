"""Our own rooms: ``rms_norm``, or ``rms_norm:1024x4096`` for one of its cases. The reference is what a user writes in
torch, the inputs are the contract's, and every case of it is a shape: one that a candidate must take where the op is
asked for, one that it may refuse where a case is.

A candidate is a Python file with a function of the op's name, which takes the op's arguments in their order.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from kernelworks.contract import Case
from kernelworks.judge.formats import text
from kernelworks.judge.formats.loading import Made, module_of
from kernelworks.judge.problem import Candidate, Misread, Problem, Shape
from kernelworks.op import OPS

__all__ = ["candidate_in", "load", "load_candidate", "named", "problem_of"]

NAME = "room"


def named(name: str) -> bool:
    """Whether it names an op, and perhaps a case of it."""
    return name.partition(":")[0] in OPS


def _cases(op: str) -> dict[str, Case]:
    """What is timed first, then what a proof tries, largest dtype first."""
    contract = OPS[op].contract
    return {case.name: case for case in (*contract.bench_cases, *contract.cases)}


def problem_of(name: str) -> Problem:
    op, _, case = name.partition(":")
    known = _cases(op)
    mutates = OPS[op].contract.mutates
    if mutates:
        raise Misread(f"{op}: it works in place, on {', '.join(mutates)}; an op that returns is accepted")
    if case and case not in known:
        raise Misread(f"{op}: no case {case!r}; it has {', '.join([*known][:8])} and {max(0, len(known) - 8)} more")
    first = case or next(iter(known))
    names = [first, *(n for n in known if n != first)]
    shapes = tuple(Shape(n, {"case": [*known].index(n)}, required=n == first or not case) for n in names)
    return Problem(op, NAME, {}, __name__, op, shapes)


def candidate_in(path: Path, source: str, problem: Problem) -> Candidate:
    known = text.functions(text.parsed(source, str(path)))
    if problem.entry not in known:
        raise Misread(f"{path}: no function {problem.entry}; it has {', '.join(known) or 'no functions'}")
    return Candidate(path.stem, {"candidate.py": source}, problem.entry, text.language(source))


def load(problem: Problem, shape: Shape, folder: Path) -> Any:
    op = OPS[problem.entry]
    case = [*_cases(problem.entry).values()][shape.sizes["case"]]
    names = op.passes["forward"].names

    def inputs() -> list[Any]:
        generator = torch.Generator().manual_seed(int(torch.randint(2**31, ()).item()))
        made = case.make(generator, case.dtypes[0])
        return [made.get(name) for name in names]

    return SimpleNamespace(init=list, inputs=inputs, reference=lambda *init: op.composite)


def load_candidate(problem: Problem, shape: Shape, candidate: Candidate, folder: Path) -> Made:
    module = module_of("judged_candidate", candidate.files["candidate.py"], folder)
    return Made(lambda *init: getattr(module, candidate.entry))
