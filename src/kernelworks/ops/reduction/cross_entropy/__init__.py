"""Cross-entropy of logits and class numbers."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, cuda_kernel, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.memory_layout import as_rows
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.reduction.cross_entropy import sm90
from kernelworks.ops.reduction.cross_entropy.contract import ARGUMENTS, CONTRACT, REDUCTIONS, reference
from kernelworks.ops.reduction.cross_entropy.mutants import MUTANTS

__all__ = ["OP", "cross_entropy"]


@overload
def cross_entropy(
    logits: Array,
    target: Array,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def cross_entropy(
    input: Array,
    target: Array,
    weight: Array | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def cross_entropy(
    logits: Any = ABSENT,
    target: Any = ABSENT,
    *rest: Any,
    ignore_index: int = -100,
    reduction: str = "mean",
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """Cross-entropy (negative log-likelihood of the softmax) of one class a row.

    ``loss_i = log(sum_j e^logits_ij) - logits_i,target_i``; rows whose target is ``ignore_index`` count for nothing.

    Args:
        logits: [M, N], float32, bfloat16 or float16, any strides.
        target: [M] int64, each in [0, N) or ``ignore_index``.
        ignore_index: the target of rows that are left out.
        reduction: ``"mean"`` over the rows that count (NaN where none does), ``"sum"``, or ``"none"``.
        out: where to write: a contiguous tensor of the loss's shape.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The loss in logits's dtype, in nats: a scalar tensor, or [M] for ``"none"``. On a GPU, where looking would mean
        waiting, a target out of range makes its row's loss and gradient NaN.

    Error bound: |loss - exact| <= (u + 2^-24) |loss| + 2^-24 (1.05 mean |d| + min(N, 128) + 8) a row, with
    d = logits - max, its mean weighted by the softmax, u the unit roundoff of the dtype.
    Cost: 4 flop and an exponential a logit; reads the logits once and never writes the probabilities. On a GPU the
        gradient is made with the loss where logits want one.
    Raises: TypeError, ValueError naming the argument; IndexError for a target out of range (on the CPU), before
        anything is written; RuntimeError where ``kernel`` cannot run.
    Source: Milakov and Gimelshein 2018, arXiv:1805.02867.
    """
    if torchs or rest:
        own = {"ignore_index": ignore_index, "reduction": reduction}
        return TORCH_SIGNATURE((logits, target, *rest), torchs, own, out, kernel)
    return OP.call(logits, target, ignore_index, reduction, out, kernel)


def _out_of_range(value: int, row: int, classes: int, ignore_index: int) -> IndexError:
    return IndexError(f"target must be in [0, {classes - 1}] or ignore_index ({ignore_index}); got {value} at [{row}]")


def _loss_shape(logits: Tensor, reduction: str) -> tuple[int, ...]:
    return (logits.shape[0],) if reduction == "none" else ()


def _forward(
    lib: Any, logits: Tensor, target: Tensor, ignore_index: int, reduction: str, out: Tensor | None = None
) -> Tensor:
    loss = torch.empty(_loss_shape(logits, reduction), dtype=logits.dtype) if out is None else out
    losses, bad = torch.empty(logits.shape[0], dtype=torch.float64), torch.empty(1, dtype=torch.int64)
    code = REDUCTIONS.index(reduction)
    kernel, nth = choose_threads(lib.cross_entropy, logits.numel())
    kernel(loss, losses, bad, as_rows(logits), target.contiguous(), ignore_index, code, nth)
    row = int(bad)
    if row >= 0:
        raise _out_of_range(int(target[row]), row, logits.shape[1], ignore_index)
    return loss


def _backward(
    lib: Any, grad: Tensor, logits: Tensor, target: Tensor, ignore_index: int, reduction: str, out: Any = None
) -> Tensor:
    grad_logits = torch.empty(logits.shape, dtype=logits.dtype) if out is None else out
    code = REDUCTIONS.index(reduction)
    kernel, nth = choose_threads(lib.cross_entropy_backward, logits.numel())
    kernel(grad_logits, grad.contiguous(), as_rows(logits), target.contiguous(), ignore_index, code, nth)
    return grad_logits


def _check_target(logits: Tensor, target: Tensor, ignore_index: int) -> None:
    classes = logits.shape[1]
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise _out_of_range(int(target[row]), row, classes, ignore_index)


def _composite(logits: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    return F.cross_entropy(logits, target, ignore_index=ignore_index, reduction=reduction)


NUMBERS = {"none": 0, "mean": 1, "sum": 2}  # as torch's operators have them


def _aten(logits: Any, target: Any, ignore_index: int, reduction: str) -> Any:
    return aten("cross_entropy_loss", logits, target, reduction=NUMBERS[reduction], ignore_index=ignore_index)


def _torch(logits: Tensor, target: Tensor, ignore_index: int, reduction: str, out: Tensor | None = None) -> Any:
    _check_target(logits, target, ignore_index)
    return into(_composite(logits, target, ignore_index, reduction), out)


def _reference(logits: Tensor, target: Tensor, ignore_index: int, reduction: str, out: Tensor | None = None) -> Any:
    _check_target(logits, target, ignore_index)
    return in_float64(reference)(logits, target, ignore_index, reduction, out=out)


def _torch_backward(
    grad: Tensor, logits: Tensor, target: Tensor, ignore_index: int, reduction: str, out: Any = None,
    compute: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    valid = target != ignore_index
    flow = grad.to(compute) / (valid.sum() if reduction == "mean" else 1)
    one_hot = torch.zeros_like(logits, dtype=compute)
    one_hot.scatter_(1, torch.where(valid, target, 0).unsqueeze(1), 1.0)
    gradient = (torch.softmax(logits.to(compute), -1) - one_hot) * torch.where(valid, flow, 0.0).unsqueeze(1)
    return torch.where(valid.unsqueeze(1), gradient, 0.0).to(logits.dtype)


def _fake(logits: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    return logits.new_empty(_loss_shape(logits, reduction))


def _fake_backward(grad: Tensor, logits: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    return logits.new_empty(logits.shape)


PASSES = ("forward", "backward", "training", "resumed")

OP = Op(
    CONTRACT,
    [
        cuda_kernel(Path(__file__).parent, guard=sm90.guard, passes=PASSES),
        triton_kernel(Path(__file__).parent, passes=PASSES),
        *cpp_kernels(Path(__file__).parent, forward=_forward, backward=_backward),
        python_kernel("torch", _torch, _torch_backward),
        python_kernel("reference", _reference, functools.partial(_torch_backward, compute=torch.float64)),
    ],
    op_package=__file__,
    forward=Pass(f"cross_entropy({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor", _fake),
    backward=Pass(
        f"cross_entropy_backward(Tensor grad_loss, {schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
        _fake_backward,
        returns=("logits",),
    ),
    composite=_composite,
    aten=_aten,
    passthrough=Passthrough(
        "loss(logits, target, None, NUMBERS[reduction], ignore_index, 0.0)",
        ("logits", "target"),
        ("logits.numel() > 0", "ignore_index.__class__ is int"),
        {"loss": torch._C._nn.cross_entropy_loss, "NUMBERS": NUMBERS},
    ),
    mutants=MUTANTS,
)


def _ours(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean", label_smoothing: float | None = 0.0,
) -> tuple[Any, ...] | str:  # fmt: skip
    if weight is not None or label_smoothing is None or label_smoothing:
        return "weight and label_smoothing ask for another loss"
    if size_average is not None or reduce is not None:
        return "size_average and reduce are torch's, deprecated there"
    return input, target, ignore_index, reduction


TORCH_SIGNATURE = TorchSignature(OP, F.cross_entropy, _ours, {"input": "logits"}, operator="cross_entropy_loss")
