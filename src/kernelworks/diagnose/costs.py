"""The work of a call: from our contracts for our ops, from the formula table for aten's, else from what it calls."""

from __future__ import annotations

from typing import Any

import torch

from kernelworks.contract import Request, TensorSpec
from kernelworks.diagnose.aten import formula
from kernelworks.diagnose.trace import Call
from kernelworks.diagnose.work import NOTHING, Arguments, Operand, Work
from kernelworks.dispatch import OPS

__all__ = ["PRODUCTS", "work"]

# The elementary function that an op of ours spends its time on, where it is not exp.
FUNCTIONS = {"gelu": "tanh", "gelu_backward": "tanh"}

PRODUCTS = ("linear", "attention")

# Without anything to do they hand their argument back and call nothing.
MAYBE_NOTHING = frozenset({
    "to", "contiguous", "reshape", "reshape_as", "type_as", "dropout", "feature_dropout", "alpha_dropout", "expand_as",
    "flatten", "atleast_1d", "atleast_2d", "atleast_3d", "requires_grad_",
})  # fmt: skip


def work(call: Call) -> Work | None:
    """The least that the call must do, or None where neither a contract nor a formula says.

    An op without a formula that is made of other ops counts as their sum; where one of those has none either, or the op
    has a kernel of its own, it is unmodelled.
    """
    if call.name.startswith("kernelworks::"):
        return _contracted(call)
    counted = formula(call.name)
    if counted is not None:
        found = _try(counted, call)
        if found is not None:
            return found
    if not _composed(call):
        return None
    if not call.children:
        return NOTHING if call.name.removeprefix("aten::") in MAYBE_NOTHING else None
    total = NOTHING
    for child in call.children:
        part = work(child)
        if part is None:
            return None
        total = total + part
    return total


def _composed(call: Call) -> bool:
    """Whether the op is nothing but calls of other ops (torch says so), so that their work is its work."""
    if not call.name.startswith("aten::"):
        return False
    call.load()
    name = f"{call.name}.{call.overload}" if call.overload else call.name
    try:
        return any(
            torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
            for key in ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
        )
    except RuntimeError:  # an op that this process does not know
        return False


def _try(counted: Any, call: Call) -> Work | None:
    try:
        found: Work | None = counted(Arguments(call))
    except (IndexError, TypeError, ValueError, AttributeError, RuntimeError):
        return None  # arguments of another form than the formula knows: what the op calls may still be known
    return found


def _contracted(call: Call) -> Work | None:
    name = call.name.removeprefix("kernelworks::")
    pass_ = "backward" if name.endswith("_backward") else "forward"
    op = OPS.get(name.removesuffix("_backward"))
    if op is None or pass_ not in op.passes:
        return None
    try:
        args = dict(zip(op.passes[pass_].names, _specs(call, op.passes[pass_].schema), strict=False))
        cost = op.contract.cost(Request(op.name, pass_, args, torch.get_num_threads()))
        request = Request(op.name, pass_, args)
        dtype = str(request.dtype).removeprefix("torch.") if op.name in PRODUCTS else "float32"
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None
    function = FUNCTIONS.get(name, "exp")
    return Work(cost.flop, cost.transcendental, cost.bytes_read, cost.bytes_written, dtype, function)


def _specs(call: Call, schema: str) -> list[Any]:
    """The arguments as a contract's cost wants them. Strings are not recorded by the profiler: their default stands."""
    arguments = torch._C.parse_schema(schema).arguments
    specs: list[Any] = []
    for item, argument in zip(Arguments(call).items, arguments, strict=False):
        if isinstance(item, Operand):
            specs.append(_spec(item))
        elif isinstance(item, list) and item and isinstance(item[0], Operand):
            specs.append(tuple(_spec(o) for o in item))
        elif item is None and argument.has_default_value():
            specs.append(argument.default_value)
        else:
            specs.append(item)
    return specs


def _spec(operand: Operand) -> TensorSpec:
    return TensorSpec(operand.shape, operand.dtype, operand.stride, "cpu")
