"""How much nearer a positive than a negative is to an anchor, up to a margin."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.reduction.triplet_margin_loss.contract import ARGUMENTS, CONTRACT, REDUCTIONS
from kernelworks.ops.reduction.triplet_margin_loss.mutants import MUTANTS
from kernelworks.templates.reduction_stages.launches import as_float32
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["OP", "triplet_margin_loss"]

NANOSECONDS = 1.0  # about what a triple of elements takes one thread


@overload
def triplet_margin_loss(
    x: Array, positive: Array, negative: Array, *, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6,
    swap: bool = False, reduction: str = "mean", out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def triplet_margin_loss(
    anchor: Array, positive: Array, negative: Array, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6,
    swap: bool = False, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean", *,
    out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@two_names
def triplet_margin_loss(
    x: Any = ABSENT, positive: Any = ABSENT, negative: Any = ABSENT, *rest: Any, margin: Any = 1.0, p: Any = 2.0,
    eps: Any = 1e-6, swap: Any = False, reduction: Any = "mean", out: Any = None, kernel: str | None = None,
    **torchs: Any,
) -> Any:  # fmt: skip
    """How much nearer a positive than a negative is to an anchor, up to a margin.

    ``loss = max(margin + d(x, positive) - d(x, negative), 0)`` of each row, with ``d(a, b) = (sum |a - b +
    eps|^p)^(1/p)``; with ``swap`` the negative's distance is the smaller one of those to the x and to the
    positive.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: the anchors, [..., D], float32, bfloat16 or float16, any strides.
        positive: like x.
        negative: like x.
        margin: above 0.
        p: 2 or 1. Of other numbers torch's function runs, if they are given in torch's way.
        eps: what is added to each difference.
        swap: whether the negative's distance to the positive counts too.
        reduction: ``"mean"``, ``"sum"``, or ``"none"``.
        out: where to write: a contiguous tensor like the loss.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The loss, of x's dtype: [...] with ``"none"``, else a scalar; the mean of no rows is NaN.

    Error bound: ``u |loss| + (D + 12) 2^-53 (margin + all distances)`` of a row, u the dtype's unit roundoff.
    The same bits for any number of threads.
    Cost: 8 flop a triple of elements, 12 with ``swap``; reads each tensor once and writes the loss once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Balntas et al., Learning local feature descriptors with triplets, BMVC 2016.
    """
    if torchs or rest:
        own = {"margin": margin, "p": p, "eps": eps, "swap": swap, "reduction": reduction}
        return TORCH_SIGNATURE((x, positive, negative, *rest), torchs, own, out, kernel)
    return OP.call(x, positive, negative, margin, p, eps, swap, reduction, out, kernel)


def _rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.reshape(t.shape[:-1].numel(), t.shape[-1]).contiguous() for t in tensors)


def _divisor(x: Tensor, reduction: str) -> int:
    """What a sum of all rows is divided by; 0 where none is taken."""
    return {"none": 0, "mean": x.shape[:-1].numel(), "sum": 1}[reduction]


def _forward(
    lib: Any, x: Tensor, positive: Tensor, negative: Tensor, margin: float, p: float, eps: float, swap: bool,
    reduction: str, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    loss = _empty_loss(x, positive, negative, margin, p, eps, swap, reduction) if out is None else out
    rows = x.shape[:-1].numel()
    if not rows:
        return loss if reduction == "none" else loss.fill_(float("nan") if reduction == "mean" else 0.0)
    each = torch.empty(rows, dtype=torch.float64)
    run, threads = choose_threads(lib.triplet_margin_loss, NANOSECONDS * x.numel())
    numbers = (as_float32(margin), as_float32(eps), int(p), int(swap), _divisor(x, reduction))
    run(each, loss, *_rows(x, positive, negative), *numbers, threads)
    return loss


def _backward(
    lib: Any, grad: Tensor, x: Tensor, positive: Tensor, negative: Tensor, margin: float, p: float, eps: float,
    swap: bool, reduction: str, needs: Any, out: Any = None,
) -> Any:  # fmt: skip
    made = tuple(torch.empty(t.shape, dtype=t.dtype) for t in (x, positive, negative)) if out is None else tuple(out)
    if x.numel():
        wanted = [m if need or out is not None else None for m, need in zip(made, needs, strict=True)]
        run, threads = choose_threads(lib.triplet_margin_loss_backward, 3 * NANOSECONDS * x.numel())
        numbers = (as_float32(margin), as_float32(eps), int(p), int(swap), _divisor(x, reduction))
        run(*wanted, grad.contiguous(), *_rows(x, positive, negative), *numbers, threads)
    return made


def _composite(
    x: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6,
    swap: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    return F.triplet_margin_loss(x, positive, negative, margin, p, eps, swap, reduction=reduction)


def _empty_loss(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape[:-1] if rest[-1] == "none" else ())


SCHEMA = schema_of(ARGUMENTS)
FORWARD = Pass(f"triplet_margin_loss({SCHEMA}, str? op_kernel=None) -> Tensor", _empty_loss)
BACKWARD = Pass(
    f"triplet_margin_loss_backward(Tensor grad_loss, {SCHEMA}, bool[] needs, str? op_kernel=None) "
    "-> (Tensor, Tensor, Tensor)",
    lambda grad, *args: tuple(t.new_empty(t.shape) for t in args[:3]),
    returns=("x", "positive", "negative"),
)
PACKAGE = Path(__file__).parent
OP: Op = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE),
        *cpp_kernels(PACKAGE, forward=_forward, backward=_backward),
        *python_kernels(CONTRACT, FORWARD, BACKWARD, _composite, lambda: OP),
    ],
    op_package=__file__, forward=FORWARD, backward=BACKWARD, composite=_composite,
    aten=lambda a, p, n, margin, power, eps, swap, reduction: aten(
        "triplet_margin_loss", a, p, n, margin, power, eps, swap, REDUCTIONS.index(reduction)
    ),
    mutants=MUTANTS,
)  # fmt: skip


def _ours(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6,
    swap: bool = False, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> tuple[Any, ...] | str:  # fmt: skip
    if size_average is not None or reduce is not None:
        return "size_average and reduce are torch's, deprecated there"
    if p.__class__ not in (int, float) or p not in ARGUMENTS["p"].values:  # type: ignore[attr-defined]
        return "p is 1 or 2 in a kernel"
    return anchor, positive, negative, margin, float(p), eps, swap, reduction


TORCH_SIGNATURE = TorchSignature(OP, F.triplet_margin_loss, _ours, {"anchor": "x"})
