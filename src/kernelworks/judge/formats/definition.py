"""flashinfer-bench and SOL-ExecBench: a definition in JSON (axes, inputs, outputs, a reference in Python whose ``run``
is called), workloads that bind its axes, and solutions in JSON with their sources.

Workloads are looked for beside the definition (``workload.jsonl``) and where the datasets keep them beside
``definitions/``: ``workloads/**/NAME.jsonl``, ``traces/workloads/**/NAME.workload.jsonl``. Each one is a shape that a
candidate must take.
"""

from __future__ import annotations

import ast
import json
import math
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernelworks.judge.formats import text
from kernelworks.judge.problem import Candidate, Misread, Problem, Shape
from kernelworks.records import json_text

__all__ = ["candidate_in", "problem_in", "reads", "sizes_of"]

NAME, SOL = "flashinfer-bench", "sol-execbench"
DEFINITION, WORKLOADS, SOLUTION = "definition.json", "workload.jsonl", "solution.json"
LOADER = "kernelworks.judge.formats.definition_loader"
DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float4_e2m1",
    "float4_e2m1fn_x2", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
AXES = ("const", "var", "expr")
# Of one language in its capitals or a list of several, the first that compiles kernels decides. Languages for a GPU
# whose kernels are launched in other ways than torch's and Triton's count as CUDA.
LANGUAGES = {
    "python": "torch", "pytorch": "torch", "triton": "triton", "tlx": "triton", "cpp": "c++", "cuda": "cuda",
    "cuda_cpp": "cuda", "cutlass": "cuda", "cudnn": "cuda", "cublas": "cuda", "cute_dsl": "cuda", "cutile": "cuda",
    "cudnn_frontend": "cuda",
}  # fmt: skip
COMPILED_FIRST = ("cuda", "c++", "triton", "torch")
RESERVED_NAMES = ("other weights",)  # the name of what every problem is asked at
UNBOUND = 64  # an axis that no workload binds
MOST = 64  # workloads that are taken up


def reads(path: Path, source: str) -> bool:
    return path.suffix == ".json" and '"reference"' in source and '"axes"' in source


def parse_json(source: str, where: str) -> Any:
    try:
        return json_text.parse_json(source)
    except json.JSONDecodeError as error:
        raise Misread(f"{where}:{error.lineno}: not valid JSON: {error.msg}") from None
    except ValueError as error:
        raise Misread(f"{where}: not valid JSON: {error}") from None


class _Fields:
    """Looks fields up, and says of a wrong one where it is, what came and what is accepted."""

    def __init__(self, value: Any, where: str) -> None:
        self.value, self.where = value, where

    def wrong(self, field: str, came: Any, accepted: str) -> Misread:
        return Misread(f"{self.where}: {field} is {_short(came)}; {accepted} is accepted")

    def of(self, field: str, kind: type, accepted: str) -> Any:
        found = self.value.get(field) if isinstance(self.value, dict) else None
        if not isinstance(found, kind) or (kind in (str, dict) and not found):
            raise self.wrong(field, found, accepted)
        return found


def _short(value: Any) -> str:
    return "missing" if value is None else repr(value)[:80]


def problem_in(path: Path, source: str) -> Problem:
    said = parse_json(source, str(path))
    fields = _Fields(said, str(path))
    name = fields.of("name", str, "a text")
    axes = fields.of("axes", dict, "an object of axes")
    for axis, its in axes.items():
        _checked_axis(fields, axis, its)
    for side in ("inputs", "outputs"):
        for tensor, its in fields.of(side, dict, "an object of tensors").items():
            _checked_tensor(fields, f"{side}.{tensor}", its, axes)
    reference = fields.of("reference", str, "Python with a function run")
    functions = text.functions(text.parse_module(reference, f"{path}: reference"))
    if "run" not in functions:
        raise Misread(f"{path}: reference has no function run; it has {', '.join(functions) or 'none'}")
    custom = said.get("custom_inputs_entrypoint")
    if custom is not None and not (isinstance(custom, str) and custom in functions):
        raise fields.wrong("custom_inputs_entrypoint", custom, f"a function of the reference ({', '.join(functions)})")
    beside, theirs = path.with_name(WORKLOADS), _kept_apart(path, name)
    found = beside if beside.exists() else theirs
    files = {DEFINITION: source} | ({WORKLOADS: text.read_text(found)} if found is not None else {})
    shapes, remarks = _shapes(files, axes, found)
    return Problem(
        name, SOL if custom is not None or beside.exists() else NAME, files, LOADER, "run", shapes, remarks=remarks
    )


def _checked_axis(fields: _Fields, axis: str, its: Any) -> None:
    kind = its.get("type") if isinstance(its, dict) else its
    if kind not in AXES:
        raise fields.wrong(f"axes.{axis}.type", kind, f"one of {', '.join(AXES)}")
    if kind == "const" and (type(its.get("value")) is not int or its["value"] <= 0):
        raise fields.wrong(f"axes.{axis}.value", its.get("value"), "a whole number above 0")
    if kind == "expr":
        _evaluated(str(its.get("expression")), {}, f"{fields.where}: axes.{axis}.expression", dry=True)


def _checked_tensor(fields: _Fields, field: str, its: Any, axes: Mapping[str, Any]) -> None:
    shape, dtype = (its.get("shape"), its.get("dtype")) if isinstance(its, dict) else (its, None)
    if shape is not None and not (isinstance(shape, list) and all(isinstance(a, str) and a in axes for a in shape)):
        raise fields.wrong(f"{field}.shape", shape, f"null or a list of axes ({', '.join(axes)})")
    if dtype not in DTYPES:
        raise fields.wrong(f"{field}.dtype", dtype, f"one of {', '.join(DTYPES)}")


def _kept_apart(path: Path, name: str) -> Path | None:
    """Where the dataset keeps the workloads of a definition."""
    root = next((p.parent for p in path.resolve().parents if p.name == "definitions"), None)
    if root is None:
        return None
    places = (root / "workloads", root / "traces" / "workloads")
    names = (f"{name}.jsonl", f"{name}.workload.jsonl")
    return next((found for place in places for one in names for found in sorted(place.rglob(one))), None)


def _shapes(
    files: Mapping[str, str], axes: Mapping[str, Any], found: Path | None
) -> tuple[tuple[Shape, ...], tuple[str, ...]]:
    free = [name for name, its in axes.items() if its["type"] == "var"]
    if found is None:
        sizes = dict.fromkeys(free, UNBOUND)
        said = (f"no workload: {', '.join(free)} are taken for {UNBOUND}, and values are random",) if free else ()
        return (Shape("own", sizes),), said
    shapes: list[Shape] = []
    for number, work in enumerate(workloads(files[WORKLOADS], str(found))[:MOST]):
        bound = work["axes"]
        for axis in free:
            if type(bound.get(axis)) is not int or bound[axis] < 0:
                raise Misread(
                    f"{found}: workload {number}: axes.{axis} is {_short(bound.get(axis))}; a size is accepted"
                )
        name = str(work.get("uuid", number))
        if name in {*RESERVED_NAMES, *(shape.name for shape in shapes)}:
            name = f"{name}, workload {number}"
        shapes.append(Shape(name, {**{a: bound[a] for a in free}, "workload": number}))
    if not shapes:
        raise Misread(f"{found}: it has no workload")
    return tuple(shapes), ()


def workloads(source: str, where: str) -> list[dict[str, Any]]:
    """Those of a file of lines, each a workload or a trace that holds one."""
    found = []
    for number, line in enumerate(source.splitlines(), 1):
        if not line.strip():
            continue
        said = parse_json(line, f"{where}, line {number}")
        work = said.get("workload", said) if isinstance(said, dict) else said
        if not (isinstance(work, dict) and isinstance(work.get("axes"), dict) and isinstance(work.get("inputs"), dict)):
            raise Misread(f"{where}:{number}: not a workload: objects axes and inputs are accepted")
        found.append(work)
    return found


# ---------------------------------------------------------------- sizes

LARGEST_BITS = 63  # of a size


def _power(base: Any, exponent: Any) -> Any:
    """Raises OverflowError where it is no size of anything, before it is computed."""
    if abs(exponent) * math.log2(max(2.0, abs(base))) > LARGEST_BITS:
        raise OverflowError("a power that is too large")
    return base**exponent


OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: _power,
}  # fmt: skip


def _evaluated(expression: str, sizes: Mapping[str, int], where: str, *, dry: bool = False) -> int:
    """A sum or product of sizes and numbers. Raises Misread for anything else."""

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value
        if isinstance(node, ast.Name) and (dry or node.id in sizes):
            return 1 if dry else sizes[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
            return value(node.operand) if isinstance(node.op, ast.UAdd) else -value(node.operand)
        raise Misread(f"{where} is {expression!r}; axes, numbers and + - * / // % ** are accepted")

    try:
        return int(value(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ArithmeticError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise Misread(f"{where} is {expression[:80]!r}: {str(error) or 'nested too deep'}") from None


def sizes_of(definition: Mapping[str, Any], bound: Mapping[str, int]) -> dict[str, int]:
    """Every axis' size, of those that a workload binds, that are constant, and that follow from them."""
    axes = definition["axes"]
    sizes = {name: its["value"] for name, its in axes.items() if its["type"] == "const"}
    sizes |= {name: bound[name] for name, its in axes.items() if its["type"] == "var"}
    for name, its in axes.items():
        if its["type"] == "expr":
            sizes[name] = _evaluated(its["expression"], sizes, f"axes.{name}.expression")
    return sizes


# ---------------------------------------------------------------- candidates


def candidate_in(path: Path, source: str, problem: Problem) -> Candidate:
    """A solution in JSON, or a Python file with ``run``."""
    if path.suffix == ".py":
        known = text.functions(text.parse_module(source, str(path)))
        if "run" not in known:
            raise Misread(f"{path}: no function run; it has {', '.join(known) or 'none'}")
        return Candidate(path.stem, {"candidate.py": source}, "candidate.py::run", text.language(source))
    said = parse_json(source, str(path))
    fields = _Fields(said, str(path))
    solves = fields.of("definition", str, "the name of a definition")
    if solves != problem.name:
        raise fields.wrong("definition", solves, repr(problem.name))
    spec = _Fields(fields.of("spec", dict, "an object"), f"{path}: spec")
    entry = spec.of("entry_point", str, "FILE::FUNCTION")
    file, _, function = entry.partition("::")
    language = _language(spec)
    if not file.endswith(".py") and (spec.value.get("binding") or "torch") != "torch":
        raise spec.wrong("binding", spec.value["binding"], "'torch'")
    into = spec.value.get("destination_passing_style", True)
    if not isinstance(into, bool | None):
        raise spec.wrong("destination_passing_style", into, "true or false")
    sources = fields.of("sources", list, "a list of files")
    files = {}
    for number, one in enumerate(sources):
        its = _Fields(one, f"{path}: sources[{number}]")
        name = its.of("path", str, "a relative path")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise its.wrong("path", name, "a path inside the solution")
        files[name] = its.of("content", str, "a text")
    if file not in files or not function:
        raise spec.wrong("entry_point", entry, f"FILE::FUNCTION with a file of the sources ({', '.join(files)})")
    return Candidate(str(said.get("name", path.stem)), {**files, SOLUTION: source}, entry, language)


def _language(spec: _Fields) -> str:
    """``language``, a text, or ``languages``, a list of them, whatever their capitals."""
    field = "languages" if "languages" in spec.value else "language"
    said = spec.value.get(field)
    names = [name.lower() for name in (said if isinstance(said, list) else [said]) if isinstance(name, str)]
    if not names or (isinstance(said, list) and len(names) < len(said)) or any(n not in LANGUAGES for n in names):
        raise spec.wrong(field, said, f"{'a list of' if field == 'languages' else 'one of'} {', '.join(LANGUAGES)}")
    return min((LANGUAGES[name] for name in names), key=COMPILED_FIRST.index)
