"""What nll_loss promises: the negative log-likelihood of one class a row, of logarithms of probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Cost, Request
from kernelworks.contract.arguments import Arguments, Error, Int64, Word, check_of, errors_of, limits_of, right_of
from kernelworks.contract.cases import VALUES, draw
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.reduction_stages.entry import U64, rounded_bound

__all__ = ["ARGUMENTS", "CONTRACT", "REDUCTIONS", "loss_shape", "reference", "row_weights"]

BF16, F32 = torch.bfloat16, torch.float32
REDUCTIONS = ("none", "mean", "sum")  # in the order of the kernels' numbers
ARGUMENTS: Arguments = {
    "x": T("N C", where=("C >= 1 or N == 0",)), "target": T("N", dtypes=(torch.int64,), index_of="C"),
    "weight": T("C", like="x", optional=True), "ignore_index": Int64(), "reduction": Word(*REDUCTIONS),
}  # fmt: skip
DEFAULTS = {"weight": None, "ignore_index": -100, "reduction": "mean"}


def loss_shape(x: Tensor, reduction: str) -> tuple[int, ...]:
    return (x.shape[0],) if reduction == "none" else ()


# ---------------------------------------------------------------- the definition


def row_weights(x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> tuple[Tensor, Tensor]:
    """What each row weighs, 0 where it is ignored; and its class, 0 there."""
    valid = target != ignore_index
    classes = torch.where(valid, target, 0)
    weights = torch.ones_like(classes, dtype=x.dtype) if weight is None else weight.to(x.dtype)[classes]
    return torch.where(valid, weights, 0.0), classes


def reference(
    x: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> tuple[Tensor, ...]:
    weights, classes = row_weights(x, target, weight, ignore_index)
    picked = torch.where(target != ignore_index, x.gather(1, classes.unsqueeze(1)).squeeze(1), 0.0)
    losses = -weights * picked
    if reduction == "none":
        return (losses,)
    return (losses.sum() / weights.sum() if reduction == "mean" else losses.sum(),)


# ---------------------------------------------------------------- bounds


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """A product of two numbers of float32 is exact in float64; a rounding there for each addition and the quotient."""
    (loss,), each = outputs, {**args, "reduction": "none"}
    if args["reduction"] == "none":
        return (rounded_bound(loss, dtype),)
    weights, _ = row_weights(args["x"], args["target"], args["weight"], args["ignore_index"])
    error = reference(**each)[0].abs().sum()
    if args["reduction"] == "mean":
        error = (error + loss.abs() * weights.abs().sum()) / weights.sum().abs()
    return (rounded_bound(loss, dtype) + (len(weights) + 2) * U64 * error,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """A weight times what flows in, over the sum of weights; 0 beside each row's class."""
    gradient = gradients["x"]
    weights, _ = row_weights(args["x"], args["target"], args["weight"], args["ignore_index"])
    relative: Any = (len(weights) + 4) * U64
    if args["reduction"] == "mean" and len(weights):
        relative = relative * weights.abs().sum() / weights.sum().abs()
    inside = rounded_bound(gradient, dtype) + relative * gradient.abs()
    return {"x": torch.where(gradient == 0, torch.zeros_like(inside), inside)}


# ---------------------------------------------------------------- cost


def dims(request: Request) -> dict[str, int]:
    rows, classes = request.args["x"].shape
    return {"M": rows, "N": classes}


def cost(request: Request) -> Cost:
    x, target, weight = (request.args[name] for name in ("x", "target", "weight"))
    rows, size = x.shape[0], x.dtype.itemsize
    small = target.nbytes + (0 if weight is None else weight.nbytes)
    if request.pass_ == "backward":
        return Cost(2.0 * rows, 0.0, small + rows * size, x.nbytes)
    return Cost(2.0 * rows, 0.0, small + rows * size, rows * size if request.args["reduction"] == "none" else size)


# ---------------------------------------------------------------- cases


def _make(
    generator: Generator, dtype: torch.dtype, rows: int, classes: int, reduction: str, *, kind: str = "normal",
    weighted: bool = False, ignore_index: int = -100,
) -> dict[str, Any]:  # fmt: skip
    """Every third target is ignored; both ends of the classes are met."""
    target = torch.randint(0, classes, (rows,), generator=generator)
    if rows > 2:
        target[0], target[-1] = classes - 1, 0
    target[1::3] = ignore_index
    weight = (torch.rand(classes, generator=generator) + 0.25).to(dtype) if weighted else None
    x = draw(kind, generator, dtype, rows, classes)
    return {"x": x, "target": target, "weight": weight, "ignore_index": ignore_index, "reduction": reduction}


def _case(name: str, rows: int, classes: int, reduction: str = "mean", **more: Any) -> Case:
    how = {n: more.pop(n) for n in ("kind", "weighted", "ignore_index") if n in more}
    return Case(f"{reduction}, {name}", lambda g, d: _make(g, d, rows, classes, reduction, **how), **more)


def _all_ignored(generator: Generator, dtype: torch.dtype, reduction: str) -> dict[str, Any]:
    return _make(generator, dtype, 4, 9, reduction) | {"target": torch.full((4,), -100)}


def _nan(generator: Generator, dtype: torch.dtype, reduction: str, met: bool) -> dict[str, Any]:
    """NaN and infinities beside each row's class, which nobody reads; and NaN in one that is read."""
    made = _make(generator, dtype, 8, 21, reduction)
    x, target = torch.full_like(made["x"], torch.nan), made["target"]
    x[:, ::5] = torch.inf
    valid = (target != -100).nonzero().reshape(-1)
    x[valid, target[valid]] = made["x"][valid, target[valid]]
    if met:
        x[valid[1], target[valid[1]]] = torch.nan
    return made | {"x": x}


def _cases() -> Iterator[Case]:
    lengths = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 129, 1031, 4097)
    for i, n in enumerate(lengths):
        yield _case(f"N={n}", 7, n, REDUCTIONS[i % 3], weighted=i % 2 == 1, layouts=n in (17, 129))
    for word in REDUCTIONS:
        for rows in (0, 1, 2, 33, 1027):
            yield _case(f"{rows} rows", rows, 10, word, weighted=rows == 33)
        for kind in VALUES:
            if kind != "normal":
                yield _case(kind, 9, 33, word, kind=kind, weighted=kind in ("large_mean", "tiny"))
        yield _case("ignore_index is a class", 9, 19, word, ignore_index=2, weighted=word == "mean")
        yield Case(f"{word}, all ignored", lambda g, d, word=word: _all_ignored(g, d, word))
        yield Case(f"{word}, NaN beside the classes", lambda g, d, word=word: _nan(g, d, word, met=False))
        yield Case(f"{word}, NaN in a class", lambda g, d, word=word: _nan(g, d, word, met=True))
        yield _case("1 flows in", 12, 17, word, flow=1.0)
    yield _case("many rows", 20_011, 3, "mean", weighted=True, dtypes=(F32, BF16))


def _timed(sizes: tuple[tuple[int, int], ...], dtypes: tuple[torch.dtype, ...]) -> tuple[Case, ...]:
    return tuple(_case(f"{m}x{n}", m, n, dtypes=dtypes) for m, n in sizes)


def _targets(first: int, second: int) -> Callable[[], dict[str, Any]]:
    return lambda: {
        **right_of(ARGUMENTS),
        "x": torch.ones(2, 8),
        "target": torch.tensor([first, second]),
        "weight": None,
    }


ERRORS: tuple[Error, ...] = (
    *errors_of(ARGUMENTS),
    ("target too large", _targets(1, 8), IndexError, "target must be in [0, 7]"),
    ("target negative", _targets(-1, 7), IndexError, "got -1 at [0]"),
)

CONTRACT = Contract(
    name="nll_loss", family="reduction", limits=limits_of(ARGUMENTS),
    formula="loss_i = -weight[target_i] x_i,target_i; their sum over that of the weights of rows that are not ignored",
    source="torch.nn.functional.nll_loss", outputs=("loss",), differentiable=("x",),
    check=check_of(ARGUMENTS, DEFAULTS), reference=reference,
    bound=bound, gradient_bound=gradient_bound, cost=cost, dims=dims, cases=tuple(_cases()),
    bench_cases=_timed(((128, 32_000), (4096, 1000)), (F32,)),
    device_cases=tuple(_case("wide", 1001, 5003, word, weighted=word == "mean") for word in REDUCTIONS),
    device_bench_cases=_timed(((4096, 128_256), (65_536, 1000)), (BF16,)), errors=ERRORS,
)  # fmt: skip
