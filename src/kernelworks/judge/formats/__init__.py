"""The formats that problems and candidates come in, as they are published: one file a format, the table here.

``read_problem`` and ``read_candidate`` read texts and run nothing. A format's module says of a file whether it is one
of its own (``reads``), what problem is in it (``problem_in``), and which candidates it takes (``candidate_in``); what
runs foreign code (``load``, ``load_candidate``) is called in processes of the judge's own.

| format | a problem is | a candidate is |
|---|---|---|
| ``kernelbench`` | a file with ``Model``, ``get_inputs``, ``get_init_inputs`` | a file with ``ModelNew`` |
| ``robust-kbench`` | a file with ``forward_fn``, ``Model``, ``get_inputs`` | one with ``forward_fn`` or ``forward`` |
| ``kernelbook`` | ``ROWS.jsonl#3``: ``python_code``, ``entry_point`` | the row's ``triton_code``, or a file |
| ``flashinfer-bench``, ``sol-execbench`` | a definition, its workloads | a solution, or a file with ``run`` |
| ``op`` | an op's name, ``rms_norm`` or ``rms_norm:CASE`` | a file with a function of that name |
| ``ladder`` | a ladder's name or folder, ``cpu-sgemm`` | a rung in C++ |
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType

from kernelworks.judge.formats import (
    definition_loader,
    kernelbench,
    kernelbook,
    ladders,
    op_packages,
    robust_kbench,
    text,
)
from kernelworks.judge.problem import Candidate, Misread, Problem

__all__ = ["FORMATS", "candidate_of", "problem_on_device", "read_candidate", "read_problem", "strip_reference"]

# The first that takes a file reads it.
FORMATS: tuple[ModuleType, ...] = (robust_kbench, kernelbench, kernelbook, definition_loader)


def _split(path: str | Path) -> tuple[Path, str]:
    """A file, and what stands behind a # where the file of the whole name is not there."""
    whole = Path(path)
    name, mark, which = str(path).rpartition("#")
    return (whole, "") if not mark or whole.exists() else (Path(name), which)


def strip_reference(problem: Problem) -> Problem:
    """What a candidate's process is told of a problem: nothing of its reference, where the format can do without."""
    format = importlib.import_module(problem.loader)
    return format.strip_reference(problem) if hasattr(format, "strip_reference") else problem


def read_problem(path: str | Path, device: str | None = None) -> Problem:
    """The problem in a file, of an op's name, or of a ladder's; where its candidates are to work.

    Raises:
        Misread: no format takes it, or a field of it is not what the format has there.
        ValueError: ``device`` is neither "cpu" nor "cuda".
    """
    _known(device)
    file, which = _split(path)
    if not file.exists() and op_packages.is_op_name(str(path)):
        return op_packages.problem_of(str(path), device or "cpu")
    return problem_on_device(_read(path, file, which), device)


def _read(path: str | Path, file: Path, which: str) -> Problem:
    if ladders.is_ladder_name(str(path)):
        return ladders.problem_of(str(path))
    source = text.read_text(file)
    for format in FORMATS:
        if format.reads(file, source):
            if format is kernelbook:
                return kernelbook.problem_in(file, source, which)
            return format.problem_in(file, source)  # type: ignore[no-any-return]
    names = ", ".join(format.NAME for format in FORMATS)
    raise Misread(f"{file}: no format that is known ({names}): a KernelBench problem has class Model and get_inputs()")


def _known(device: str | None) -> None:
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {device!r}")


def problem_on_device(problem: Problem, device: str | None) -> Problem:
    """The problem where its candidates are to work; its own place without a device. An op of ours has other cases on a
    GPU. Raises ValueError for a device that is neither, Misread for a case that there is not on it."""
    _known(device)
    if device is None or device == problem.device:
        return problem
    if problem.format != op_packages.NAME:
        return dataclasses.replace(problem, device=device)
    whole = all(shape.required for shape in problem.shapes)
    return op_packages.problem_of(problem.entry if whole else f"{problem.entry}:{problem.shapes[0].name}", device)


def read_candidate(path: str | Path, problem: Problem) -> Candidate:
    """The candidate in a file, of the format that its problem has.

    Raises:
        Misread: it is none, or a field of it is not what the format has there.
    """
    file, which = _split(path)
    source = text.read_text(file)
    if problem.format == kernelbook.NAME:
        return kernelbook.candidate_in(file, source, problem, which)
    format = importlib.import_module(problem.loader)
    return format.candidate_in(file, source, problem)  # type: ignore[no-any-return]


def candidate_of(name: str, source: str, problem: Problem, language: str) -> Candidate:
    """The candidate of a name in a text that lies in no file. Raises Misread."""
    suffix = ".py"
    if source.lstrip().startswith("{"):
        suffix = ".json"
    elif problem.format == robust_kbench.NAME and language in ("c++", "cuda") and "import " not in source:
        suffix = ".cpp" if language == "c++" else ".cu"
    elif problem.format == ladders.NAME:
        suffix = ".cpp"
    if problem.format == kernelbook.NAME:
        return kernelbook.candidate_in(Path(f"{name}{suffix}"), source, problem)
    format = importlib.import_module(problem.loader)
    return format.candidate_in(Path(f"{name}{suffix}"), source, problem)  # type: ignore[no-any-return]
