"""The fused loss with its gradients as one operator, for programs that a compiler traces.

In eager training the kernel of ``linear_cross_entropy`` makes the gradients together with the loss, while the logits of
a chunk are at hand. A compiled graph has a forward and a backward; as two operators they would make all logits twice, a
third more arithmetic. Here the forward returns the gradients for a 1 that flows in, and the backward scales them.
Transforms of torch.func that meet it get the loss in torch's own functions. It keeps no input, so a second derivative
is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._library.autograd import Info, make_autograd_impl

from kernelworks.contract.tensors import is_transform_active
from kernelworks.ops.reduction.linear_cross_entropy import OP

__all__ = ["loss_with_gradients"]

NAME = "linear_cross_entropy_with_gradients"
LIBRARY: Any = torch.library.Library("kernelworks", "FRAGMENT")

LossAndGradients = tuple[Tensor, Tensor, Tensor, Tensor]


def loss_with_gradients(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int) -> Tensor:
    """``linear_cross_entropy`` as a compiler should see it in training."""
    needs = [x.requires_grad, weight.requires_grad, bias is not None and bias.requires_grad]
    made: LossAndGradients = getattr(torch.ops.kernelworks, NAME).default(x, weight, target, bias, ignore_index, needs)
    return made[0]


def _run(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, needs: list[bool]
) -> LossAndGradients:
    args = (x, weight, target, bias, ignore_index)
    wanted = tuple(name for name, want in zip(OP.passes["backward"].returns, needs, strict=True) if want)
    trains = OP.training_passes(args, None, wanted)
    if trains is not None:
        training, resumed = trains
        loss, kept = training(*args, needs=needs)
        found = resumed(kept, torch.ones_like(loss))
    else:
        kernel = OP.choice(args, None, wanted).requested_kernel
        loss = OP.run("forward", args, kernel=kernel)
        found = OP.run("backward", (torch.ones_like(loss), *args, needs), kernel=kernel)
    dx, dw, db = (x.new_empty(0) if g is None else g for g in found)
    return loss, dx, dw, db


def _fake(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, needs: list[bool]
) -> LossAndGradients:
    return (
        x.new_empty((), dtype=torch.float32),
        x.new_empty(x.shape if needs[0] else (0,)),
        x.new_empty(weight.shape if needs[1] else (0,)),
        x.new_empty(weight.shape[:1] if needs[2] else (0,)),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: LossAndGradients) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.needs = inputs[5]


def _backward(ctx: Any, grad: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError("a compiled model's fused loss has no second derivative, which create_graph=True asks for")
    dx, dw, db = ((made.float() * grad).to(made.dtype) for made in ctx.saved_tensors)
    needs = ctx.needs
    return dx if needs[0] else None, dw if needs[1] else None, None, db if needs[2] else None, None, None


def _composed(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, needs: list[bool]
) -> LossAndGradients:
    """The loss for who looks inside. Nobody asks for the gradients: they are the transform's to make."""
    none = x.new_empty(0)
    return OP.composite(x, weight, target, bias, ignore_index), none, none, none


def _autograd(keyset: Any, *args: Any) -> LossAndGradients:
    made: LossAndGradients = _composed(*args) if is_transform_active() else _record(keyset, *args)
    return made


LIBRARY.define(
    f"{NAME}(Tensor x, Tensor weight, Tensor target, Tensor? bias, int ignore_index, bool[] needs) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
LIBRARY.impl(NAME, _run, "CompositeExplicitAutograd")
LIBRARY.impl(NAME, _composed, "FuncTorchBatchedDecomposition")
torch.library.register_fake(f"kernelworks::{NAME}", _fake, lib=LIBRARY)
_record = make_autograd_impl(getattr(torch.ops.kernelworks, NAME).default, Info(_backward, _setup_context))
LIBRARY.impl(NAME, _autograd, "Autograd", with_keyset=True)
