"""A call of which one pass is an op's kernel and the other is inductor's, fused with its neighbours.

AOTAutograd traces through it: the joint graph of a training step then holds the operator of the one pass, and for the
other what the op is in torch's own functions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernelworks.dispatch.choose import OR_TORCH
from kernelworks.dispatch.mutation import as_tuple
from kernelworks.dispatch.op import OPS, Op

__all__ = ["INDUCTOR", "backward_args", "in_halves", "kernels_of"]

INDUCTOR = "inductor"


def kernels_of(way: str) -> tuple[str, ...]:
    """The names of the kernels in a way."""
    return tuple(name for name in way.removesuffix(OR_TORCH).split("+") if name != INDUCTOR)


def in_halves(name: str, way: str, *args: Any) -> Tensor:
    """The first result of an op whose ``way``, a kernel for the forward and one for the backward, names inductor for
    one of them."""
    made: Tensor = _Halves.apply(name, way, *args)  # type: ignore[no-untyped-call]
    return made


def backward_args(
    op: Op, args: tuple[Any, ...], outputs: tuple[Any, ...], flow: Tensor, wanted: tuple[str, ...]
) -> tuple[Any, ...]:
    """The arguments of an op's backward after a call whose first result alone is read."""
    backward = op.passes["backward"]
    have = dict(zip(op.passes["forward"].names, args, strict=True))
    names = op.contract.returned_outputs
    have |= dict(zip(names, outputs, strict=False))
    have |= {f"grad_{name}": None for name in names} | {f"grad_{names[0]}": flow}
    have["needs"] = [name in wanted for name in backward.returns]
    return tuple(have[name] for name in backward.names)


class _Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, way: str, *args: Any) -> Tensor:
        op, (ahead, _) = OPS[name], way.removesuffix(OR_TORCH).split("+")
        if ahead == INDUCTOR:
            made: Tensor = as_tuple(op.composite(*args))[0]
        else:
            made = as_tuple(op._overload(*args, f"{ahead}{OR_TORCH}"))[0]
        ctx.op, ctx.way = op, way
        ctx.places = [at for at, a in enumerate((*args, made)) if isinstance(a, Tensor)]
        ctx.others = tuple(None if isinstance(a, Tensor) else a for a in args)
        ctx.save_for_backward(*(a for a in (*args, made) if isinstance(a, Tensor)))
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, flow: Tensor) -> Any:
        op, back = ctx.op, ctx.way.removesuffix(OR_TORCH).split("+")[1]
        held = [*ctx.others, None]
        for at, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            held[at] = tensor
        *args, made = held
        names = op.passes["forward"].names
        wanted = tuple(n for n, needed in zip(names, ctx.needs_input_grad[2:], strict=True) if needed)
        if back == INDUCTOR:
            found = _by_torch(op, args, flow, wanted)
        else:
            given = backward_args(op, tuple(args), (made,), flow, wanted)
            results = as_tuple(op._backward_overload(*given, f"{back}{OR_TORCH}"))
            found = dict(zip(op.passes["backward"].returns, results, strict=True))
        return None, None, *(found[n] if n in wanted else None for n in names)


def _by_torch(op: Op, args: list[Any], flow: Tensor, wanted: tuple[str, ...]) -> dict[str, Tensor]:
    """The gradients, by torch's own functions of the op's formula; what of it they need is computed again."""
    with torch.enable_grad():
        named = dict(zip(op.passes["forward"].names, args, strict=True))
        leaves = {name: named[name].detach().requires_grad_() for name in wanted}
        made = as_tuple(op.composite(*(leaves.get(name, value) for name, value in named.items())))[0]
    return dict(zip(wanted, torch.autograd.grad(made, list(leaves.values()), flow), strict=True))
