"""Ops as torch knows them: operators of torch.library, seen by compilers, modes and profilers.

Transforms of torch.func and forward-mode AD that meet such an operator (in a program that was compiled, say) get the
op's composite in its place, and so does a derivative of its derivative.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._library.autograd import Info, make_autograd_impl

from kernelworks.contract.tensors import is_plain, is_transform_active, leaves, skip_dynamo
from kernelworks.dispatch.autograd import derivative, readers, shape_only
from kernelworks.dispatch.flop_counter import register_with_counters
from kernelworks.dispatch.mutation import as_tuple, overlap
from kernelworks.dispatch.registry import OpPackageMap
from kernelworks.dispatch.torch_import import call_pending

if TYPE_CHECKING:
    from kernelworks.dispatch.op import Op

__all__ = ["OPS", "define", "in_cpp", "register"]

OPS: OpPackageMap[Op] = OpPackageMap()

_defined: dict[str, tuple[Any, dict[str, str]]] = {}  # by op: what keeps the definitions, and the schemas of its passes


def define(name: str, schemas: Mapping[str, str]) -> None:
    """Has torch know an op's operators: what they do on tensors, on tensors without data, and under autograd. The op is
    loaded when one of them is first called. Where they are known by these schemas already, nothing changes."""
    if name in _defined:
        before, known = _defined[name]
        if known == schemas:
            return
        before._destroy()
    library: Any = torch.library.Library("kernelworks", "FRAGMENT")
    _defined[name] = library, dict(schemas)
    for pass_, schema in schemas.items():
        operator = _operator(name, pass_)
        library.define(schema)
        library.impl(operator, functools.partial(_implementation, name, pass_), "CompositeExplicitAutograd")
        torch.library.register_fake(f"kernelworks::{operator}", functools.partial(_fake, name, pass_), lib=library)
        whole = functools.partial(_composed if pass_ == "forward" else _derived, name)
        library.impl(operator, whole, "FuncTorchBatchedDecomposition")
        if "backward" in schemas:
            library.impl(operator, functools.partial(_recording(pass_), name), "Autograd", with_keyset=True)


def _operator(name: str, pass_: str) -> str:
    return name if pass_ == "forward" else f"{name}_{pass_}"


def _recording(pass_: str) -> Callable[..., Any]:
    return _autograd if pass_ == "forward" else _backward_autograd


def in_cpp(op: Any, module: Any, table: Any) -> list[Any]:
    """An op's operators as C++ calls them on a CPU, as long as these objects live; what C++ finds no plan for in
    ``table`` goes to the kernels here. Empty for an op that C++ has no keys for: one that writes what it is given, or
    whose plans do not depend on a number."""
    if op.contract.mutates or any(definition.free for definition in op.passes.values()):
        return []
    found = []
    for pass_ in op.passes:
        kernel = functools.partial(_implementation, op.name, pass_)
        recorded = functools.partial(_recorded_again, _recording(pass_), op.name) if "backward" in op.passes else None
        to_torch = op._to_torch if pass_ == "forward" else None
        laid = None if to_torch else functools.partial(_laid, op.name, pass_)
        found.append(module.Operator(_operator(op.name, pass_), pass_, table, _run, kernel, recorded, to_torch, laid))
    return found


@skip_dynamo
def _run(run: Callable[..., Any], *args: Any) -> Any:
    return run(*args)


@skip_dynamo
def _recorded_again(kernel: Callable[..., Any], name: str, keys: int, *args: Any) -> Any:
    return kernel(name, torch._C.DispatchKeySet.from_raw_repr(keys), *args)


def register(op: Any) -> None:
    """Defines an op's passes as operators, where its op package's schemas are not known yet, and lets it call them."""
    define(op.name, {pass_: definition.schema for pass_, definition in op.passes.items()})
    op._overload = getattr(torch.ops.kernelworks, op.name).default
    if "backward" in op.passes:
        op._backward_overload = getattr(torch.ops.kernelworks, _operator(op.name, "backward")).default
        op._record = _recorder(op)


@skip_dynamo
def _fake(name: str, pass_: str, *args: Any, op_kernel: str | None = None) -> Any:
    definition = OPS[name].passes[pass_]
    return definition.fake(*args[: len(definition.names)])  # torch passes `op_kernel` by position or by name


@skip_dynamo
def _implementation(name: str, pass_: str, *args: Any, op_kernel: str | None = None) -> Any:
    op: Any = OPS[name]
    op.entry.ensure_native()
    names = op.passes[pass_].names
    if len(args) > len(names):  # torch passes `op_kernel` by position
        args, op_kernel = args[: len(names)], args[len(names)]
    result = op.run(pass_, args, None, op_kernel)
    if pass_ == "forward" and op._to_torch:
        return op._to_torch(result, *args)
    if not all(t.is_contiguous() for t in leaves((result, args))):
        result = _laid(name, pass_, result, *args)
    if pass_ == "forward":
        return result
    return tuple(_owned(t, args) for t in result) if isinstance(result, tuple) else _owned(result, args)


@skip_dynamo
def _laid(name: str, pass_: str, result: Any, *args: Any) -> Any:
    """A result as a compiled program was told that it lies. Kernels of ours write it so; torch's functions lay out
    theirs as their inputs happen to."""
    made = as_tuple(OPS[name].passes[pass_].fake(*args))
    laid = tuple(t if t.stride() == m.stride() else m.copy_(t) for t, m in zip(as_tuple(result), made, strict=True))
    return laid if isinstance(result, tuple) else laid[0]


def _owned(result: Tensor, args: tuple[Any, ...]) -> Tensor:
    """A gradient may be a view of what flows in; what torch's operator returns may not."""
    return result.clone(memory_format=torch.contiguous_format) if overlap(result, args) else result


@skip_dynamo
def _composed(name: str, *args: Any, op_kernel: str | None = None) -> Any:
    """The forward in torch's own operators, returning what the schema says."""
    op: Any = OPS[name]
    args = args[: len(op.passes["forward"].names)]
    result = op.composite(*args)
    return op._to_torch(result, *args) if op._to_torch else result


@skip_dynamo
def _derived(name: str, *args: Any, op_kernel: str | None = None) -> Any:
    op: Any = OPS[name]
    return derivative(op, args[: len(op.passes["backward"].names)])


# ---------------------------------------------------------------- autograd


@skip_dynamo
def _autograd(name: str, keyset: Any, *args: Any, **named: Any) -> Any:
    """The forward above autograd: recorded as one operator, unless a transform has to look inside."""
    if is_transform_active():
        return _composed(name, *args)
    op: Any = OPS[name]
    register_with_counters(op)
    count = len(op.passes["forward"].names)
    given = args[:count]
    kernel = args[count] if len(args) > count else named.get("op_kernel")
    wanted = op.inputs_requiring_grad(given) if torch.is_grad_enabled() else ()
    choice = op.tuned_choice(given, wanted) if kernel is None else None
    if choice is not None:
        if choice.native:  # torch's own operators, which a compiler can fuse with their neighbours
            result = op.native(*given)
            return op._to_torch(result, *given) if op._to_torch else result
        kernel = choice.requested_kernel
    if not (wanted and op._to_record):
        return op._record(keyset, *given, kernel)
    result = op._record(keyset, *op._to_record(*given), kernel)
    return op._to_torch(op._from_torch(result, *given), *given)


@skip_dynamo
def _backward_autograd(name: str, keyset: Any, *args: Any, **named: Any) -> Any:
    """The backward above autograd: one operator, unless its own derivative is asked for."""
    if is_transform_active() or (torch.is_grad_enabled() and any(t.requires_grad for t in leaves(args))):
        return _derived(name, *args)
    # Autograd stays on below: the torch kernel's backward may differentiate for itself.
    return OPS[name]._backward_overload.redispatch(keyset & torch._C._after_autograd_keyset, *args, **named)


def _recorder(op: Any) -> Callable[..., Any]:
    info = Info(functools.partial(_backward, op), functools.partial(_setup_context, op))
    made: Callable[..., Any] = make_autograd_impl(op._overload, info)
    return made


def _setup_context(op: Any, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    forward, backward = op.passes["forward"], op.passes["backward"]
    have = dict(zip((*forward.names, "op_kernel"), inputs, strict=False))
    have |= dict(zip(op.contract.returned_outputs, as_tuple(output), strict=True))
    kept = [n for n in backward.names if n in have]
    tensors = {n: have[n] for n in kept if isinstance(have[n], Tensor)}
    wanted = dict(zip(forward.names, ctx.needs_input_grad, strict=False))
    unread = {
        n: shape_only(t, bool(readers(op, n, have)))
        for n, t in tensors.items()
        if n in wanted and is_plain(t) and not any(wanted[g] for g in readers(op, n, have))
    }
    ctx.tensor_names = [n for n in tensors if n not in unread]
    ctx.save_for_backward(*(have[n] for n in ctx.tensor_names))
    ctx.others = {n: unread.get(n, have[n]) for n in kept if n not in ctx.tensor_names}
    ctx.kernel = have.get("op_kernel")
    more = zip(op.contract.returned_outputs[1:], as_tuple(output)[1:], strict=True)
    ctx.not_asked = {f"grad_{n}" for n, o in more if op._to_torch and _stands_for_none(o)}
    ctx.absent = {n for n in forward.names if have[n] is None}
    differentiable = {n.removeprefix("grad_") for n in backward.names if n.startswith("grad_")}
    rest = [o for n, o in zip(op.contract.returned_outputs, as_tuple(output), strict=True) if n not in differentiable]
    if rest:
        ctx.mark_non_differentiable(*rest)


def _stands_for_none(output: Tensor) -> bool:
    """Whether it stands for an output that the call did not ask for (``Op``'s ``to_torch``)."""
    sizes: tuple[Any, ...] = tuple(output.shape)  # a compiler's may be no int, and is asked nothing
    return len(sizes) == 1 and isinstance(sizes[0], int) and sizes[0] == 0


def _backward(op: Any, ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    forward, backward = op.passes["forward"], op.passes["backward"]
    have: dict[str, Any] = dict(zip((f"grad_{n}" for n in op.contract.returned_outputs), grads, strict=True))
    have |= dict.fromkeys(ctx.not_asked)  # a gradient without elements is no gradient, and no kernel of ours takes one
    have |= ctx.others | dict(zip(ctx.tensor_names, ctx.saved_tensors, strict=True))
    wanted = dict(zip(forward.names, ctx.needs_input_grad, strict=False))
    have["needs"] = [bool(wanted[n]) and n not in ctx.absent for n in backward.returns]
    result = as_tuple(op._backward_overload(*(have[n] for n in backward.names), ctx.kernel))
    by_name = dict(zip(backward.returns, result, strict=True))
    gradients = [by_name.get(n) if wanted[n] and n not in ctx.absent else None for n in forward.names]
    return (*gradients, None)  # None for `kernel`


call_pending()  # all that defines operators is here now
