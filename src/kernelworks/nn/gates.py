"""``silu(a) * b``, or any gate of ours, in a function that a user wrote, made one call of the fused op.

The op packages name the activations (``signature.Gate``): torch's functions, its modules that call one of them, and
modules that are verified to be one (``identify.py``).

The function's source is parsed, the products are rewritten, and the result is compiled in its place. That is done only
if compiling the source as it is gives the function's own bytecode, so what was parsed is what runs.

Fusing moves the activation behind the evaluation of the other factor. Nobody can tell if nobody else holds the gate (it
came from a plain linear layer just now), or if the other factor's evaluation does nothing but compute (a name, or plain
linear layers of names). Each call checks this, since hooks come and go. If neither holds, the activation is computed
before the other factor, as it was written.
"""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import torch.nn.functional as F
import torch.nn.modules.module as torch_module
from torch import nn

from kernelworks.contract.tensors import PLAIN_TYPES
from kernelworks.dispatch.signature import gates
from kernelworks.nn.functional import FUNCTIONS, GATED_FUNCTIONS
from kernelworks.nn.identify import IdentifiedForward, identify_forward
from kernelworks.nn.originals import FORWARDS, TORCH_FUNCTIONS, forward_of
from kernelworks.nn.source_code import compile_code, definition, parse_file
from kernelworks.nn.torch_modules import linear_forward, only_calls

__all__ = ["GATES", "gate_of", "has_foreign_hook", "is_hooked", "learn_gate", "with_fused_gates"]

_LINEAR = FORWARDS[nn.Linear]
_GLOBAL_HOOKS = (
    torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks, torch_module._global_backward_pre_hooks,
)  # fmt: skip
_BY_NAME = gates()
# These hold each gate with torch's function, what stands for that in a rebound forward, and how it is fused; those of
# torch's modules whose forward is a call of it; and other classes' forwards that are verified to be it. Compilers look
# through these.
_FUNCTIONS = tuple(
    (gate, TORCH_FUNCTIONS[name], FUNCTIONS.get(name, TORCH_FUNCTIONS[name]), GATED_FUNCTIONS[name])
    for name, gate in _BY_NAME.items()
)
_SHIPPED = tuple((forward, name) for forward, name in only_calls() if name in _BY_NAME)
_IDENTIFIED: tuple[tuple[Any, IdentifiedForward], ...] = ()

FusedGate = tuple[Any, tuple[str, ...]]  # how a gate is fused, and its words
PendingGate = tuple[FusedGate | None, Any]  # an activation to be computed, and of what; or else None and its value


def gate_begin(
    activation: Any, gate: Any, owner: Any, source: str, parts: tuple[str, ...] | None, given: tuple[Any, ...],
    **named: Any,
) -> PendingGate:  # fmt: skip
    """``activation(gate)``, put off if it may be computed together with the product.

    ``source`` is the module of ``owner`` that just returned ``gate``, or "". ``parts`` are those that the other factor
    calls, and ``given`` what it calls them with; None if its evaluation may be anything.
    """
    fused = gate_of(activation, **named) if type(gate) in PLAIN_TYPES and gate.is_floating_point() else None
    if fused is not None:
        other = parts is not None and all(type(value) in PLAIN_TYPES for value in given)
        if (source and _computes(owner, source)) or (other and all(_computes(owner, part) for part in parts or ())):
            return fused, gate
    return None, activation(gate, **named)


def gate_finish(begun: PendingGate, up: Any) -> Any:
    """``activation(gate) * up``."""
    put_off, gate = begun
    if put_off is None:
        return gate * up
    fused, words = put_off
    return fused(gate, up, *words)


def gate_after(up: Any, activation: Any, gate: Any, **named: Any) -> Any:
    """``up * activation(gate)``: as written, the activation comes after the other factor."""
    if type(gate) in PLAIN_TYPES and type(up) in PLAIN_TYPES and up.shape == gate.shape and up.dtype is gate.dtype:
        found = gate_of(activation, **named)
        if found is not None:
            fused, words = found
            return fused(gate, up, *words)
    return up * activation(gate, **named)


GATES = {f.__name__: f for f in (gate_begin, gate_finish, gate_after)}  # by the globals that rewritten code calls


def _computes(owner: Any, name: str) -> bool:
    """Whether calling a part of a module computes and does nothing else: a plain linear layer. Looked up where modules
    keep their parts, for what is asked for before its turn may be a property, or not be there."""
    if not isinstance(owner, nn.Module) or name in owner.__dict__ or hasattr(type(owner), name):
        return False
    part = owner._modules.get(name)
    if part is None or forward_of(part) is not _LINEAR or is_hooked(part):
        return False
    own = part.__dict__.get("forward")
    if own is not None and getattr(own, "__func__", None) is not linear_forward:
        return False
    return (
        "weight" in part._parameters and "bias" in part._parameters and type(part._parameters["weight"]) in PLAIN_TYPES
    )


def gate_of(activation: Any, **named: Any) -> FusedGate | None:
    """The gate that a call of ``activation`` begins, if it is that and nothing else: no hook watches it, it does not
    write into its argument, and nobody replaced it or its forward."""
    for gate, function, ours, fused in _FUNCTIONS:
        if activation is function or activation is ours:
            words = gate.op_words(named)
            return None if words is None else (fused, words)
    if named or not isinstance(activation, nn.Module) or is_hooked(activation) or "forward" in activation.__dict__:
        return None
    forward = forward_of(activation)
    for gate, function, _, fused in _FUNCTIONS:
        if getattr(F, gate.name) is not function:
            continue
        for known, name in _SHIPPED:
            if forward is known and name == gate.name:
                words = gate.op_words({word: getattr(activation, word) for word in gate.words})
                return None if words is None or getattr(activation, "inplace", False) else (fused, words)
        for known, identified in _IDENTIFIED:
            if forward is known and identified.kind == gate.name and identified.holds(activation):
                return fused, (identified.number,) if gate.words else ()
    return None


def learn_gate(activation: nn.Module) -> str:
    """The op whose gate a call of a module begins, or ""; remembered if its class is verified to begin it."""
    global _IDENTIFIED
    identified = identify_forward(activation)
    if identified is not None and identified.kind in _BY_NAME:
        forward = forward_of(activation)
        if not any(forward is known and identified is other for known, other in _IDENTIFIED):
            _IDENTIFIED = (*_IDENTIFIED, (forward, identified))
    found = gate_of(activation)
    return "" if found is None else next(gate.op.name for gate, *_, fused in _FUNCTIONS if fused is found[0])


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody watches a module's calls, so that it must be called. Hooks of ours (``sees_kernelworks``) look
    at what is called, and want nothing called for them."""
    if type(module).__call__ is not nn.Module.__call__:
        return True
    own: tuple[Any, ...] = (
        module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks,
    )  # fmt: skip
    return (any(own) or any(_GLOBAL_HOOKS)) and has_foreign_hook(*own, *_GLOBAL_HOOKS)


def has_foreign_hook(*hooks: Any) -> bool:
    """Whether a hook in these mappings is none of ours."""
    return any(not getattr(hook, "sees_kernelworks", False) for each in hooks for hook in each.values())


class _Fuse(ast.NodeTransformer):
    """Rewrites products with an activation: ``F.silu(a) * b`` and ``self.act(a) * b``, either way round."""

    def __init__(self, function: types.FunctionType, own: Mapping[str, str]) -> None:
        self.function, self.own = function, own
        self.owner = function.__code__.co_varnames[0] if function.__code__.co_argcount else ""
        self.found: set[str] = set()  # ops

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Mult):
            return node
        left, right = node.left, node.right
        if isinstance(left, ast.Call) and (op := self._gate(left)):
            gate, words = left.args[0], left.keywords
            source = gate.func.attr if isinstance(gate, ast.Call) and self._part(gate.func) else ""
            called = self._called(right)
            names, values = called or ([], [])
            parts = ast.Tuple([ast.Constant(name) for name in names], ast.Load()) if called else ast.Constant(None)
            given = ast.Tuple(values, ast.Load())
            owner = ast.Name(self.owner, ast.Load()) if source or names else ast.Constant(None)
            begun = _call(gate_begin, left.func, gate, owner, ast.Constant(source), parts, given, words=words)
            made = _call(gate_finish, begun, right)
        elif isinstance(right, ast.Call) and (op := self._gate(right)):
            made = _call(gate_after, left, right.func, right.args[0], words=right.keywords)
        else:
            return node
        self.found.add(op)
        return ast.fix_missing_locations(ast.copy_location(made, node))

    def _part(self, node: ast.AST) -> TypeGuard[ast.Attribute]:
        """Whether an expression is an attribute of ``self``."""
        return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self.owner

    def _called(self, node: ast.AST) -> tuple[list[str], list[ast.expr]] | None:
        """The parts that an expression calls and the names that it hands to them; None where it does anything else than
        calling attributes of ``self`` with names."""
        if isinstance(node, (ast.Name, ast.Constant)):
            return [], []
        if not isinstance(node, ast.Call) or node.keywords or not self._part(node.func):
            return None
        parts, given = [node.func.attr], list[ast.expr]()
        for argument in node.args:
            inner = self._called(argument)
            if inner is None:
                return None
            parts += inner[0]
            given += [copy.deepcopy(argument)] if isinstance(argument, ast.Name) else inner[1]
        return parts, given

    def _gate(self, call: ast.Call) -> str:
        """The op whose gate a call begins, or "" ."""
        if len(call.args) != 1 or isinstance(call.args[0], ast.Starred):
            return ""
        function = call.func
        if isinstance(function, ast.Attribute) and self._part(function):
            return "" if call.keywords else self.own.get(function.attr, "")
        value = self._value(function)
        for gate, torchs, *_ in _FUNCTIONS:
            if value is torchs and all(word.arg in gate.words for word in call.keywords):
                return str(gate.op.name)
        return ""

    def _value(self, node: ast.AST) -> Any:
        """What a dotted global name stands for, or None."""
        if isinstance(node, ast.Name):
            local = node.id in self.function.__code__.co_varnames
            return None if local else self.function.__globals__.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._value(node.value), node.attr, None)
        return None


def _call(function: Any, *arguments: ast.expr, words: Sequence[ast.keyword] = ()) -> ast.Call:
    return ast.Call(ast.Name(function.__name__, ast.Load()), list(arguments), list(words))


def with_fused_gates(
    function: types.FunctionType, own: Mapping[str, str]
) -> tuple[types.CodeType, set[str], set[str]] | None:
    """The code of ``function`` with its gates fused, the ops that they call and the activations that it calls no more;
    or None if there is no gate, or its source is not what runs.

    ``own`` are the attributes of ``self`` that are activations, with the op whose gate they begin.
    """
    code = function.__code__
    if not (_BY_NAME.keys() | own.keys()) & set(code.co_names):
        return None
    if definition(code) is None:
        return None
    tree = copy.deepcopy(parse_file(code.co_filename))
    node = definition(code, tree)
    assert tree is not None and node is not None
    fuse = _Fuse(function, own)
    node.body = [fuse.visit(statement) for statement in node.body]
    made = compile_code(tree, code) if fuse.found else None
    called = {ast.unparse(each.func).rpartition(".")[2] for each in ast.walk(node) if isinstance(each, ast.Call)}
    return None if made is None else (made, fuse.found, _BY_NAME.keys() - called)
