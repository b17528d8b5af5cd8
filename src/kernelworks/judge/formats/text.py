"""What the text of a Python file says without running it."""

from __future__ import annotations

import ast
import operator
import symtable
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kernelworks.judge.problem import Misread

__all__ = [
    "classes", "constants", "functions", "language", "names_in", "names_read_by", "parse_module", "read_text",
    "with_constants",
]  # fmt: skip


def read_text(path: Path) -> str:
    """Without the mark that some editors begin a file with. Raises Misread if there is no such text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Misread(f"{path}: {error.strerror if isinstance(error, OSError) else 'not a text file'}") from None


def parse_module(text: str, where: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise Misread(f"{where}:{error.lineno}: not valid Python: {error.msg}") from None
    except (RecursionError, MemoryError, UnicodeError):  # the parser's own limits, and what no file holds
        raise Misread(f"{where}: not valid Python: nested too deep, or no text") from None


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


def _number(value: ast.expr | None) -> int | None:
    """A whole number that is written out, ``2048`` or ``1 << 16`` or ``256 * 8``."""
    if isinstance(value, ast.Constant):
        return value.value if type(value.value) is int else None
    if isinstance(value, ast.BinOp) and type(value.op) in OPERATORS:
        left, right = _number(value.left), _number(value.right)
        if left is not None and right is not None and 0 <= left < 1 << 32 and 0 <= right < 1 << 32:
            return OPERATORS[type(value.op)](left, right)
    return None


OPERATORS: dict[type[ast.operator], Callable[[int, int], int | None]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.LShift: lambda a, b: a << b if b < 32 else None,
    ast.Pow: lambda a, b: a**b if b < 32 else None,
    ast.FloorDiv: lambda a, b: a // b if b else None,
}  # fmt: skip


def _named(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """What the module's statements at its top give names to: ``x = 3``, ``a, b = 3, 4``."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            targets: Sequence[ast.expr] = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        value = statement.value
        for target in targets:
            if isinstance(target, ast.Name) and value is not None:
                yield target.id, value
            elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
                pairs = zip(target.elts, value.elts, strict=False)
                yield from ((t.id, v) for t, v in pairs if isinstance(t, ast.Name))


def _places(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names with what is written out for them; of a tuple each element, as ``name[0]``."""
    for name, value in _named(tree):
        each = {name: value}
        if isinstance(value, (ast.Tuple, ast.List)):
            each = {f"{name}[{place}]": element for place, element in enumerate(value.elts)}
        yield from ((n, v) for n, v in each.items() if isinstance(v, ast.Constant) or _number(v) is not None)


def constants(tree: ast.Module) -> dict[str, int]:
    """Whole numbers that the module names at its top, once each; those of tuples as ``name[0]``."""
    often = Counter(name for name, _ in _named(tree))
    found = ((name, _number(value)) for name, value in _places(tree) if often[name.partition("[")[0]] == 1)
    return {name: number for name, number in found if number is not None}


def names_in(tree: ast.AST, module: ast.Module) -> set[str]:
    """Names that a function reads, and those that the module's constants it reads are made of."""
    made_of: dict[str, set[str]] = {}
    for name, value in _named(module):
        made_of[name] = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    while True:
        more = {name for known in found for name in made_of.get(known, ())} - found
        if not more:
            return found
        found |= more


def names_read_by(name: str, text: str) -> set[str]:
    """Names of the module that a class or function of it reads, and what it names of the module reads; not what
    arguments and locals hide. The text must be valid Python."""
    tables: dict[str, list[symtable.SymbolTable]] = {}
    for table in symtable.symtable(text, "", "exec").get_children():
        tables.setdefault(table.get_name(), []).append(table)
    found, pending = set[str](), list(tables.get(name, ()))
    while pending:
        table = pending.pop()
        read = {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()} - found
        found |= read
        pending += [*table.get_children(), *(other for known in read for other in tables.get(known, ()))]
    return found


def with_constants(text: str, sizes: Mapping[str, int | float | str]) -> str:
    """The text with other values for these of its constants; every line stays where it is."""
    if not sizes:
        return text
    lines = text.splitlines(keepends=True)
    places: dict[tuple[int, int, int], int | float | str] = {}
    for name, value in _places(ast.parse(text)):
        if name in sizes and value.end_col_offset is not None and value.end_lineno == value.lineno:
            place, its = (value.lineno, value.col_offset, value.end_col_offset), sizes[name]
            other = places.get(place, its)
            places[place] = (
                min(its, other) if isinstance(its, int) and isinstance(other, int) else its
            )  # of `a = b = 3`
    for (number, start, end), new in sorted(places.items(), reverse=True):
        line = lines[number - 1].encode()
        lines[number - 1] = (line[:start] + repr(new).encode() + line[end:]).decode()
    return "".join(lines)


# The first word that stands in the text says what its kernels are written in.
LANGUAGES = (
    ("cuda", ("cuda_sources", "cuda_source=", ".cu\"", "__global__", "CUDAExtension",
              "launches import cuda")),
    ("triton", ("@triton.jit", "import triton", "@triton.autotune")),
    ("c++", ("cpp_sources", "load_inline", "CppExtension", "torch/extension.h", "CDLL(", "LoadLibrary(",
             "tvm_ffi", "kernelworks.search.our_kernels_cpp")),
    ("python", ("torch.library", "custom_op(")),
)  # fmt: skip


def language(text: str) -> str:
    return next((name for name, marks in LANGUAGES if any(mark in text for mark in marks)), "torch")
