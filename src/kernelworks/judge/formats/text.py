"""What the text of a Python file says without running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelworks.judge.problem import Misread

__all__ = ["classes", "constants", "functions", "language", "names_in", "parsed", "read", "with_constants"]


def read(path: Path) -> str:
    """Raises Misread where there is no such text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Misread(f"{path}: {error.strerror if isinstance(error, OSError) else 'not a text file'}") from None


def parsed(text: str, where: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise Misread(f"{where}:{error.lineno}: not valid Python: {error.msg}") from None


def _top(tree: ast.Module) -> list[ast.stmt]:
    """Statements of the module, and those under its conditions and attempts."""
    found: list[ast.stmt] = []
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        statement = pending.pop(0)
        found.append(statement)
        if isinstance(statement, ast.If):
            pending += [*statement.body, *statement.orelse]
        elif isinstance(statement, ast.Try):
            pending += [*statement.body, *statement.orelse, *statement.finalbody]
    return found


def classes(tree: ast.Module) -> list[str]:
    return [s.name for s in _top(tree) if isinstance(s, ast.ClassDef)]


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {s.name: s for s in _top(tree) if isinstance(s, ast.FunctionDef)}


def constants(tree: ast.Module) -> dict[str, int]:
    """Whole numbers that the module names at its top, once each."""
    found: dict[str, int] = {}
    twice: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            targets: Sequence[ast.expr] = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        for target in targets:
            if not isinstance(target, ast.Name):
                continue
            value = statement.value
            if target.id in found:
                twice.add(target.id)
            if isinstance(value, ast.Constant) and type(value.value) is int:
                found[target.id] = value.value
    return {name: value for name, value in found.items() if name not in twice}


def names_in(tree: ast.AST, module: ast.Module) -> set[str]:
    """Names that a function reads, and those that the module's constants it reads are made of."""
    made_of: dict[str, set[str]] = {}
    for statement in module.body:
        if isinstance(statement, ast.Assign) and statement.value is not None:
            inside = {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)}
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    made_of[target.id] = inside
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    while True:
        more = {name for known in found for name in made_of.get(known, ())} - found
        if not more:
            return found
        found |= more


def with_constants(text: str, sizes: Mapping[str, int | float | str]) -> str:
    """The text with other values for these of its constants; every line stays where it is."""
    if not sizes:
        return text
    lines = text.splitlines(keepends=True)
    for statement in reversed(ast.parse(text).body):
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or not isinstance(statement.value, ast.Constant):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        name = next((t.id for t in targets if isinstance(t, ast.Name) and t.id in sizes), None)
        value = statement.value
        if name is None or value.end_col_offset is None:
            continue
        if value.end_lineno != value.lineno:
            continue
        line = lines[value.lineno - 1].encode()
        changed = line[: value.col_offset] + repr(sizes[name]).encode() + line[value.end_col_offset :]
        lines[value.lineno - 1] = changed.decode()
    return "".join(lines)


# The first word that stands in the text says what its kernels are written in.
LANGUAGES = (
    ("cuda", ("cuda_sources", "cuda_source=", ".cu\"", "__global__", "CUDAExtension")),
    ("triton", ("@triton.jit", "import triton", "@triton.autotune")),
    ("c++", ("cpp_sources", "load_inline", "CppExtension", "torch/extension.h", "CDLL(", "LoadLibrary(",
             "tvm_ffi", "kernelworks.search.variants")),
)  # fmt: skip


def language(text: str) -> str:
    return next((name for name, marks in LANGUAGES if any(mark in text for mark in marks)), "torch")
