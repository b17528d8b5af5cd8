"""Ops under autograd in eager mode: one ``autograd.Function`` per op, written out for its arguments.

torch.library's own autograd costs 25 to 30 us a call in Python, more than a small kernel; calling the kernel's plan
from a function of torch's costs a third of that. It serves eager calls on plain tensors (``contract/tensors.py``). What
torch has to see goes elsewhere, in the backward too: where a derivative of the derivative is asked for, where gradients
arrive that no kernel may read, or inside a transform, the backward is ``derivative``, made of torch's own operators.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import Function

from kernelworks.contract.tensors import (
    NAMES,
    OBSERVER_CHECK,
    OTHER,
    TRACED,
    has_override_mode,
    is_observed,
    is_plain,
    is_transform_active,
    leaves,
    tensor_kind,
)
from kernelworks.dispatch.generated_code import run_generated_code
from kernelworks.dispatch.mutation import as_tuple

__all__ = ["derivative", "readers", "recipe", "recorded_forward", "shape_only", "training_forward"]

_SOURCE = """
class {name}_function(Function):
    @staticmethod
    def forward(ctx, {arguments}, kernel):
        {result} = without_bases({call})
        wanted = ctx.needs_input_grad
        ctx.save_for_backward({read})
        ctx.others = ({others}{spared}kernel,)
        {mark}
        return {result}

    @staticmethod
    def backward(ctx, {grads}):
        {saved}, = ctx.saved_tensors
        {others}{spare}kernel, = ctx.others
        {put_back}
        wanted = ctx.needs_input_grad
        needs = [{needs}]
        found = None
        if not ({watched}) and not grad_enabled():
            found = find("backward", 0, ({backward_arguments},), None, kernel)
        if found is not None:
            {gradients} = found.run({backward_arguments})
        else:
            {gradients} = miss(({backward_arguments},), kernel)
        return {returned}, None
"""


def recomputes_forward(op: Any) -> bool:
    """Whether a backward is given all tensors of the forward, with their values, so that it can be made again to be
    differentiated. Of a tensor that no gradient reads, a shape alone is kept."""
    names = op.passes["backward"].names
    return all(
        (n in names and readers(op, n)) or "Tensor" not in kind
        for n, kind in _kinds(op.passes["forward"].schema).items()
    )


def derivative(op: Any, args: tuple[Any, ...]) -> Any:
    """An op's backward in torch's own operators, differentiable again; arguments and results as the schema has them.

    The derivative of the composite at the inputs that were saved. An op whose backward does not read all its inputs
    (softmax reads its output, a linear map the other factor, a choice its indices) has a ``torch`` kernel whose
    backward is made of differentiable operators, and that runs.
    """
    forward, backward = op.passes["forward"], op.passes["backward"]
    have = dict(zip(backward.names, args, strict=True))
    again, inside = torch.is_grad_enabled(), is_transform_active()
    if not recomputes_forward(op):
        return op.kernel("torch").load("backward")(*args)
    needs = have.get("needs", [True] * len(backward.returns))
    wanted = [n for n, want in zip(backward.returns, needs, strict=True) if want]
    if not wanted:
        return _shaped(op, have, {})
    with _recording():
        # Aliases: the same tensor may be given twice, and each place has its own gradient. A view gives a dimension of
        # one element another stride, by which torch's batch_norm mistakes how its gradient lies.
        own = {
            n: torch.ops.aten.alias(have[n] if again and have[n].requires_grad else have[n].detach().requires_grad_())
            for n in wanted
        }
        given = {n: have[n] for n in forward.names if n in have}
        given |= {n: given[n].detach().clone() for n in op.contract.mutates if isinstance(given.get(n), Tensor)}
        outputs = as_tuple(op.composite(**given | own))
        flows = [have.get(f"grad_{name}") for name in op.contract.returned_outputs[: len(outputs)]]
        pairs = [(o, g) for o, g in zip(outputs, flows, strict=True) if g is not None and o.requires_grad]
        found = torch.autograd.grad(
            [o for o, _ in pairs], list(own.values()), [g.to(o.dtype) for o, g in pairs],
            create_graph=again or inside,  # inside a transform torch takes the formulas that it can differentiate
            allow_unused=True,
        )  # fmt: skip
    if inside and not again:
        found = tuple(_cut(g) for g in found)
    return _shaped(op, have, dict(zip(wanted, found, strict=True)))


_RECORDS = torch._C.DispatchKey.AutogradFunctionality


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    """With autograd at work, which is not below a mode that was shown an operator of ours."""
    below = torch._C._dispatch_tls_is_dispatch_key_excluded(_RECORDS)
    with torch.enable_grad():
        torch._C._dispatch_tls_set_dispatch_key_excluded(_RECORDS, False)
        try:
            yield
        finally:
            torch._C._dispatch_tls_set_dispatch_key_excluded(_RECORDS, below)


def _cut(gradient: Tensor | None) -> Any:
    """The gradient with its tangent, where it has one, and without what it was computed from."""
    if gradient is None or forward_ad._current_level < 0:
        return gradient if gradient is None else gradient.detach()
    primal, tangent = forward_ad.unpack_dual(gradient)
    if tangent is None:
        return primal.detach()
    return forward_ad.make_dual(primal.detach(), tangent.detach())


def _shaped(op: Any, have: dict[str, Any], found: dict[str, Tensor | None]) -> Any:
    """Gradients as the schema has them: zeros where nothing flowed, empty where none was wanted."""
    some = next(leaves(have.values()))
    made = []
    for name in op.passes["backward"].returns:
        gradient = found.get(name)
        if gradient is None:
            gradient = torch.zeros_like(have[name]) if name in found else some.new_empty(0)
        made.append(gradient)
    return tuple(made) if len(made) > 1 else made[0]


def _unusual(op: Any, args: tuple[Any, ...], kernel: str | None) -> Any:
    """A backward that no plan was found for: one not met before, or one that no kernel may serve."""
    kinds = {tensor_kind(t) for t in leaves(args)}
    if torch.is_grad_enabled() or is_transform_active() or OTHER in kinds or has_override_mode():
        return derivative(op, args)
    if is_observed() or TRACED in kinds:
        return op._backward_overload(*args, kernel)
    return op.run("backward", args, None, kernel)


def recorded_forward(op: Any, kernel: str | None, *args: Any) -> Any:
    """A forward of the op that autograd records, in eager mode on plain tensors; returns what kernels return."""
    return _differentiated(op)(*args, kernel)


@functools.cache
def _differentiated(op: Any) -> Callable[..., Any]:
    apply: Callable[..., Any] = _function(op).apply
    from_torch, to_record = op._from_torch, op._to_record
    if from_torch is None or not _outputs_wanted(op):
        return apply

    def call(*args: Any) -> Any:
        given, kernel = args[:-1], args[-1]
        return from_torch(apply(*(to_record(*given) if to_record else given), kernel), *given)

    return call


def training_forward(op: Any, training: Any, resumed: Any, kernel: str | None, *args: Any) -> Any:
    """A forward of the op that makes its gradients too, by a kernel's passes ``training`` and ``resumed``."""
    return cast(Any, _Trained).apply(op, training, resumed, kernel, *args)


class _Trained(Function):
    """A kernel's forward that makes the gradients too, for a 1 that flows in, while what it read is still at hand.

    A graph that is walked again, or differentiated again, takes the op's ordinary backward: what was kept is given
    away at the last walk, so that it becomes a leaf's gradient without a copy.
    """

    @staticmethod
    def forward(ctx: Any, op: Any, training: Any, resumed: Any, kernel: str | None, *args: Any) -> Any:
        wanted = dict(zip(op.passes["forward"].names, ctx.needs_input_grad[4:], strict=True))
        result, ctx.kept = training(*args, needs=[wanted[n] for n in op.passes["backward"].returns])
        ctx.op, ctx.resumed, ctx.kernel = op, resumed, kernel
        ctx.save_for_backward(*(a for a in args if isinstance(a, Tensor)))
        ctx.others = [None if isinstance(a, Tensor) else (a,) for a in args]
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        saved, op = iter(ctx.saved_tensors), ctx.op  # raises where the graph was walked before and not retained
        keeps = torch._C._autograd._get_current_graph_task_keep_graph()
        if keeps or torch.is_grad_enabled() or is_transform_active() or not is_plain(grad):
            names, backward = op.passes["forward"].names, op.passes["backward"]
            have = dict(zip(names, (next(saved) if a is None else a[0] for a in ctx.others), strict=True))
            wanted = dict(zip(names, ctx.needs_input_grad[4:], strict=True))
            have |= {f"grad_{op.contract.returned_outputs[0]}": grad, "needs": [wanted[n] for n in backward.returns]}
            found = op._backward_overload(*(have[n] for n in backward.names), ctx.kernel)
        else:
            kept, ctx.kept = ctx.kept, None
            found = ctx.resumed(kept, grad)
        made = dict(zip(op.passes["backward"].returns, found if isinstance(found, tuple) else (found,), strict=True))
        gradients = zip(op.passes["forward"].names, ctx.needs_input_grad[4:], strict=True)
        return (None, None, None, None, *(made.get(name) if want else None for name, want in gradients))


def _kinds(schema: str) -> dict[str, str]:
    return {a.name: str(a.type) for a in torch._C.parse_schema(schema).arguments if a.name != "op_kernel"}


def without_bases(result: Any) -> Any:
    """What a forward returns, with no output a view, as torch's kernels may make one: a view that a Function returns
    may not be written in place. ``native/node.hpp`` does the same."""
    if isinstance(result, tuple):
        return tuple(map(without_bases, result))
    return result.data if isinstance(result, Tensor) and result._is_view() else result


def _outputs_wanted(op: Any) -> list[str]:
    """The outputs of the forward that the backward reads."""
    return [n for n in op.contract.returned_outputs if n in op.passes["backward"].names]


def _function(op: Any) -> type[Function]:
    forward, backward = _kinds(op.passes["forward"].schema), _kinds(op.passes["backward"].schema)
    names, outputs, returns = list(forward), op.contract.returned_outputs, op.passes["backward"].returns
    wanted = _outputs_wanted(op)
    saved = [n for n in backward if n in wanted or "Tensor" in forward.get(n, "")]
    kept = [n for n in backward if n in forward and n not in saved]
    fixed = [n for n in outputs if f"grad_{n}" not in backward]
    call = f"call({', '.join(names)}, None, kernel)"
    if wanted and op._to_torch:  # every output, empty where the call did not ask for it, as the schema has them
        call = f"to_torch({call}, {', '.join(names)})"
    read = {n: " or ".join(f"wanted[{names.index(g)}]" for g in readers(op, n)) for n in saved if n in forward}
    unread = op.passes["backward"].unread
    partly = [n for n in read if len(readers(op, n)) < len(returns) or n in unread]  # no gradient wanted may need it
    keeps = {n: f"not {unread[n]}" if n in unread and read[n] else bool(read[n]) for n in partly}
    read |= {n: f"not {unread[n]} and ({read[n]})" for n in partly if n in unread and read[n]}
    source = _SOURCE.format(
        name=op.name,
        arguments=", ".join(names),
        result=", ".join(outputs) if wanted else "result",
        call=call,
        saved=", ".join(saved),
        read=", ".join(f"{n} if {read[n] or False} else None" if n in partly else n for n in saved),
        spared="".join(f"None if {read[n] or False} else spared({n}, {keeps[n]}), " for n in partly),
        spare="".join(f"spare_{n}, " for n in partly),
        put_back="; ".join(f"{n} = spare_{n} if {n} is None else {n}" for n in partly),
        others="".join(f"{n}, " for n in kept),
        mark=f"ctx.mark_non_differentiable({', '.join(fixed)})" if wanted and fixed else "",
        grads=", ".join(f"grad_{n}=None" for n in outputs),
        needs=", ".join(f"wanted[{names.index(n)}]" for n in returns),
        watched=OBSERVER_CHECK,
        gradients=", ".join(f"d_{n}" for n in returns),
        backward_arguments=", ".join(backward),
        returned=", ".join(f"d_{n} if wanted[{i}] else None" if n in returns else "None" for i, n in enumerate(names)),
    )
    scope: dict[str, Any] = NAMES | {
        "Function": Function,
        "call": op.call,
        "find": op.plans.find,
        "grad_enabled": torch.is_grad_enabled,
        "miss": functools.partial(_unusual, op),
        "spared": shape_only,
        "to_torch": op._to_torch,
        "without_bases": without_bases,
    }
    run_generated_code(source, scope, f"autograd of {op.name}")
    function: type[Function] = scope[f"{op.name}_function"]
    return function


def recipe(op: Any) -> tuple[Any, ...]:
    """How C++ records the op, as ``native.Recipe`` takes it behind the entry: its node does what ``_function``'s does.

    Of each argument of the backward, where it comes from: a gradient of an output (0; and whether it may be None), an
    input (1; which gradients depend on its value, a bit each, and the argument with which none does, or -1), an output
    (2), another argument (3), the needs (4).
    """
    forward, backward = _kinds(op.passes["forward"].schema), _kinds(op.passes["backward"].schema)
    names, outputs, returns = list(forward), op.contract.returned_outputs, op.passes["backward"].returns
    unread, sources = op.passes["backward"].unread, []
    for name, kind in backward.items():
        if name.startswith("grad_"):
            sources.append((0, outputs.index(name.removeprefix("grad_")), kind != "Tensor", 0, -1))
        elif name == "needs":
            sources.append((4, 0, False, 0, -1))
        elif name in outputs:
            sources.append((2, outputs.index(name), False, 0, -1))
        elif "Tensor" in forward[name]:
            bits = sum(1 << i for i, gradient in enumerate(returns) if gradient in readers(op, name))
            sources.append((1, names.index(name), False, bits, names.index(unread[name]) if name in unread else -1))
        else:
            sources.append((3, names.index(name), False, 0, -1))
    whole = bool(_outputs_wanted(op))
    return (
        f"{op.name}_functionBackward", op._to_record if whole else None, op._to_torch if whole else None,
        op._from_torch if whole else None, functools.partial(_unusual, op), tuple(sources),
        tuple(names.index(n) for n in returns), tuple(f"grad_{n}" in backward for n in outputs),
    )  # fmt: skip


def readers(op: Any, name: str, given: Mapping[str, Any] | None = None) -> list[str]:
    """The inputs whose gradients depend on the value of one of the tensors that a backward is given; ``given``: in a
    call with these arguments."""
    backward = op.passes["backward"]
    if given is not None and given.get(backward.unread.get(name, ""), False) is True:
        return []
    return [g for g in backward.returns if name in backward.reads.get(g, (name,))]


def shape_only(tensor: Tensor | None, read: bool = True) -> Tensor | None:
    """A tensor that no gradient which is wanted depends on: it says a shape, and may be written before the backward.
    Where no gradient at all has ``read`` it, its memory is not kept."""
    if tensor is None:
        return None
    shape = tensor.detach() if read else tensor.detach().new_empty(()).expand(tensor.shape)
    return shape.requires_grad_(tensor.requires_grad)
