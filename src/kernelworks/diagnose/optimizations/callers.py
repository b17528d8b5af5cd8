"""Rewrites the method that calls several modules one after the other, on one instance, so that it calls them as one.

A module's own forward cannot know who calls it or what becomes of its result; the method that calls it can. The source
of that method is parsed and some calls in it are rewritten. The result runs in its place on the one instance, if
compiling the source unchanged gives the method's own bytecode. A copy or a pickle of the instance has the class's
method. Compilers see the class's method too, and so does whoever replaces it.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from kernelworks.contract.tensors import skip_dynamo
from kernelworks.nn.install import InstalledAttributes
from kernelworks.nn.source_code import compile_code, definition, parse_file

__all__ = ["SITE", "Rewrite", "called_on", "fits", "methods_of", "of_site", "on_site", "placed_in", "rewritten"]

SITE = "_kernelworks_site"  # the local variable by which rewritten code finds what it is to call
MARK = "kernelworks: the site of rewritten calls"
LOOK_ROUND = frozenset({"locals", "vars", "dir", "eval", "exec", "globals", "_getframe", "currentframe"})
GENERATOR_FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
Rewrite = Callable[[ast.FunctionDef, str, CodeType], bool]  # of a definition, whose first argument has this name


def methods_of(module: nn.Module) -> Iterator[tuple[str, FunctionType]]:
    """The plain methods of a module's class, each as the instance has it."""
    seen: set[str] = set()
    for cls in type(module).__mro__:
        if cls is nn.Module:
            return
        for name, value in vars(cls).items():
            if name not in seen and isinstance(value, FunctionType) and not name.startswith("__"):
                yield name, value
            seen.add(name)


def fits(function: FunctionType) -> bool:
    """Whether nothing else sees its local variables, and its source is what runs."""
    code = function.__code__
    names = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}
    if code.co_flags & GENERATOR_FLAGS or not code.co_argcount or SITE in names or LOOK_ROUND & names:
        return False
    return definition(code) is not None


def rewritten(function: FunctionType, rewrite: Rewrite, begin: str = "") -> CodeType | None:
    """Its code after ``rewrite``, or None if that finds nothing. ``begin``: the method of the site that a call
    begins with, whose result is the site from then on."""
    if not fits(function):
        return None
    code = function.__code__
    tree = copy.deepcopy(parse_file(code.co_filename))
    node = definition(code, tree)
    assert tree is not None and node is not None
    owner = code.co_varnames[0]
    if owner in code.co_cellvars or any(_stores(each, owner) for each in ast.walk(node)):
        return None
    if not rewrite(node, owner, code):
        return None
    at = 1 if ast.get_docstring(node) is not None else 0
    site: ast.expr = ast.Name(SITE, ast.Load())
    lines: list[ast.stmt] = [ast.Assign([ast.Name(SITE, ast.Store())], ast.Constant(MARK))]
    if begin:
        made = ast.Call(ast.Attribute(site, begin, ast.Load()), [], [])
        lines.append(ast.Assign([ast.Name(SITE, ast.Store())], made))
    where = node.body[min(at, len(node.body) - 1)]
    node.body[at:at] = [ast.copy_location(line, where) for line in lines]
    ast.fix_missing_locations(tree)
    return compile_code(tree, code)


def _stores(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)


def called_on(node: ast.AST, owner: str) -> str:
    """The attribute of ``owner`` that a call with one plain argument calls, or ""."""
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) != 1 or isinstance(node.args[0], ast.Starred):
        return ""
    function = node.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == owner:
        return function.attr
    return ""


def on_site(method: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(SITE, ast.Load()), method, ast.Load()), list(arguments), [])


def of_site(function: FunctionType, code: CodeType, site: Any) -> FunctionType:
    """The function with rewritten code, whose calls go to ``site``. torch's compiler traces the class's method; if it
    meets this one (a forward-mode derivative, a call that it gave up), it leaves it to Python."""
    constants = tuple(site if type(each) is str and each == MARK else each for each in code.co_consts)
    made = FunctionType(
        code.replace(co_consts=constants), function.__globals__, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    made.__kwdefaults__ = function.__kwdefaults__
    return skip_dynamo(made)


def placed_in(module: nn.Module, methods: Mapping[str, tuple[Any, Callable[..., Any]]]) -> Callable[[], None]:
    """Puts functions in the place of a module's methods, each with the original; returns what takes them out. If the
    class has another method by now, that one runs."""
    entries = InstalledAttributes(module)
    for name, (plain, ours) in methods.items():
        entries.set(name, MethodType(_guarded(name, plain, ours), module))
    return entries.remove


def _guarded(name: str, plain: Any, ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        current = getattr(type(self), name)
        if torch.compiler.is_compiling() or current is not plain:
            return current(self, *args, **kwargs)
        return ours(self, *args, **kwargs)

    return method
