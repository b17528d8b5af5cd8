"""Which names a piece of Python binds, and where: what ``source_units.py`` goes by."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = [
    "COMPREHENSIONS", "FUNCTIONS", "Function", "bound_in", "imported_by", "imports_in", "locals_of", "parameters_of",
    "places_of", "targets_of",
]  # fmt: skip

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
NAMING = (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def imported_by(node: ast.Import | ast.ImportFrom, module: str, is_package: bool) -> Iterator[tuple[str, str, str]]:
    """(name, module, attribute or "") for each name that an import binds."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            top = alias.name.split(".")[0]
            yield (alias.asname, alias.name, "") if alias.asname else (top, top, "")
            continue
        base = node.module or ""
        if node.level:
            parts = module.split(".")
            parts = parts[: len(parts) - node.level + is_package]
            base = ".".join([*parts, *filter(None, [base])])
        yield alias.asname or alias.name, base, alias.name


def targets_of(node: ast.AST) -> Iterator[str]:
    """Names that a node by itself binds in the scope that it stands in."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
        yield node.id
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, *NAMING)) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def _within(node: ast.AST, *, walrus: bool = False) -> Iterator[ast.AST]:
    """What lies in a scope: not what is in functions, classes and comprehensions within, but for ``:=`` in the last."""
    for child in ast.iter_child_nodes(node):
        inner = walrus or isinstance(child, COMPREHENSIONS)
        if not inner or (isinstance(child, ast.NamedExpr)):
            yield child
        if isinstance(child, ast.NamedExpr) and inner:
            yield child.target
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield from _within(child, walrus=inner)


def parameters_of(node: Function) -> list[ast.arg]:
    a = node.args
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, [a.vararg, a.kwarg])]


def bound_in(nodes: Iterable[ast.AST]) -> set[str]:
    found: set[str] = set()
    freed: set[str] = set()
    for node in nodes:
        for inner in (node, *(() if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else _within(node))):
            found.update(targets_of(inner))
            if isinstance(inner, (ast.Global, ast.Nonlocal)):
                freed.update(inner.names)
    return found - freed


def locals_of(node: Function) -> set[str]:
    body = [node.body] if isinstance(node, ast.Lambda) else node.body
    return {a.arg for a in parameters_of(node)} | bound_in(body)


def places_of(node: Any) -> list[tuple[int, int]]:
    """Where a node begins and ends, and its decorators, which lie before it."""
    begins = [(one.lineno, one.col_offset) for one in (node, *getattr(node, "decorator_list", ()))]
    return [*begins, (node.end_lineno, node.end_col_offset)]


def imports_in(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Import, ast.ImportFrom)):
            yield inner
