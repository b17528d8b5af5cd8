"""The negative log-likelihood of one class a row, of logarithms of probabilities."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.reduction.nll_loss.contract import (
    ARGUMENTS,
    CONTRACT,
    REDUCTIONS,
    loss_shape,
    reference,
    row_weights,
)
from kernelworks.ops.reduction.nll_loss.mutants import MUTANTS

__all__ = ["OP", "check_target", "nll_loss"]

NUMBERS = {"none": 0, "mean": 1, "sum": 2}  # as torch's operators have them


@overload
def nll_loss(
    x: Array, target: Array, weight: Array | None = None, *, ignore_index: int = -100, reduction: str = "mean",
    out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def nll_loss(
    input: Array, target: Array, weight: Array | None = None, size_average: bool | None = None,
    ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean", *, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@two_names
def nll_loss(
    x: Any = ABSENT, target: Any = ABSENT, weight: Any = None, *rest: Any, ignore_index: Any = -100,
    reduction: Any = "mean", out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The negative log-likelihood of one class a row, of logarithms of probabilities.

    ``loss_i = -weight[target_i] x_i,target_i``; rows whose target is ``ignore_index`` count for nothing.

    Args:
        x: [N, C], float32, bfloat16 or float16, any strides.
        target: [N] int64, each in [0, C) or ``ignore_index``.
        weight: [C] of x's dtype, what each class weighs; without it 1.
        ignore_index: the target of rows that are left out.
        reduction: ``"mean"`` over the weights of the rows that count (NaN where none does), ``"sum"``, or ``"none"``.
        out: where to write: a contiguous tensor of the loss's shape.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The loss in x's dtype: a scalar tensor, or [N] for ``"none"``. On a GPU, where looking would mean waiting, a
        target out of range makes the loss NaN, and adds to no gradient.

    Error bound: ``u |loss|``, u the dtype's unit roundoff, and 2^-53 (N + 2) times the magnitudes that are added up.
    Cost: 2 flop a row; reads an element of each row, and a gradient is written whole.
    Raises: TypeError, ValueError naming the argument; IndexError for a target out of range (on the CPU), before
        anything is written; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.nll_loss.
    """
    if torchs or rest:
        own = {"ignore_index": ignore_index, "reduction": reduction}
        return TORCH_SIGNATURE((x, target, weight, *rest), torchs, own, out, kernel)
    return OP.call(x, target, weight, ignore_index, reduction, out, kernel)


def _refuse(target: Tensor, row: int, classes: int, ignore_index: int) -> None:
    found = int(target[row])
    raise IndexError(f"target must be in [0, {classes - 1}] or ignore_index ({ignore_index}); got {found} at [{row}]")


def check_target(x: Tensor, target: Tensor, ignore_index: int) -> None:
    """Raises IndexError for a target that is no class."""
    wrong = ((target < 0) | (target >= x.shape[1])) & (target != ignore_index)
    if bool(wrong.any()):
        _refuse(target, int(wrong.nonzero()[0]), x.shape[1], ignore_index)


def _forward(
    lib: Any, x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, out: Any = None
) -> Tensor:
    loss: Tensor = torch.empty(loss_shape(x, reduction), dtype=x.dtype) if out is None else out
    bad = torch.empty(1, dtype=torch.int64)
    weights = None if weight is None else weight.contiguous()
    lib.nll_loss(loss, bad, x, target.contiguous(), weights, ignore_index, REDUCTIONS.index(reduction))
    if (row := int(bad)) >= 0:
        _refuse(target, row, x.shape[1], ignore_index)
    return loss


def _backward(
    lib: Any, grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str,
    out: Any = None,
) -> Tensor:  # fmt: skip
    made: Tensor = torch.empty(x.shape, dtype=x.dtype) if out is None else out
    weights = None if weight is None else weight.contiguous()
    run, threads = choose_threads(lib.nll_loss_backward, 0.1 * x.numel())
    run(made, grad.contiguous(), x, target.contiguous(), weights, ignore_index, REDUCTIONS.index(reduction), threads)
    return made


def _composite(
    x: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    return F.nll_loss(x, target, weight, ignore_index=ignore_index, reduction=reduction)


def _torch(x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, out: Any = None) -> Any:
    check_target(x, target, ignore_index)
    return into(_composite(x, target, weight, ignore_index, reduction), out)


def _reference(*args: Any, out: Any = None) -> Any:
    check_target(args[0], args[1], args[3])
    return in_float64(reference)(*args, out=out)


def _torch_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, out: Any = None,
    compute: torch.dtype = torch.float32,
) -> Any:  # fmt: skip
    """Of functions that are differentiable again."""
    weights, classes = row_weights(x.to(compute), target, weight, ignore_index)
    flow = -weights * grad.to(compute)
    if reduction == "mean":
        flow = flow / weights.sum()
    flow = torch.where(target != ignore_index, flow, 0.0)  # over no weight at all it would be NaN
    made = torch.zeros(x.shape, dtype=compute, device=x.device).scatter(1, classes.unsqueeze(1), flow.unsqueeze(1))
    return into(made.to(x.dtype), out)


PACKAGE = Path(__file__).parent
OP = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE),
        *cpp_kernels(PACKAGE, forward=_forward, backward=_backward),
        python_kernel("torch", _torch, _torch_backward),
        python_kernel("reference", _reference, functools.partial(_torch_backward, compute=torch.float64)),
    ],
    op_package=__file__,
    forward=Pass(
        f"nll_loss({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
        lambda x, target, weight, ignore_index, reduction: x.new_empty(loss_shape(x, reduction)),
    ),
    backward=Pass(
        f"nll_loss_backward(Tensor grad_loss, {schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
        lambda grad, x, *rest: x.new_empty(x.shape),
        returns=("x",),
    ),
    composite=_composite,
    aten=lambda x, target, weight, ignore_index, reduction: aten(
        "nll_loss_nd", x, target, weight, NUMBERS[reduction], ignore_index
    ),
    mutants=MUTANTS,
)  # fmt: skip


def _ours(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean",
) -> tuple[Any, ...] | str:  # fmt: skip
    if size_average is not None or reduce is not None:
        return "size_average and reduce are torch's, deprecated there"
    if isinstance(weight, Tensor) and weight.requires_grad:
        return "a weight takes no gradient"
    return input, target, weight, ignore_index, reduction


TORCH_SIGNATURE = TorchSignature(OP, F.nll_loss, _ours, {"input": "x"}, operator="nll_loss_nd")
