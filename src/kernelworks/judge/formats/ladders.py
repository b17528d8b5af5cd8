"""Our ladders: ``cpu-sgemm``, or a folder with a ``problem.py`` like theirs; ``cpu-gemv-q8#q8_0`` for rungs of one of
its formats, ``cpu-sgemm:M=96,N=512,K=64`` for another size. A candidate is a rung: a C++ file with its header.

The ladder's own size is halved until one call is a matter of milliseconds to a plain rung too; its
verification sizes are shapes that a rung must take. The reference and the bound are the ladder's, in float64.
"""

from __future__ import annotations

import ast
import math
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build import TARGETS
from kernelworks.build.cpp import build_library
from kernelworks.build.loading import open_library
from kernelworks.climb.ladder import Rung, rung_of
from kernelworks.climb.ladder_folders import folders
from kernelworks.climb.problem import Inputs, Size
from kernelworks.climb.problem import Problem as Ladder
from kernelworks.climb.problem import problem_of as ladder_in
from kernelworks.contract.bounds import Bound
from kernelworks.judge.formats import text
from kernelworks.judge.formats.loading import LoadedCandidate
from kernelworks.judge.problem import Candidate, Misread, Problem, Shape
from kernelworks.machine import machine

__all__ = ["candidate_in", "is_ladder_name", "load", "load_candidate", "problem_of"]

NAME, FILE = "ladder", "problem.py"
LADDER_NAME = re.compile(r"(?P<ladder>[^#:]+)(?:#(?P<format>\w+))?(?::(?P<sizes>\w+=\d+(?:,\w+=\d+)*))?")
MOST_WORK, MOST_ELEMENTS = 1 << 27, 1 << 21  # the product of all sizes, and of the two largest


def _folder(name: str) -> Path | None:
    found = LADDER_NAME.fullmatch(name)
    if found is None:
        return None
    folder = folders().get(found["ladder"], Path(found["ladder"]))
    return folder if (folder / FILE).is_file() else None


def is_ladder_name(name: str) -> bool:
    """Whether it names a ladder, or is the folder of one."""
    return _folder(name) is not None


def problem_of(name: str) -> Problem:
    folder, found = _folder(name), LADDER_NAME.fullmatch(name)
    assert folder is not None and found is not None
    source, where, format_name = text.read_text(folder / FILE), str(folder / FILE), found["format"] or ""
    said = _said(source, where)
    format_names = [key.value for key in getattr(said.get("formats"), "keys", ()) if isinstance(key, ast.Constant)]
    if format_name not in (format_names or [""]):
        wanted = f"#FORMAT with one of {', '.join(map(str, format_names))}" if format_names else "no format"
        raise Misread(
            f"{name}: {wanted} is accepted, got {format_name!r}" if format_name else f"{name}: {wanted} is accepted"
        )
    own = _literal(said, "size", where)
    every = _multiples(folder, format_name)
    size = {key: int(value) for key, value in (part.split("=") for part in (found["sizes"] or "").split(",") if part)}
    if size and size.keys() != own.keys():
        raise Misread(f"{name}: the sizes {', '.join(own)} are accepted, got {', '.join(size)}")
    first = size or _halved(own, every)
    remarks = () if size or first == own else (f"its own size, {_words(own)}, is halved to {_words(first)}",)
    verification_sizes = [s for s in _literal(said, "verification_sizes", where) if _whole(s, every)]
    device = _literal(said, "device", where) if "device" in said else "cpu"
    return Problem(
        name=folder.resolve().name + (f"#{format_name}" if format_name else ""), format=NAME, files={FILE: source},
        loader=__name__, entry=format_name, device=device, remarks=remarks,
        shapes=tuple(Shape(_words(s), s) for s in (first, *verification_sizes)),
    )  # fmt: skip


def _said(source: str, where: str) -> dict[str, Any]:
    """The arguments of the ``PROBLEM`` that a text defines, as they are written there."""
    for statement in text.parse_module(source, where).body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        if any(isinstance(t, ast.Name) and t.id == "PROBLEM" for t in statement.targets):
            return {k.arg: k.value for k in statement.value.keywords if k.arg}
    raise Misread(f"{where}: no PROBLEM = Problem(...)")


def _literal(said: dict[str, Any], name: str, where: str) -> Any:
    try:
        return ast.literal_eval(said[name])
    except (KeyError, ValueError):
        raise Misread(f"{where}: PROBLEM has no {name} that is written out in numbers") from None


def _multiples(folder: Path, format_name: str) -> dict[str, int]:
    """What all rungs of this format ask of their sizes."""
    found: dict[str, int] = {}
    for path in sorted(folder.glob("[0-9][0-9]_*.cpp")):
        rung = rung_of(path)
        if rung.format == format_name:
            found |= {name: math.lcm(count, found.get(name, 1)) for name, count in rung.multiples.items()}
    return found


def _whole(size: Size, every: Size) -> bool:
    return all(size[name] % count == 0 for name, count in every.items())


def _halved(size: Size, every: Size) -> Size:
    found = dict(size)
    while math.prod(found.values()) > MOST_WORK or math.prod(sorted(found.values())[-2:]) > MOST_ELEMENTS:
        for name in sorted(found, key=lambda n: -found[n]):
            if found[name] > 1 and _whole(smaller := found | {name: found[name] // 2}, every):
                found = smaller
                break
        else:
            break
    return found


def _words(size: Size) -> str:
    return ",".join(f"{name}={value}" for name, value in size.items())


def candidate_in(path: Path, source: str, problem: Problem) -> Candidate:
    if not re.fullmatch(r"\d\d_\w+\.cpp", path.name):
        raise Misread(f"{path}: a rung in C++ is accepted, a file NN_idea.cpp")
    with tempfile.TemporaryDirectory() as folder:  # a text may lie in no file
        held = Path(folder) / path.name
        held.write_text(source, encoding="utf-8")
        try:
            rung = rung_of(held)
        except ValueError as error:
            raise Misread(str(error)) from None
    if rung.format != problem.entry:
        raise Misread(f"{path}: it takes the format {rung.format!r}, and the problem has {problem.entry!r}: --problem "
                      f"{problem.name.partition('#')[0]}{'#' if rung.format else ''}{rung.format}")  # fmt: skip
    if lacks := TARGETS[rung.target].needs - machine().features:
        raise Misread(f"{path}: it is for {rung.target}, and this machine has no {', '.join(sorted(lacks))}")
    return Candidate(path.stem, {path.name: source}, path.name, "c++")


# ---------------------------------------------------------------- where foreign code runs


def _ladder(problem: Problem, folder: Path) -> Ladder:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(problem.files[FILE], encoding="utf-8")
    return ladder_in(folder)


class LoadedProblem:
    """A ladder's problem at one size, its inputs in one format."""

    fixed = frozenset(range(16))  # what a format has packed is not drawn otherwise

    def __init__(self, problem: Problem, shape: Shape, folder: Path) -> None:
        self.ladder, self.format_name, self.size = _ladder(problem, folder), problem.entry, dict(shape.sizes)
        self.names = list(self._given(0))

    def _given(self, seed: int) -> Inputs:
        drawn = self.ladder.inputs(self.size, torch.Generator().manual_seed(seed))
        return self.ladder.encode_inputs(self.format_name, drawn)

    def init(self) -> list[Any]:
        return []

    def inputs(self) -> list[Tensor]:
        return list(self._given(int(torch.randint(1 << 62, ()))).values())

    def reference(self, *init: Any) -> Any:
        return self._computed

    def _computed(self, *inputs: Tensor) -> Tensor:
        given = dict(zip(self.names, inputs, strict=True))
        if self.format_name:
            given = {name: value.float() for name, value in self.ladder.exact_inputs(self.format_name, given).items()}
        return self.ladder.reference(given).to(self.ladder.dtype)

    def bound(self, args: list[Tensor]) -> Bound:
        exact = self.ladder.exact_inputs(self.format_name, dict(zip(self.names, args, strict=True)))
        reference = self.ladder.reference(exact)
        most = self.ladder.bound_of(self.format_name)(exact, reference)
        why = f"output: {float(most.mean()):.2g}: the ladder's own, of {FILE}"
        return Bound(("output",), (reference,), (most,), (self._computed(*args),), (why,), (), {})


def load(problem: Problem, shape: Shape, folder: Path) -> LoadedProblem:
    return LoadedProblem(problem, shape, folder / "ladder")


def load_candidate(problem: Problem, shape: Shape, candidate: Candidate, folder: Path) -> LoadedCandidate:
    place, size, format_name = folder / "ladder", dict(shape.sizes), problem.entry
    ladder = _ladder(problem, place)
    path = place / candidate.entry
    path.write_text(candidate.files[candidate.entry], encoding="utf-8")
    rung = rung_of(path)
    own = ladder.formats[format_name] if format_name else None
    function = getattr(open_library(build_library(path, rung.target)), ladder.symbol)
    function.argtypes, function.restype = list((own and own.signature) or ladder.signature), None
    arguments = (own and own.arguments) or ladder.arguments
    assert arguments is not None  # ladder_in asks for it
    names = LoadedProblem(problem, shape, place).names

    def run(*inputs: Tensor) -> Tensor:
        if not all(value.is_contiguous() for value in inputs):
            raise ValueError("a rung takes contiguous inputs")
        out = torch.empty(ladder.shape(size), dtype=ladder.dtype)
        function(*arguments(size, dict(zip(names, inputs, strict=True)), out, _threads(rung)))
        return out

    return LoadedCandidate(lambda *init: run)


def _threads(rung: Rung) -> int:
    return torch.get_num_threads() if 0 in rung.threads else max(rung.threads)
