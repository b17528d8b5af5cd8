"""``silu(a) * b`` in a function that a user wrote, made one call of the fused op.

The function's source is parsed, the products are rewritten, and the result compiled in its place. That is done only
where compiling the source as it is gives the function's own bytecode, so what was parsed is what runs.

Fusing moves the activation behind the evaluation of the other factor. Nobody can tell where either nobody else holds
the gate (it came from a plain linear layer just now) or the other factor's evaluation does nothing but compute (a name,
or plain linear layers of names). That is looked up at each call, since hooks come and go; where it is not so, the
activation is computed before the other factor, as it was written.
"""

from __future__ import annotations

import ast
import copy
import types
from typing import Any

import torch.nn.functional as F
import torch.nn.modules.module as torch_module
from torch import Tensor, nn

from kernelworks.models import calls
from kernelworks.models.identify import prove
from kernelworks.models.shipped import FORWARDS, TORCHS, forward_of
from kernelworks.models.sources import compiled, definition, parsed
from kernelworks.models.torch_modules import linear_forward
from kernelworks.plain import PLAIN

__all__ = ["GATES", "USES", "hooked", "is_silu", "learn_silu", "with_fused_gates"]

USES = (calls.SILU_MUL.name,)
_silu = TORCHS["silu"]
_LINEAR, _SILU = FORWARDS[nn.Linear], FORWARDS[nn.SiLU]
_GLOBAL_HOOKS = (
    torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks, torch_module._global_backward_pre_hooks,
)  # fmt: skip
_SILUS: tuple[Any, ...] = ()  # forwards of other classes that are proved to be SiLU

Begun = tuple[bool, Any]  # whether the activation is still to be computed, and of what; or else its value


def gate_begin(activation: Any, gate: Any, source: Any, parts: tuple[Any, ...] | None) -> Begun:
    """``activation(gate)``, put off where it may be computed together with the product.

    ``source`` is the module that just returned ``gate``, or None. ``parts`` are the modules that the other factor calls
    and what it calls them with, or None where its evaluation may be anything.
    """
    fusible = type(gate) in PLAIN and gate.is_floating_point() and is_silu(activation)
    if fusible and ((source is not None and _computes(source)) or (parts is not None and all(map(_computes, parts)))):
        return True, gate
    return False, activation(gate)


def gate_finish(begun: Begun, up: Any) -> Any:
    """``activation(gate) * up``."""
    put_off, gate = begun
    if not put_off:
        return gate * up
    return calls.silu_mul(gate, up) if isinstance(up, Tensor) else _silu(gate) * up


def gate_after(up: Any, activation: Any, gate: Any) -> Any:
    """``up * activation(gate)``: as written, the activation comes after the other factor."""
    if type(gate) in PLAIN and isinstance(up, Tensor) and is_silu(activation):
        return calls.mul_silu(up, gate)
    return up * activation(gate)


GATES = {f.__name__: f for f in (gate_begin, gate_finish, gate_after)}  # by the globals that rewritten code calls


def _computes(part: Any) -> bool:
    """Whether calling a module, or passing a tensor to one, computes and does nothing else: a plain linear layer."""
    if type(part) in PLAIN:
        return True
    if not isinstance(part, nn.Module) or forward_of(part) is not _LINEAR or hooked(part):
        return False
    own = part.__dict__.get("forward")
    if own is not None and getattr(own, "__func__", None) is not linear_forward:
        return False
    return "weight" in part._parameters and "bias" in part._parameters and type(part._parameters["weight"]) in PLAIN


def is_silu(activation: Any) -> bool:
    """Whether calling ``activation`` is SiLU and nothing else: no hook watches it, it does not write into its argument,
    and nobody replaced it or its forward."""
    if activation is _silu:
        return True
    if not isinstance(activation, nn.Module) or hooked(activation) or "forward" in activation.__dict__:
        return False
    forward = forward_of(activation)
    if forward is _SILU:
        return not activation.inplace and F.silu is _silu
    return any(forward is known for known in _SILUS) and F.silu is _silu


def learn_silu(activation: nn.Module) -> None:
    """Remembers the forward of an activation's class if it is proved to be SiLU of its argument and nothing else."""
    global _SILUS
    forward = forward_of(activation)
    if any(forward is known for known in _SILUS):
        return
    proof = prove(activation)
    if proof is not None and proof.kind == "silu" and proof.unconditional:
        _SILUS = (*_SILUS, forward)


def hooked(module: nn.Module) -> bool:
    """Whether somebody watches a module's calls, so that it must be called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or any(_GLOBAL_HOOKS)
        or type(module).__call__ is not nn.Module.__call__
    )


class _Fuse(ast.NodeTransformer):
    """Rewrites products with an activation: ``F.silu(a) * b`` and ``self.act(a) * b``, either way round."""

    def __init__(self, function: types.FunctionType, own: frozenset[str]) -> None:
        self.function, self.own = function, own
        self.owner = function.__code__.co_varnames[0] if function.__code__.co_argcount else ""
        self.found = 0

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Mult):
            return node
        left, right = node.left, node.right
        if isinstance(left, ast.Call) and self._activates(left):
            gate = left.args[0]
            source = gate.func if isinstance(gate, ast.Call) and self._part(gate.func) else ast.Constant(None)
            parts = self._parts(right)
            found = ast.Constant(None) if parts is None else ast.Tuple(parts, ast.Load())
            begun = _call(gate_begin, left.func, gate, copy.deepcopy(source), found)
            made = _call(gate_finish, begun, right)
        elif isinstance(right, ast.Call) and self._activates(right):
            made = _call(gate_after, left, right.func, right.args[0])
        else:
            return node
        self.found += 1
        return ast.fix_missing_locations(ast.copy_location(made, node))

    def _part(self, node: ast.AST) -> bool:
        """Whether an expression is an attribute of ``self``."""
        return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self.owner

    def _parts(self, node: ast.AST) -> list[ast.expr] | None:
        """The modules that an expression calls and the names that it hands to them; None where it does anything else
        than calling attributes of ``self`` with names."""
        if isinstance(node, (ast.Name, ast.Constant)):
            return []
        if not isinstance(node, ast.Call) or node.keywords or not self._part(node.func):
            return None
        found: list[ast.expr] = [copy.deepcopy(node.func)]
        for argument in node.args:
            inner = self._parts(argument)
            if inner is None:
                return None
            found += [copy.deepcopy(argument)] if isinstance(argument, ast.Name) else inner
        return found

    def _activates(self, call: ast.Call) -> bool:
        if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
            return False
        function = call.func
        if isinstance(function, ast.Attribute) and self._part(function):
            return function.attr in self.own
        return self._value(function) is _silu

    def _value(self, node: ast.AST) -> Any:
        """What a dotted global name stands for, or None."""
        if isinstance(node, ast.Name):
            local = node.id in self.function.__code__.co_varnames
            return None if local else self.function.__globals__.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._value(node.value), node.attr, None)
        return None


def _call(function: Any, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(function.__name__, ast.Load()), list(arguments), [])


def with_fused_gates(function: types.FunctionType, own: frozenset[str]) -> types.CodeType | None:
    """The code of ``function`` with its gates fused, or None where there is none, or its source is not what runs.

    ``own`` are the names of attributes of ``self`` that are SiLU modules.
    """
    code = function.__code__
    names = set(code.co_names)
    if not ("silu" in names or own & names):
        return None
    if definition(code) is None:
        return None
    tree = copy.deepcopy(parsed(code.co_filename))
    node = definition(code, tree)
    assert tree is not None and node is not None
    fuse = _Fuse(function, own)
    node.body = [fuse.visit(statement) for statement in node.body]
    return compiled(tree, code) if fuse.found else None
