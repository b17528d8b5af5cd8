"""robust-kbench: a Python file with ``forward_fn``, a class ``Model`` whose ``forward(..., fn=forward_fn)`` calls it,
and ``get_inputs``, both made by keyword with defaults. ``config_forward.json`` beside it lists further settings.

A candidate stands in place of ``forward_fn``: a Python file with a function of that name (or ``forward``), or a C++ or
CUDA file that exports ``forward`` to torch. A problem of a backward has a class ``AutogradFunction`` that calls its
``backward_fn``, too. Its candidate exports ``backward``, which takes that place; its gradients are what is judged.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
from pathlib import Path
from typing import Any

from kernelworks.judge.formats import definition, text
from kernelworks.judge.formats.loading import LoadedCandidate, Modules, extension, module_of
from kernelworks.judge.problem import Candidate, Misread, Problem, Shape

__all__ = ["candidate_in", "load", "load_candidate", "problem_in", "reads"]

NAME, FILE, SETTINGS, ENTRY = "robust-kbench", "func_forward.py", "config_forward.json", "forward_fn"
TOLERANCE = (1e-5, 1e-5)  # its own default
TRIAL_SIZES = (1, 3)
KINDS = ("input", "init", "shared")
BACKWARD, GRAPH = "backward", "AutogradFunction"  # what a candidate exports, and the class that calls it
BACKWARD_SETTINGS = "config_backward.json"


def reads(path: Path, source: str) -> bool:
    return path.suffix == ".py" and f"def {ENTRY}" in source and "def get_inputs" in source


def problem_in(path: Path, source: str) -> Problem:
    tree = text.parse_module(source, str(path))
    functions = text.functions(tree)
    for name, known, what in ((ENTRY, functions, "function"), ("get_inputs", functions, "function")):
        if name not in known:
            raise Misread(f"{path}: no {what} {name}; it has {', '.join(known) or 'none'}")
    if "Model" not in text.classes(tree):
        raise Misread(f"{path}: no class Model; it has {', '.join(text.classes(tree)) or 'no classes'}")
    files = {FILE: source}
    own = BACKWARD_SETTINGS if GRAPH in text.classes(tree) else SETTINGS
    settings = next((p for name in (own, SETTINGS) if (p := path.with_name(name)).exists()), None)
    if settings is not None:
        files[SETTINGS] = text.read_text(settings)
        count = len(_settings(files[SETTINGS], str(settings)))
        shapes = tuple(Shape(f"settings {i}" if i else "own", {"settings": i}) for i in range(count))
    else:
        shapes = (Shape("own"), *_others(tree, functions["get_inputs"]))
    return Problem(path.stem, NAME, files, __name__, ENTRY, shapes, tolerance=TOLERANCE)


def _settings(source: str, where: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Keywords of the class and of get_inputs, of each setting; the single one first."""
    said = definition.parse_json(source, where)
    if not isinstance(said, dict):
        raise Misread(f"{where}: it is a {type(said).__name__}; an object of lists is accepted")
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for many in ("single", "multi"):
        lists = [said.get(f"{many}_{kind}_configs") or [{}] for kind in KINDS]
        for kind, of in zip(KINDS, lists, strict=True):
            if not (isinstance(of, list) and all(isinstance(one, dict) for one in of)):
                raise Misread(f"{where}: {many}_{kind}_configs is {type(of).__name__}; a list of objects is accepted")
        for given, init, shared in itertools.product(*lists):
            one = ({**init, **shared}, {**given, **shared})
            if one not in found:
                found.append(one)
    return found


def _others(tree: ast.Module, inputs: ast.FunctionDef) -> list[Shape]:
    """Other numbers for arguments of get_inputs that the class has not."""
    made_with = {
        argument.arg
        for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        for argument in node.args.args
    }  # fmt: skip
    given = inputs.args.args[len(inputs.args.args) - len(inputs.args.defaults) :]
    found = []
    for argument, default in zip(given, inputs.args.defaults, strict=True):
        value = default.value if isinstance(default, ast.Constant) else None
        if type(value) is int and value > 1 and argument.arg not in made_with:
            name = argument.arg
            others = dict.fromkeys(v for v in (*TRIAL_SIZES, value - 1) if v < value)
            found += [Shape(f"{name}={v}", {name: v}, required=False) for v in others]
    return found


def candidate_in(path: Path, source: str, problem: Problem) -> Candidate:
    if path.suffix in (".cu", ".cpp", ".cc"):
        exported = re.findall(r'\bm\s*\.\s*def\s*\(\s*"(\w+)"', source)
        entry = next((name for name in _entries(problem) if name in exported), None)
        if entry is None:
            raise Misread(f"{path}: {_missing(problem)}; it exports {', '.join(exported) or 'nothing'}")
        return Candidate(path.stem, {path.name: source}, entry, "cuda" if path.suffix == ".cu" else "c++")
    known = text.functions(text.parse_module(source, str(path)))
    entry = next((name for name in (ENTRY, *_entries(problem)) if name in known), None)
    if entry is None:
        raise Misread(f"{path}: {_missing(problem)}; it has {', '.join(known) or 'no functions'}")
    return Candidate(path.stem, {"candidate.py": source}, entry, text.language(source))


def _entries(problem: Problem) -> tuple[str, ...]:
    """What a candidate may export: of a problem of a forward that alone."""
    return ("forward", BACKWARD) if f"class {GRAPH}" in problem.files[FILE] else ("forward",)


def _missing(problem: Problem) -> str:
    also = f", or {BACKWARD} in that of {GRAPH}.backward_fn" if BACKWARD in _entries(problem) else ""
    return f"no function forward, which takes the place of {ENTRY}{also}"


# ---------------------------------------------------------------- where foreign code runs


class LoadedProblem(Modules):
    def __init__(self, module: Any, entry: str, made_with: dict[str, Any], given: dict[str, Any]) -> None:
        super().__init__(module, entry)
        self.made_with, self.given = made_with, given

    def init(self) -> list[Any]:
        return []

    def inputs(self) -> list[Any]:
        return list(self.module.get_inputs(**self.given))

    def reference(self, *init: Any) -> Any:
        return self.module.Model(**self.made_with)


def load(problem: Problem, shape: Shape, folder: Path) -> LoadedProblem:
    module = module_of("judged_problem", problem.files[FILE], folder)
    if SETTINGS in problem.files:
        made_with, given = _settings(problem.files[SETTINGS], SETTINGS)[shape.sizes["settings"]]
        return LoadedProblem(module, problem.entry, made_with, given)
    made_with, given = (
        {name: size for name, size in shape.sizes.items() if name in inspect.signature(function).parameters}
        for function in (module.Model, module.get_inputs)
    )
    return LoadedProblem(module, problem.entry, made_with, given)


def load_candidate(problem: Problem, shape: Shape, candidate: Candidate, folder: Path) -> LoadedCandidate:
    (file, source), *_ = candidate.files.items()
    if file.endswith(".py"):
        answer = getattr(module_of("judged_candidate", source, folder), candidate.entry)
    else:
        answer = getattr(extension("judged_candidate", candidate.files, folder / "candidate"), candidate.entry)
    loaded = load(problem, shape, folder / "problem")

    def make(*init: Any) -> Any:
        model, fn = loaded.reference(*init), answer
        if candidate.entry == BACKWARD:
            graph = getattr(loaded.module, GRAPH)
            graph.backward_fn, fn = staticmethod(answer), graph.apply
        model.forward = functools.partial(model.forward, fn=fn)
        return model

    return LoadedCandidate(make)
