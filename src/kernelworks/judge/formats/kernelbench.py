"""KernelBench: a Python file with a class ``Model``, ``get_inputs()`` and ``get_init_inputs()``; candidates have a
class ``ModelNew`` that is made with the same arguments and called with the same inputs.

``get_init_inputs`` gives the positional arguments of the class, or ``[positional, {keywords}]`` as KernelBook has it.
"""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any

from kernelworks.judge.formats import text
from kernelworks.judge.formats.loading import LoadedCandidate, Modules, module_of
from kernelworks.judge.problem import Candidate, Misread, Problem, Shape

__all__ = ["candidate_in", "load", "load_candidate", "problem_in", "reads", "strip_reference"]

NAME, FILE, CANDIDATE = "kernelbench", "problem.py", "candidate.py"
ENTRY, ANSWER = "Model", "ModelNew"
TOLERANCE = (1e-4, 1e-4)  # its own, of float32
TRIAL_SIZES = (1, 3)  # what a size that only the inputs have is tried at, besides its own


def reads(path: Path, source: str) -> bool:
    return path.suffix == ".py" and "def get_inputs" in source and f"class {ENTRY}" in source


def problem_in(path: Path, source: str, *, entry: str = ENTRY, format: str = NAME) -> Problem:
    tree = text.parse_module(source, str(path))
    known, functions = text.classes(tree), text.functions(tree)
    if entry not in known and entry not in functions:
        raise Misread(
            f"{path}: no class {entry}; it has {_listed(known) or 'no classes'}: a problem's reference is {entry}"
        )
    if "get_inputs" not in functions:
        raise Misread(f"{path}: no function get_inputs; it has {_listed(list(functions)) or 'no functions'}")
    remarks = () if "get_init_inputs" in functions else (f"no get_init_inputs: {entry} is made without arguments",)
    return Problem(
        name=path.stem,
        format=format,
        files={FILE: source},
        loader=__name__,
        entry=entry,
        shapes=(Shape("own"), *_others(tree, functions, text.names_read_by(entry, source))),
        tolerance=TOLERANCE,
        remarks=remarks,
    )


def _others(tree: ast.Module, functions: dict[str, ast.FunctionDef], own: set[str]) -> list[Shape]:
    """Other numbers for sizes that only the inputs have: what weights are made with stays, and so do the reference's
    ``own``, which a candidate has written down too."""
    read = text.names_in(functions["get_inputs"], tree)
    made_with = text.names_in(functions["get_init_inputs"], tree) if "get_init_inputs" in functions else set()
    found = []
    for name, value in text.constants(tree).items():
        its = name.partition("[")[0]
        if its in read and its not in made_with | own and value > 1:
            others = dict.fromkeys(v for v in (*TRIAL_SIZES, value - 1) if 0 < v < value)
            found += [Shape(f"{name}={v}", {name: v}, required=False) for v in others]
    return found


def candidate_in(path: Path, source: str, problem: Problem | None = None, *, entry: str = ANSWER) -> Candidate:
    tree = text.parse_module(source, str(path))
    known = [*text.classes(tree), *text.functions(tree)]
    if entry not in known:
        raise Misread(f"{path}: no class {entry}; it has {_listed(known) or 'neither classes nor functions'}")
    return Candidate(path.stem, {CANDIDATE: source}, entry, text.language(source))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8])


# ---------------------------------------------------------------- where foreign code runs


class LoadedProblem(Modules):
    def init(self) -> list[Any]:
        return list(getattr(self.module, "get_init_inputs", list)())

    def inputs(self) -> list[Any]:
        found = self.module.get_inputs()
        if not isinstance(found, (list, tuple)):
            raise Misread(f"get_inputs() returned a {type(found).__name__}; a list of inputs is accepted")
        return list(found)

    def reference(self, *init: Any) -> Any:
        return construct_model(getattr(self.module, self.entry), init)


def construct_model(kind: Any, init: tuple[Any, ...]) -> Any:
    """An object of the class, from positional arguments or from ``[positional, {keywords}]``."""
    if len(init) == 2 and isinstance(init[0], (list, tuple)) and isinstance(init[1], dict):
        return kind(*init[0], **init[1])
    return kind(*init)


def load(problem: Problem, shape: Shape, folder: Path) -> LoadedProblem:
    source = text.with_constants(problem.files[FILE], dict(shape.sizes))
    return LoadedProblem(module_of("judged_problem", source, folder), problem.entry)


def strip_reference(problem: Problem) -> Problem:
    """What a candidate's process is told of it: it needs nothing of the reference."""
    return dataclasses.replace(problem, files={})


def load_candidate(problem: Problem, shape: Shape, candidate: Candidate, folder: Path) -> LoadedCandidate:
    module = module_of("judged_candidate", candidate.files[CANDIDATE], folder)
    return LoadedCandidate(lambda *init: construct_model(getattr(module, candidate.entry), init))
