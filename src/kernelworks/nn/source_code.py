"""The source of a function that runs: its syntax tree, if compiling it gives the function's own bytecode."""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["compile_code", "definition", "equal_code", "is_only_called", "parse_file"]

_COMPARING = {"IS_OP", "CONTAINS_OP", "COMPARE_OP"}


@functools.cache
def parse_file(filename: str) -> ast.Module | None:
    """The syntax tree of a whole file: what a name stands for in it decides how CPython compiles a call. It is shared:
    copy it to change it."""
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return None


@functools.cache
def _codes(filename: str) -> tuple[types.CodeType, ...]:
    tree = parse_file(filename)
    return () if tree is None else tuple(_all(compile(tree, filename, "exec", dont_inherit=True)))


def _all(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _all(inner)


def compile_code(tree: ast.Module, wanted: types.CodeType) -> types.CodeType | None:
    """The code that compiling ``tree`` gives for the function whose code is ``wanted``."""
    return _like(tuple(_all(compile(tree, wanted.co_filename, "exec", dont_inherit=True))), wanted)


def _like(codes: tuple[types.CodeType, ...], wanted: types.CodeType) -> types.CodeType | None:
    of = (wanted.co_qualname, wanted.co_firstlineno)
    return next((c for c in codes if (c.co_qualname, c.co_firstlineno) == of), None)


def definition(code: types.CodeType, tree: ast.Module | None = None) -> ast.FunctionDef | None:
    """The definition of the function with this code in its file's tree (or in a copy of it), or None if the source
    is not what runs."""
    if not equal_code(_like(_codes(code.co_filename), code), code):
        return None
    for node in ast.walk(tree or parse_file(code.co_filename) or ast.Module([], [])):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name and _first_line(node) == code.co_firstlineno:
            return node
    return None


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def is_only_called(function: types.FunctionType, names: set[str], replaced: dict[int, Any]) -> bool:
    """Whether whatever a function reads by these globals and would find ``replaced`` (by id) is called and nothing
    else. What is compared, looked up in a table or handed on would not be the object that the user means."""
    node = definition(function.__code__)
    if node is None:
        codes = _all(function.__code__)
        return not any(i.opname in _COMPARING for code in codes for i in dis.get_instructions(code))
    above = {child: parent for parent in ast.walk(node) for child in ast.iter_child_nodes(parent)}
    for found in (n for statement in node.body for n in ast.walk(statement)):
        if isinstance(found, ast.Name) and found.id in names:
            mention: ast.AST = found
            value = function.__globals__.get(found.id)
            while isinstance(parent := above[mention], ast.Attribute):
                mention, value = parent, getattr(value, parent.attr, None)
            called = isinstance(parent, ast.Call) and parent.func is mention
            if not called and (mention is found or id(value) in replaced):
                return False
    return True


def equal_code(a: types.CodeType | None, b: types.CodeType | None) -> bool:
    """Whether two codes do the same: bytecode, names and constants, wherever the lines stand."""
    if a is None or b is None:
        return False
    if (a.co_code, a.co_names, a.co_varnames, a.co_freevars, a.co_cellvars, a.co_exceptiontable) != (
        b.co_code, b.co_names, b.co_varnames, b.co_freevars, b.co_cellvars, b.co_exceptiontable,
    ):  # fmt: skip
        return False
    if len(a.co_consts) != len(b.co_consts):
        return False
    return all(
        equal_code(x, y)
        if isinstance(x, types.CodeType) and isinstance(y, types.CodeType)
        else type(x) is type(y) and repr(x) == repr(y)
        for x, y in zip(a.co_consts, b.co_consts, strict=True)
    )
