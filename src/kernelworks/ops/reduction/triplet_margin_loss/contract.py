"""What triplet_margin_loss promises: how much nearer a positive than a negative is to an anchor, up to a margin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Cost, Request
from kernelworks.contract.arguments import Arguments, Flag, Word, check_of, errors_of
from kernelworks.contract.cases import LENGTHS, VALUES, draw, normal
from kernelworks.contract.numbers import Real
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.reduction_stages.entry import U64, OneOf, rounded_bound
from kernelworks.templates.running_error import to_float32

__all__ = ["ARGUMENTS", "CONTRACT", "DEFAULTS", "REDUCTIONS", "reference"]

BF16, F32 = torch.bfloat16, torch.float32
REDUCTIONS = ("none", "mean", "sum")  # in the order of torch's numbers
ARGUMENTS: Arguments = {
    "x": T("... D"), "positive": T("... D", like="x"), "negative": T("... D", like="x"),
    "margin": Real(1.0, above=0.0), "p": OneOf(2.0, 1.0), "eps": Real(1e-6), "swap": Flag(),
    "reduction": Word(*REDUCTIONS),
}  # fmt: skip
DEFAULTS = {"margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False, "reduction": "mean"}
TENSORS = ("x", "positive", "negative")


def reference(
    x: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6,
    swap: bool = False, reduction: str = "mean",
) -> tuple[Tensor, ...]:  # fmt: skip
    margin, eps = to_float32(margin), to_float32(eps)
    return (F.triplet_margin_loss(x, positive, negative, margin, p, eps, swap, reduction=reduction),)


# ---------------------------------------------------------------- bounds


def _distances(args: dict[str, Any]) -> dict[tuple[str, str], Tensor]:
    """Of each pair that the loss asks for, with a dimension of 1."""
    pairs = [("x", "positive"), ("x", "negative")] + [("positive", "negative")] * args["swap"]
    eps = to_float32(args["eps"])
    return {(a, b): torch.linalg.vector_norm(args[a] - args[b] + eps, args["p"], -1, keepdim=True) for a, b in pairs}


def _row_error(args: dict[str, Any]) -> Tensor:
    """How far a row's loss may be off: of each distance D terms, their sum and a root."""
    size = sum(_distances(args).values(), torch.zeros(())) + abs(to_float32(args["margin"]))
    error: Tensor = (args["x"].shape[-1] + 12) * U64 * size
    return error


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    error = _row_error(args).squeeze(-1)
    if args["reduction"] != "none":
        sizes = reference(**{**args, "reduction": "none"})[0].sum() * error.numel() * U64
        error = (error.sum() + sizes) / (error.numel() if args["reduction"] == "mean" else 1)
    return (rounded_bound(outputs[0], dtype) + error,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Each gradient is a sum of directions. Where a loss is as near to 0 as it may be off, or two distances to a
    negative that near to each other, any of both sides' is right."""
    distances, rows = _distances(args), args["x"].shape[:-1].numel()
    flow = grads[0].abs().unsqueeze(-1) / (rows if args["reduction"] == "mean" else 1)
    away = to_float32(args["margin"]) + distances["x", "positive"]
    near = distances["x", "negative"]
    tie = torch.zeros_like(near, dtype=torch.bool)
    if args["swap"]:
        tie = (near - distances["positive", "negative"]).abs() <= 2 * _row_error(args)
        near = torch.minimum(near, distances["positive", "negative"])
    open_ = tie | ((away - near).abs() <= 2 * _row_error(args))
    errors = {name: torch.zeros_like(args["x"]) for name in TENSORS}
    for (a, b), distance in distances.items():
        moved = (args[a] - args[b] + to_float32(args["eps"])).abs()
        direction = (
            torch.where(distance > 0, moved / distance, 0.0) if args["p"] == 2.0 else (moved > 0).to(moved.dtype)
        )
        for name in (a, b):
            errors[name] += torch.where(open_, 2.0, (args["x"].shape[-1] + 16) * U64) * flow * direction
    return {name: rounded_bound(gradients[name], dtype) + errors[name] for name in gradients}


# ---------------------------------------------------------------- cost


def dims(request: Request) -> dict[str, int]:
    shape = request.args["x"].shape
    return {"M": request.args["x"].numel // max(shape[-1], 1), "N": shape[-1]}


def cost(request: Request) -> Cost:
    anchor, pairs = request.args["x"], 3.0 if request.args["swap"] else 2.0
    rows = dims(request)["M"] if request.args["reduction"] == "none" else 1
    if request.pass_ == "backward":
        return Cost(8.0 * pairs * anchor.numel, 0.0, 3 * anchor.nbytes, 3 * anchor.nbytes)
    return Cost(4.0 * pairs * anchor.numel, 0.0, 3 * anchor.nbytes, rows * anchor.dtype.itemsize)


# ---------------------------------------------------------------- cases


def _case(shape: tuple[int, ...], kind: str = "normal", how: str = "", **more: Any) -> Case:
    """Positives lie near their anchors, or some losses would be 0 nowhere."""
    said = {name: more.pop(name) for name in DEFAULTS if name in more}
    given = {**DEFAULTS, **said}
    label = "".join(f", {n} {v}" for n, v in said.items())

    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        anchor = draw(kind, generator, dtype, *shape)
        positive = (anchor + normal(generator, dtype, *shape, scale=0.75)).to(dtype)
        negative = (anchor + normal(generator, dtype, *shape)).to(dtype)
        if how == "nearer to the positive":  # so that a swap takes the other distance
            negative = (positive + 0.25 * (negative - anchor)).to(dtype)
        elif how == "all in one place":
            positive = negative = anchor.clone()
        elif how == "far apart":
            positive = draw(kind, generator, dtype, *shape)
            negative = draw(kind, generator, dtype, *shape)
        return {"x": anchor, "positive": positive, "negative": negative, **given}

    return Case(f"{kind}, " * (kind != "normal") + str(list(shape)) + f", {how}" * bool(how) + label, make, **more)


def _cases() -> Iterator[Case]:
    for i, n in enumerate(LENGTHS):
        how, p = "nearer to the positive" * (i % 2), (2.0, 1.0)[i // 2 % 2]
        yield _case((5, n), how=how, p=p, swap=i % 2 == 1, reduction=REDUCTIONS[i % 3], layouts=n in (17, 128))
    smooth = ("normal", "large_mean", "constant", "zeros")
    for word in REDUCTIONS:
        for p in (2.0, 1.0):
            for swap in (False, True):
                yield _case((6, 33), p=p, swap=swap, reduction=word, layouts=p == 2.0)
                yield _case((9, 129), how="nearer to the positive", p=p, swap=swap, reduction=word)
                yield _case((4, 40), how="all in one place", p=p, swap=swap, reduction=word, eps=1.0)
        for kind in VALUES:
            yield _case((5, 33), kind, reduction=word, swap=kind == "nan", gradients=kind in smooth)
            yield _case((3, 67), kind, "far apart", reduction=word, gradients=kind == "large_mean")
        yield _case((2, 3, 4, 40), how="nearer to the positive", p=1.0, swap=True, reduction=word, layouts=True)
        yield _case((1027, 5), reduction=word, margin=0.25)
        yield _case((3, 33), reduction=word, margin=7.0, eps=0.5, swap=True)
        yield _case((3, 33), reduction=word, eps=-0.5, p=1.0)
        yield _case((0, 5), reduction=word)
    yield _case((65,))
    yield _case((4, 3), "zeros", "all in one place", eps=0.0, reduction="none")  # distances that are 0
    yield _case((2, 20_003), reduction="none", dtypes=(F32, BF16))


BENCH = (((4096, 768), F32), ((4096, 768), BF16), ((128, 4096), F32))
CONTRACT = Contract(
    name="triplet_margin_loss", family="reduction",
    formula="loss = max(margin + |x - positive + eps|_p - |x - negative + eps|_p, 0); none, mean or sum",
    source="Balntas et al., Learning local feature descriptors with triplets, BMVC 2016", outputs=("loss",),
    differentiable=TENSORS, check=check_of(ARGUMENTS, DEFAULTS), reference=reference, bound=bound,
    gradient_bound=gradient_bound, cost=cost, dims=dims, cases=tuple(_cases()),
    bench_cases=tuple(_case(s, dtypes=(t,)) for s, t in BENCH),
    device_cases=tuple(
        _case(s, how="nearer to the positive", reduction=word, swap=word == "mean")
        for s in ((5003, 200), (7, 20_011)) for word in REDUCTIONS
    ),
    device_bench_cases=tuple(_case(s, dtypes=(BF16,)) for s in ((32768, 1024), (4096, 8192))),
    errors=errors_of(ARGUMENTS),
)  # fmt: skip
