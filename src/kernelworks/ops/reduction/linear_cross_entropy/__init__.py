"""Cross-entropy of a linear map's output, without that output."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import in_float64, into, python_kernel, triton_kernel
from kernelworks.contract import Request
from kernelworks.contract.arguments import schema_of
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature
from kernelworks.ops.reduction.linear_cross_entropy.contract import ARGUMENTS, CONTRACT, reference
from kernelworks.ops.reduction.linear_cross_entropy.mutants import MUTANTS
from kernelworks.templates.product import gradients_like

__all__ = ["OP", "linear_cross_entropy"]


@overload
def linear_cross_entropy(
    x: Array,
    weight: Array,
    target: Array,
    bias: Array | None = None,
    *,
    ignore_index: int = -100,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def linear_cross_entropy(
    input: Array,
    linear_weight: Array,
    target: Array,
    *,
    linear_bias: Array | None = None,
    weight: Array | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
def linear_cross_entropy(
    x: Any = ABSENT,
    weight: Any = ABSENT,
    target: Any = ABSENT,
    bias: Any = None,
    /,
    *,
    ignore_index: Any = -100,
    out: Any = None,
    kernel: str | None = None,
    **named: Any,
) -> Any:
    """Mean cross-entropy of the logits ``x @ weight.T + bias``, which are never all in memory.

    ``loss = mean over the rows that count of log(sum_j e^z_ij) - z_i,target_i``, with z the logits.

    Args:
        x: [..., K], float32, bfloat16 or float16, any strides: the hidden states.
        weight: [N, K] of x's dtype, one line a class, as torch.nn.Linear stores it.
        target: [...] int64, each in [0, N) or ``ignore_index``.
        bias: [N] of x's dtype, or None for zeros.
        ignore_index: the target of rows that are left out.
        out: where to write: a scalar tensor, float32.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The loss in float32, whatever x's dtype, in nats: a scalar tensor, NaN where no row counts. On a GPU, where
        looking would mean waiting, a target out of range makes it NaN.

    Error bound: README.md; logits and what flows into them are rounded to the dtype, sums are float32.
    Cost: 2 M N K flop for the loss of M rows, 6 M N K with its gradients; the GPU kernel takes some thousand rows at a
        time and, where gradients are wanted, makes them at once, so that no logit is stored for the backward.
    Raises: TypeError, ValueError naming the argument; IndexError for a target out of range (on the CPU); RuntimeError
        where ``kernel`` cannot run.
    Source: Hsu et al. 2024, arXiv:2410.10989.
    """
    if named or ignore_index is None:  # torch's `weight` is one of the classes, which is why ours is told by its place
        named["ignore_index"] = ignore_index
        if bias is not None:
            named["bias"] = bias
        return TORCH_SIGNATURE.call_ambiguous((x, weight, target), named, out, kernel)
    return OP.call(x, weight, target, bias, ignore_index, out, kernel)


def _check_target(weight: Tensor, target: Tensor, ignore_index: int) -> None:
    wrong = ((target < 0) | (target >= weight.shape[0])) & (target != ignore_index)
    if bool(wrong.any()):
        at = wrong.nonzero()[0].tolist()
        last = weight.shape[0] - 1
        raise IndexError(
            f"target must be in [0, {last}] or ignore_index ({ignore_index}); got {int(target[tuple(at)])} at {at}"
        )


def _composite(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int) -> Tensor:
    """What models do: logits of the dtype, the loss of them in float32."""
    rows, wanted = x.reshape(target.numel(), x.shape[-1]), target.reshape(-1)
    return F.cross_entropy(F.linear(rows, weight, bias).float(), wanted, ignore_index=ignore_index)


def _torch(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, out: Tensor | None = None
) -> Any:
    _check_target(weight, target, ignore_index)
    return into(_composite(x, weight, target, bias, ignore_index), out)


def _reference(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, out: Tensor | None = None
) -> Any:
    _check_target(weight, target, ignore_index)
    return in_float64(reference, CONTRACT.results_in_order)(x, weight, target, bias, ignore_index, out=out)


def _torch_backward(
    grad: Tensor, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int,
    needs: list[bool], out: Any = None, compute: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows, wanted = x.reshape(target.numel(), x.shape[-1]), target.reshape(-1)
    product, wide = compute or x.dtype, compute or torch.float32
    offset = None if bias is None else bias.to(product)
    logits = F.linear(rows.to(product), weight.to(product), offset).to(wide)
    valid = wanted != ignore_index
    one_hot = torch.zeros_like(logits).scatter_(1, torch.where(valid, wanted, 0).unsqueeze(1), 1.0)
    flow = torch.where(valid, grad.to(wide) / valid.sum(), 0.0).unsqueeze(1)
    into_logits = torch.where(valid.unsqueeze(1), (torch.softmax(logits, -1) - one_hot) * flow, 0.0).to(product)
    grad_x = (into_logits @ weight.to(product)).reshape(x.shape).to(x.dtype) if needs[0] else x.new_empty(0)
    grad_weight = (into_logits.T @ rows.to(product)).to(x.dtype) if needs[1] else x.new_empty(0)
    grad_bias = into_logits.sum(0, dtype=wide).to(x.dtype) if needs[2] else x.new_empty(0)
    return grad_x, grad_weight, grad_bias


def _decline(request: Request) -> str | None:
    if request.pass_ == "training" and request.args["x"].dtype == torch.float16:
        return "gradients made for a 1 vanish in float16, where losses are scaled so that they do not"
    return None


def _fake(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int) -> Tensor:
    return x.new_empty((), dtype=torch.float32)


OP = Op(
    CONTRACT,
    [
        triton_kernel(Path(__file__).parent, guard=_decline, passes=("forward", "backward", "training", "resumed")),
        python_kernel("torch", _torch, _torch_backward),
        python_kernel("reference", _reference, functools.partial(_torch_backward, compute=torch.float64)),
    ],
    op_package=__file__,
    forward=Pass(f"linear_cross_entropy({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor", _fake),
    backward=Pass(
        f"linear_cross_entropy_backward(Tensor grad_loss, {schema_of(ARGUMENTS)}, bool[] needs, str? op_kernel=None) "
        "-> (Tensor, Tensor, Tensor)",
        lambda grad, x, weight, target, bias, ignore_index, needs: gradients_like(x, weight, needs),
        returns=("x", "weight", "bias"),
    ),
    composite=_composite,
    mutants=MUTANTS,
)
OP.pattern = "logits"


def _own(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, *, ignore_index: int = -100
) -> tuple[Any, ...]:
    return x, weight, target, bias, ignore_index


def _ours(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None,
    weight: Tensor | None = None, reduction: str = "mean", ignore_index: int | None = None,
    label_smoothing: float = 0.0, options: Any = None,
) -> tuple[Any, ...] | str:  # fmt: skip
    if weight is not None or label_smoothing or reduction != "mean":
        return "weight, label_smoothing and reduction ask for another loss"
    if options is not None:
        return "options choose torch's way to do it"
    if input.dtype is not torch.float32:
        return "the loss has the input's dtype in torch's signature, where ours is float32"
    return input, linear_weight, target, linear_bias, -100 if ignore_index is None else ignore_index


TORCH_SIGNATURE = TorchSignature(
    OP,
    getattr(F, "linear_cross_entropy", None),  # torch 2.13 has it
    _ours,
    {"input": "x", "linear_weight": "weight", "linear_bias": "bias"},
    own=_own,
)
