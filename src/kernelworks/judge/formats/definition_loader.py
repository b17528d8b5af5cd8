"""Where definitions are run: their inputs, their reference, and the solutions to them."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.judge.formats.definition import (
    DEFINITION,
    NAME,
    SOLUTION,
    WORKLOADS,
    candidate_in,
    problem_in,
    reads,
    sizes_of,
    workloads,
)
from kernelworks.judge.formats.loading import LoadedCandidate, extension, module_of
from kernelworks.judge.problem import Candidate, Misread, Problem, Shape

__all__ = ["NAME", "candidate_in", "load", "load_candidate", "problem_in", "reads", "strip_reference"]

KINDS = {"float8_e4m3": torch.float8_e4m3fn}
PYTHON = {"bool": bool, "int": int, "float": float}


def _dtype(name: str) -> torch.dtype:
    found = KINDS.get(name) or getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Misread(f"dtype {name}: torch {torch.__version__} has none such")
    return found


class LoadedProblem:
    """``run`` on positional inputs in the definition's order; what it returns by name is put in the outputs' order."""

    def __init__(self, problem: Problem, shape: Shape, folder: Path) -> None:
        self.said = json.loads(problem.files[DEFINITION])
        self.sizes = sizes_of(self.said, shape.sizes)
        number = shape.sizes.get("workload")
        self.given: dict[str, Any] = {}
        if number is not None:
            self.given = workloads(problem.files[WORKLOADS], WORKLOADS)[number]["inputs"]
        self.module = module_of("judged_problem", self.said["reference"], folder)
        whole = {n for n, its in enumerate(self.said["inputs"].values()) if its["dtype"].startswith(("int", "bool"))}
        self.fixed = frozenset(range(len(self.said["inputs"]))) if self._custom() else frozenset(whole)

    def _custom(self) -> str | None:
        wanted = any(its.get("type") == "custom" for its in self.given.values())
        return self.said.get("custom_inputs_entrypoint") if wanted or not self.given else None

    def init(self) -> list[Any]:
        return []

    def inputs(self) -> list[Any]:
        names = self.said["inputs"]
        entry = self._custom()
        if entry is not None:
            scalars = {n: its["value"] for n, its in self.given.items() if its.get("type") == "scalar"}
            made = getattr(self.module, entry)({**self.sizes, **scalars}, torch.device("cpu"))
            return [made[name] for name in names]
        return [self._drawn(name, its) for name, its in names.items()]

    def _drawn(self, name: str, its: Any) -> Any:
        given = self.given.get(name, {})
        if given.get("type") == "scalar":
            return given["value"]
        if its["shape"] is None:
            raise Misread(f"inputs.{name} is a scalar, and no workload gives its value")
        if given.get("type") == "safetensors":
            raise Misread(f"inputs.{name}: values in {given.get('path')!r} are not read; random and custom ones are")
        sizes, dtype = [self.sizes[axis] for axis in its["shape"]], _dtype(its["dtype"])
        if dtype is torch.bool:
            return torch.rand(sizes) < 0.5
        if not dtype.is_floating_point:
            return torch.randint(0, max(1, min(self.sizes.values())), sizes, dtype=dtype)
        return torch.randn(sizes).to(dtype)

    def reference(self, *init: Any) -> Callable[..., Any]:
        run, names = self.module.run, [*self.said["outputs"]]
        return lambda *inputs: _ordered(run(*inputs), names)


def _ordered(result: Any, names: list[str]) -> Any:
    """Outputs in their order, one too, however they were returned."""
    if isinstance(result, dict):
        return tuple(result[name] for name in names)
    return result if isinstance(result, tuple) else tuple(result) if isinstance(result, list) else (result,)


def load(problem: Problem, shape: Shape, folder: Path) -> LoadedProblem:
    return LoadedProblem(problem, shape, folder)


def strip_reference(problem: Problem) -> Problem:
    """What a candidate's process is told of it: inputs and outputs, and nothing of the reference."""
    said = {name: its for name, its in json.loads(problem.files[DEFINITION]).items() if name != "reference"}
    return dataclasses.replace(problem, files={DEFINITION: json.dumps(said)})


def load_candidate(problem: Problem, shape: Shape, candidate: Candidate, folder: Path) -> LoadedCandidate:
    said = json.loads(problem.files[DEFINITION])
    spec = json.loads(candidate.files[SOLUTION])["spec"] if SOLUTION in candidate.files else {}
    file, _, function = candidate.entry.partition("::")
    sources = {name: text for name, text in candidate.files.items() if name != SOLUTION}
    if not file.endswith(".py"):
        options = spec.get("compile_options") or {}
        found = getattr(extension("judged_candidate", sources, folder / "candidate", options), function)
    else:
        found = _python(sources, file, folder / "candidate", function)
    names = [*said["outputs"]]
    if not spec or not spec.get("destination_passing_style", True):
        return LoadedCandidate(lambda *init: lambda *inputs: _ordered(found(*inputs), names))
    sizes = sizes_of(said, shape.sizes)

    def run(*inputs: Any) -> Any:
        device = next((v.device for v in inputs if isinstance(v, Tensor)), torch.device("cpu"))
        outputs = [
            torch.empty([sizes[axis] for axis in its["shape"] or ()], dtype=_dtype(its["dtype"]), device=device)
            for its in said["outputs"].values()
        ]
        found(*inputs, *outputs)
        return tuple(outputs)

    return LoadedCandidate(lambda *init: run)


def _python(sources: dict[str, str], file: str, folder: Path, function: str) -> Any:
    """The function in a file among others that it may import."""
    for name, text in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    return getattr(module_of(Path(file).stem, sources[file], folder), function)
