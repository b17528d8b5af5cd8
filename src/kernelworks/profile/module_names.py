"""Whether a Python file can have a function of some name, by its text: a script may run for minutes before its last
line, and a misspelt name need not wait for that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["functions_of", "may_define", "missing_arguments"]

# A module whose text calls one of these may get names that its text does not bind.
BUILTINS = frozenset({"__import__", "eval", "exec", "globals", "locals"})
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def may_define(path: Path, name: str) -> bool:
    """False if nothing in the file can bind ``name`` in its module. True if something does, or if it cannot be told."""
    tree = _parsed(path)
    return tree is None or _is_dynamic(tree) or any(bound == name for bound, _ in _bindings(tree))


def functions_of(path: Path) -> list[str]:
    """The functions that a file defines in its module, as far as its text tells."""
    tree = _parsed(path)
    plain = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [] if tree is None else [name for name, node in _bindings(tree) if isinstance(node, plain)]


def missing_arguments(path: Path, name: str) -> list[str]:
    """The arguments without a default of the function that the file defines under ``name``; none if it cannot be told
    (it is decorated, bound twice, or no plain function)."""
    tree = _parsed(path)
    if tree is None or _is_dynamic(tree):
        return []
    made = [node for bound, node in _bindings(tree) if bound == name]
    if len(made) != 1 or not isinstance(made[0], (ast.FunctionDef, ast.AsyncFunctionDef)) or made[0].decorator_list:
        return []
    arguments = made[0].args
    by_place = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return by_place[: len(by_place) - len(arguments.defaults)] + [a.arg for a, default in by_name if default is None]


def _parsed(path: Path) -> ast.Module | None:
    """None of a file that Python cannot parse: whoever runs it will say so."""
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return None


def _is_dynamic(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body) or any(
        _may_bind_unseen(node) for node in ast.walk(tree)
    )


def _may_bind_unseen(node: ast.AST) -> bool:
    """Whether it may bind a name of the module that the text does not show. ``model.eval()``, ``model.modules()`` and
    ``vars(arguments)`` do not; ``sys.modules`` may lead to the module itself."""
    match node:
        case ast.ImportFrom(names=names):
            return any(alias.name == "*" or (node.module == "sys" and alias.name == "modules") for alias in names)
        case ast.Name(id=name):
            return name in BUILTINS
        case ast.Call(func=ast.Name(id="vars"), args=[]):
            return True
        case ast.Call(func=ast.Name(id="setattr"), args=[_, second, *_]):
            return not isinstance(second, ast.Constant)
        case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
            return True
        case ast.Attribute(attr="exec_module" | "run_path"):
            return True
    return False


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Each name that is bound in the module, with what binds it; what functions declare ``global`` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from ((name, node) for name in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            yield from ((str(given.value), node) for given in node.args[1:2] if isinstance(given, ast.Constant))
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name.partition(".")[0], node) for alias in node.names)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, node
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name, node
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest, node
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node
        if isinstance(node, SCOPES):  # what they bind is theirs; decorators and defaults may hold a walrus
            outside = [*getattr(node, "decorator_list", ()), *getattr(node, "bases", ())]
            arguments = getattr(node, "args", None)
            if arguments is not None:
                outside += [default for default in (*arguments.defaults, *arguments.kw_defaults) if default is not None]
            pending += outside
        else:
            pending += ast.iter_child_nodes(node)
