"""Ops under autograd in eager mode: one ``autograd.Function`` per op, written out for its arguments.

torch.library's own autograd costs 25 to 30 us a call in Python, more than a small kernel; calling the row's plan from
a function of torch's costs a third of that. It serves eager calls on plain tensors. What torch has to see (a compiler,
modes, transforms, a profiler, tensor subclasses) goes through torch.library. There is no second derivative: asking for
one raises, since a gradient that silently misses a term would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import Function

__all__ = ["PLAIN", "TENSOR_KEY", "differentiated"]

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))

# A tensor in the key of a plan: its class, dtype, shape, strides and device, so a plan is never met by a call that it
# was not made for.
TENSOR_KEY = "{0}.__class__, {0}.dtype, {0}.shape, {0}.is_contiguous() or {0}.stride(), {0}.get_device()"

_SOURCE = """
class {name}_function(Function):
    @staticmethod
    def forward(ctx, {arguments}, row):
        {result} = {call}
        ctx.save_for_backward({saved})
        ctx.others = ({others}row,)
        {mark}
        return {result}

    @staticmethod
    def backward(ctx, {grads}):
        {saved}, = ctx.saved_tensors
        {others}row, = ctx.others
        if grad_enabled():
            raise RuntimeError("kernelworks.{name} has no second derivative, which create_graph=True asks for")
        wanted = ctx.needs_input_grad
        needs = [{needs}]
        key = ("backward", {key}, row, get_threads())
        plan = plans.get(key)
        if plan is None:
            plan = make_plan("backward", ({backward_arguments},), None, row, key)
        {gradients} = plan({backward_arguments})
        return {returned}, None
"""


def differentiated(op: Any) -> Callable[..., Any]:
    """The op as ``f(*args, row)`` that autograd records, for eager calls on plain tensors; returns what rows return."""
    recorded, trained = _recorded(op), cast(Any, _Trained).apply
    if not any("training" in row.passes for row in op.rows):
        return recorded

    def call(*args: Any) -> Any:
        trains = op.trains(args[:-1], args[-1])
        return recorded(*args) if trains is None else trained(op, *trains, args[-1], *args[:-1])

    return call


class _Trained(Function):
    """A row's forward that makes the gradients too, for a 1 that flows in, while what it read is still at hand.

    A graph that is walked again, or differentiated again, takes the op's ordinary backward: what was kept is given
    away at the last walk, so that it becomes a leaf's gradient without a copy.
    """

    @staticmethod
    def forward(ctx: Any, op: Any, training: Any, resumed: Any, row: str | None, *args: Any) -> Any:
        wanted = dict(zip(op.passes["forward"].names, ctx.needs_input_grad[4:], strict=True))
        result, ctx.kept = training(*args, needs=[wanted[n] for n in op.passes["backward"].returns])
        ctx.op, ctx.resumed, ctx.row = op, resumed, row
        ctx.save_for_backward(*(a for a in args if isinstance(a, Tensor)))
        ctx.others = [None if isinstance(a, Tensor) else (a,) for a in args]
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        saved, op = iter(ctx.saved_tensors), ctx.op  # raises where the graph was walked before and not retained
        if torch.is_grad_enabled() or torch._C._autograd._get_current_graph_task_keep_graph():
            names, backward = op.passes["forward"].names, op.passes["backward"]
            have = dict(zip(names, (next(saved) if a is None else a[0] for a in ctx.others), strict=True))
            wanted = dict(zip(names, ctx.needs_input_grad[4:], strict=True))
            have |= {f"grad_{op.contract.outputs[0]}": grad, "needs": [wanted[n] for n in backward.returns]}
            found = op._backward_overload(*(have[n] for n in backward.names), ctx.row)
        else:
            kept, ctx.kept = ctx.kept, None
            found = ctx.resumed(kept, grad)
        made = dict(zip(op.passes["backward"].returns, found if isinstance(found, tuple) else (found,), strict=True))
        gradients = zip(op.passes["forward"].names, ctx.needs_input_grad[4:], strict=True)
        return (None, None, None, None, *(made.get(name) if want else None for name, want in gradients))


def _recorded(op: Any) -> Callable[..., Any]:
    apply: Callable[..., Any] = _function(op).apply
    from_torch = op._from_torch
    if from_torch is None or not _outputs_wanted(op):
        return apply

    def call(*args: Any) -> Any:
        return from_torch(apply(*args), *args[:-1])

    return call


def _kinds(schema: str) -> dict[str, str]:
    return {a.name: str(a.type) for a in torch._C.parse_schema(schema).arguments if a.name != "row"}


def _outputs_wanted(op: Any) -> list[str]:
    """The outputs of the forward that the backward reads."""
    return [n for n in op.contract.outputs if n in op.passes["backward"].names]


def _function(op: Any) -> type[Function]:
    forward, backward = _kinds(op.passes["forward"].schema), _kinds(op.passes["backward"].schema)
    names, outputs, returns = list(forward), op.contract.outputs, op.passes["backward"].returns
    wanted = _outputs_wanted(op)
    saved = [n for n in backward if n in wanted or "Tensor" in forward.get(n, "")]
    kept = [n for n in backward if n in forward and n not in saved]
    fixed = [n for n in outputs if f"grad_{n}" not in backward]
    call = f"call({', '.join(names)}, None, row)"
    if wanted and op._to_torch:  # every output, empty where the call did not ask for it, as the schema has them
        call = f"to_torch({call}, {', '.join(names)})"
    source = _SOURCE.format(
        name=op.name,
        arguments=", ".join(names),
        result=", ".join(outputs) if wanted else "result",
        call=call,
        saved=", ".join(saved),
        others="".join(f"{n}, " for n in kept),
        mark=f"ctx.mark_non_differentiable({', '.join(fixed)})" if wanted and fixed else "",
        grads=", ".join(f"grad_{n}=None" for n in outputs),
        needs=", ".join(f"wanted[{names.index(n)}]" for n in returns),
        gradients=", ".join(f"d_{n}" for n in returns),
        backward_arguments=", ".join(backward),
        key=", ".join(_key_part(name, kind) for name, kind in backward.items()),
        returned=", ".join(f"d_{n} if wanted[{i}] else None" if n in returns else "None" for i, n in enumerate(names)),
    )
    scope: dict[str, Any] = {
        "Function": Function,
        "call": op.call,
        "get_threads": torch.get_num_threads,
        "grad_enabled": torch.is_grad_enabled,
        "make_plan": op._plan,
        "plans": op._plans,
        "to_torch": op._to_torch,
    }
    exec(source, scope)
    function: type[Function] = scope[f"{op.name}_function"]
    return function


def _key_part(name: str, kind: str) -> str:
    if kind.startswith("List"):
        return f"tuple({name})"
    tensor = TENSOR_KEY.format(name)
    return {"Tensor": tensor, "Optional[Tensor]": f"None if {name} is None else ({tensor})"}.get(kind, name)
