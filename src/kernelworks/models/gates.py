"""``silu(a) * b`` in a function that a user wrote, made one call of the fused op.

The function's source is parsed, the products are rewritten, and the result compiled in its place. That is done only
where compiling the source as it is gives the function's own bytecode, so what was parsed is what runs.
"""

from __future__ import annotations

import ast
import copy
import functools
import linecache
import types
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from kernelworks.models import calls

__all__ = ["GATE", "equal_code", "gate_mul", "is_silu", "with_fused_gates"]

GATE = "gate_mul"  # the global that rewritten code calls, under the rebinder's prefix


def gate_mul(activation: Any, gate: Any, up: Any, gate_first: bool) -> Any:
    """``activation(gate) * up``, or ``up * activation(gate)``: the fused op where the activation is SiLU."""
    if isinstance(gate, Tensor) and isinstance(up, Tensor) and is_silu(activation):
        return calls.silu_mul(gate, up)
    return activation(gate) * up if gate_first else up * activation(gate)


def is_silu(activation: Any) -> bool:
    """Whether calling ``activation`` is SiLU and nothing else: no hook watches it, nobody replaced its forward."""
    if activation is F.silu:
        return True
    if not isinstance(activation, nn.Module) or hooked(activation) or "forward" in activation.__dict__:
        return False
    return type(activation).forward is nn.SiLU.forward or type(activation).__name__ == "SiLUActivation"


def hooked(module: nn.Module) -> bool:
    """Whether somebody watches a module's calls, so that it must be called."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


class _Fuse(ast.NodeTransformer):
    """Rewrites products with an activation: ``F.silu(a) * b`` and ``self.act(a) * b``, either way round."""

    def __init__(self, function: types.FunctionType, own: frozenset[str]) -> None:
        self.function, self.own = function, own
        self.owner = function.__code__.co_varnames[0] if function.__code__.co_argcount else ""
        self.found = 0

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult) and not _writes(node):
            for call, other, first in ((node.left, node.right, True), (node.right, node.left, False)):
                if isinstance(call, ast.Call) and self._activates(call):
                    self.found += 1
                    arguments = [call.func, call.args[0], other, ast.Constant(first)]
                    name = ast.Name(GATE, ast.Load())
                    return ast.fix_missing_locations(ast.copy_location(ast.Call(name, arguments, []), node))
        return node

    def _activates(self, call: ast.Call) -> bool:
        if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
            return False
        function = call.func
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == self.owner
        ):
            return function.attr in self.own
        return self._value(function) is F.silu

    def _value(self, node: ast.AST) -> Any:
        """What a dotted global name stands for, or None."""
        if isinstance(node, ast.Name):
            local = node.id in self.function.__code__.co_varnames
            return None if local else self.function.__globals__.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._value(node.value), node.attr, None)
        return None


def _writes(node: ast.AST) -> bool:
    """Whether a method named like torch's in-place ones, or an assignment, stands in an expression: then the order
    of evaluation matters, and the product stays as it is."""
    return any(
        isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom))
        or (isinstance(n, ast.Attribute) and n.attr.endswith("_") and not n.attr.endswith("__"))
        for n in ast.walk(node)
    )


def with_fused_gates(function: types.FunctionType, own: frozenset[str]) -> types.CodeType | None:
    """The code of ``function`` with its gates fused, or None where there is none, or its source is not what runs.

    ``own`` are the names of attributes of ``self`` that are SiLU modules.
    """
    code = function.__code__
    names = set(code.co_names)
    if not ("silu" in names or own & names):
        return None
    tree = _parsed(code.co_filename)
    if tree is None or not equal_code(_compiled(tree, code), code):
        return None
    tree = copy.deepcopy(tree)
    fuse = _Fuse(function, own)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name and _first_line(node) == code.co_firstlineno:
            node.body = [fuse.visit(statement) for statement in node.body]
    return _compiled(tree, code) if fuse.found else None


@functools.cache
def _parsed(filename: str) -> ast.Module | None:
    """The syntax tree of a whole file: what a name stands for in it decides how CPython compiles a call."""
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return None


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _compiled(tree: ast.Module, wanted: types.CodeType) -> types.CodeType | None:
    """The code that compiling ``tree`` gives for the function whose code is ``wanted``."""
    queue = [compile(tree, wanted.co_filename, "exec", dont_inherit=True)]
    while queue:
        code = queue.pop()
        if code.co_qualname == wanted.co_qualname and code.co_firstlineno == wanted.co_firstlineno:
            return code
        queue += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return None


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
