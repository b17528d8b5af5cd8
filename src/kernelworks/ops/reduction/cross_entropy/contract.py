"""What cross_entropy promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Request, Values, rounding
from kernelworks.contract.arguments import Arguments, Error, Int64, Word, check_of, errors_of, limits_of, right_of
from kernelworks.contract.cases import draw, normal
from kernelworks.contract.tensor_argument import T

__all__ = ["ARGUMENTS", "CONTRACT", "REDUCTIONS", "reference"]

U32 = UNIT_ROUNDOFF[torch.float32]
REDUCTIONS = ("none", "mean", "sum")  # in the order of the kernels' numbers
CHAIN = 128  # the longest chain of float32 additions, whatever the length: then sums move on to float64
LOWEST = -105.0  # e^-105 rounds to 0 in float32


ARGUMENTS: Arguments = {
    "logits": T("M N", where=("N >= 1 or M == 0",)), "target": T("M", dtypes=(torch.int64,), index_of="N"),
    "ignore_index": Int64(), "reduction": Word(*REDUCTIONS),
}  # fmt: skip


def _reduced(losses: Tensor, valid: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    return losses.sum() / valid.sum() if reduction == "mean" else losses.sum()


def reference(logits: Tensor, target: Tensor, ignore_index: int, reduction: str) -> tuple[Tensor, ...]:
    valid = target != ignore_index
    picked = torch.where(valid, target, 0).unsqueeze(-1)
    losses = -torch.log_softmax(logits, -1).gather(-1, picked).squeeze(-1)
    return (_reduced(torch.where(valid, losses, 0.0), valid, reduction),)


def _relative(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The probabilities, and the relative errors of them and of the sum of exponentials, in units of 2^-24."""
    p = torch.softmax(logits, -1)
    distance = (logits - logits.amax(-1, keepdim=True)).clamp_min(LOWEST).abs()
    chain = min(logits.shape[-1], CHAIN) + 8.0
    of_sum = 1.05 * (p * distance).sum(-1, keepdim=True) + chain
    return p, 1.05 * distance + of_sum + 4.0, of_sum


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    logits, loss = args["logits"], outputs[0]
    valid = args["target"] != args["ignore_index"]
    # The logarithm turns the relative error of the sum into an absolute one; all after it is float64.
    losses = torch.where(valid, U32 * _relative(logits)[2].squeeze(-1), 0.0)
    return (rounding(loss, dtype) + U32 * loss.abs() + _reduced(losses, valid, args["reduction"]),)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    gradient, valid = gradients["logits"], args["target"] != args["ignore_index"]
    count = valid.sum().clamp_min(1) if args["reduction"] == "mean" else 1.0
    flow = torch.where(valid, grads[0].abs() / count, 0.0).unsqueeze(-1)
    p, relative, _ = _relative(args["logits"])
    inside = U32 * (flow * p * relative + gradient.abs()) + 2.0**-149 * (flow + 1.0)
    return {"logits": rounding(gradient, dtype) + inside}


def count_valid_rows(args: Mapping[str, Any]) -> dict[str, int]:
    """How many rows count: of the others nothing need be read."""
    return {"M": int((args["target"] != args["ignore_index"]).sum())}


def cost(request: Request) -> Cost:
    """By the rows that were counted; else as if every row counts."""
    x, target = request.args["logits"], request.args["target"]
    rows, classes = x.shape
    terms = request.values.get("M", rows) * classes
    written = x.nbytes if request.pass_ == "backward" else x.dtype.itemsize
    return Cost(4.0 * terms, terms, terms * x.dtype.itemsize + target.nbytes, written)


def dims(request: Request) -> dict[str, int]:
    m, n = request.args["logits"].shape
    return {"M": m, "N": n}


def _make(
    generator: Generator, dtype: torch.dtype, m: int, n: int, kind: str = "normal", reduction: str = "mean",
    ignore_index: int = -100,
) -> dict[str, Any]:  # fmt: skip
    """Every third target is ignored."""
    target = torch.randint(0, n, (m,), generator=generator)
    target[1::3] = ignore_index
    logits = draw(kind, generator, dtype, m, n)
    return {"logits": logits, "target": target, "ignore_index": ignore_index, "reduction": reduction}


def _case(name: str, m: int, n: int, *, kind: str = "normal", reduction: str = "mean", **more: Any) -> Case:
    return Case(name, lambda g, d: _make(g, d, m, n, kind, reduction), **more)


def _all_ignored(generator: Generator, dtype: torch.dtype, reduction: str) -> dict[str, Any]:
    return _make(generator, dtype, 4, 9, "normal", reduction) | {"target": torch.full((4,), -100)}


def _large(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """Logits whose exponentials overflow float32 unless the maximum is taken off."""
    return _make(generator, dtype, 5, 77) | {"logits": normal(generator, dtype, 5, 77, scale=90.0)}


def _last_class(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    return _make(generator, dtype, 3, 130) | {"target": torch.tensor([129, 0, 129]), "reduction": "none"}


LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 67, 127, 128, 129, 257, 1031, 4096, 4097, 32003)

CASES = (
    *(
        _case(f"{reduction} N={n}", 4, n, reduction=reduction, layouts=n in (17, 128))
        for n, reduction in zip(LENGTHS, ("mean", "none", "sum") * 8, strict=False)
    ),
    *(
        _case(f"{kind} N={n}", 5, n, kind=kind, reduction="none", gradients=kind in ("large_mean", "tiny", "constant"))
        for kind in ("large_mean", "tiny", "huge", "subnormal", "constant", "zeros", "inf", "negative_inf", "nan")
        for n in (33, 1031)
    ),
    _case("no rows, sum", 0, 10, reduction="sum"),
    _case("no rows, mean", 0, 10),
    _case("many rows", 1027, 48),
    _case("many rows, none", 1027, 48, reduction="none"),
    Case("logits of 90", _large),
    Case("first and last class", _last_class),
    *(
        _case(f"{r} N={n}, 1 flows in", 5, n, reduction=r, flow=1.0)
        for r, n in zip(REDUCTIONS, (33, 4096, 32003), strict=True)
    ),
    Case("ignore_index is a class", lambda g, d: _make(g, d, 7, 19, ignore_index=2)),
    *(Case(f"all ignored, {r}", lambda g, d, r=r: _all_ignored(g, d, r)) for r in REDUCTIONS),
)

# Vocabularies, cut into every number of pieces; rows that do not start at 16 bytes; the longest that one launch takes.
DEVICE_CASES = (
    *(
        _case(f"{m}x{n} {reduction}", m, n, reduction=reduction)
        for m, n, reduction in (
            (64, 5000, "none"), (33, 8192, "mean"), (40, 16384, "sum"), (48, 32000, "mean"), (70, 50257, "mean"),
            (50, 50304, "none"), (300, 65536, "mean"), (37, 128256, "mean"), (20, 151936, "sum"), (5, 262144, "mean"),
            (3, 300001, "mean"), (2200, 8192, "mean"), (600, 20000, "none"), (300, 40000, "mean"),
        )
    ),
    *(_case(f"300x{n}, 1 flows in", 300, n, flow=1.0) for n in (1000, 32000, 50257, 128256)),
    _case("wide apart, 20x128256", 20, 128256, kind="large_mean"),
)  # fmt: skip

BENCH_CASES = tuple(
    Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, m, n), dtypes=dtypes)
    for m, n, dtypes in (
        (128, 32000, (torch.float32, torch.bfloat16)),
        (64, 151936, (torch.bfloat16,)),
        (32, 1000, (torch.float32,)),
    )
)

# On a GPU: sizes that fill one, and one that only its host time limits.
DEVICE_BENCH_CASES = tuple(
    Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, m, n), dtypes=(torch.bfloat16,))
    for m, n in ((4096, 128256), (8192, 32000), (16, 1024))
)


def _targets(first: int, second: int) -> Callable[[], dict[str, Any]]:
    return lambda: {**right_of(ARGUMENTS), "logits": torch.ones(2, 8), "target": torch.tensor([first, second])}


ERRORS: tuple[Error, ...] = (
    *errors_of(ARGUMENTS),
    ("target too large", _targets(1, 8), IndexError, "target must be in [0, 7]"),
    ("target negative", _targets(-1, 7), IndexError, "got -1 at [0]"),
)

CONTRACT = Contract(
    name="cross_entropy",
    family="reduction",
    limits=limits_of(ARGUMENTS),
    formula="loss_i = log(sum_j e^x_ij) - x_i,target_i; their mean over the rows that are not ignored, sum, or each",
    source="Milakov and Gimelshein, Online normalizer calculation for softmax, 2018 (arXiv:1805.02867)",
    outputs=("loss",),
    differentiable=("logits",),
    check=check_of(ARGUMENTS),
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    cases=CASES,
    bench_cases=BENCH_CASES,
    device_cases=DEVICE_CASES,
    device_bench_cases=DEVICE_BENCH_CASES,
    errors=ERRORS,
    values=Values(count_valid_rows, "if every target counts"),
)
