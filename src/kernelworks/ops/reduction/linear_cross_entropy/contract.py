"""What linear_cross_entropy promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Error, Int64, check_of, errors_of, limits_of, right_of
from kernelworks.contract.cases import normal
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.product import X, draw_arguments, gamma

__all__ = ["ARGUMENTS", "CHUNK", "CONTRACT", "reference"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149  # of float32
FLUSH_THRESHOLD = 2.0**-126  # a product of 16-bit subnormals may be taken for 0
CHAIN = 128  # the longest chain of float32 additions in a sum of exponentials
LOWEST = -105.0  # e^-105 rounds to 0 in float32
CHUNK = (
    512  # the fewest rows of x taken at a time, where there are as many: the weight's gradient is rounded after each
)


ARGUMENTS: Arguments = {
    "x": X, "weight": T("N K", like="x", where=("N >= 1 or 0 in rest",)),
    "target": T("...", dtypes=(torch.int64,), index_of="N"), "bias": T("N", like="x", optional=True),
    "ignore_index": Int64(),
}  # fmt: skip


def reference(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ignore_index: int = -100
) -> tuple[Tensor, ...]:
    rows, wanted = x.reshape(target.numel(), x.shape[-1]), target.reshape(-1)
    logits = rows @ weight.T
    valid = wanted != ignore_index
    if bias is not None:
        logits = logits + bias
    picked = torch.where(valid, wanted, 0).unsqueeze(-1)
    losses = -torch.log_softmax(logits, -1).gather(-1, picked).squeeze(-1)
    return (torch.where(valid, losses, 0.0).sum() / valid.sum(),)


def _gamma(terms: int) -> float:
    """Of a sum of products in float32, in any order; a matrix unit cuts a sum off where it could round it."""
    return gamma(2.0 * terms + 10.0)


class _Logits:
    """Logits with the largest error of each, and what cross-entropy makes of them."""

    def __init__(self, args: dict[str, Any], dtype: torch.dtype) -> None:
        weight, bias, wanted = args["weight"], args["bias"], args["target"].reshape(-1)
        self.x = args["x"].reshape(wanted.numel(), args["x"].shape[-1])
        self.weight, k = weight, weight.shape[1]
        z, magnitude = self.x @ weight.T, self.x.abs() @ weight.abs().T
        if bias is not None:
            z, magnitude = z + bias, magnitude + bias.abs()
        u = UNIT_ROUNDOFF[dtype]
        product = _gamma(k + 1) * magnitude + (k + 1) * SMALLEST
        if dtype != torch.float32:
            product = product + 2 * k * FLUSH_THRESHOLD
        self.off = rounding(z, dtype) + (1.0 + u) * product  # rows keep logits in the dtype
        self.valid = wanted != args["ignore_index"]
        self.count = self.valid.sum()
        self.p = torch.softmax(z, -1)
        # log sum p e^off bounds how far log sum e^z moves either way, whatever the errors within off.
        self.lse_off = (torch.logsumexp(z + self.off, -1) - torch.logsumexp(z, -1)).unsqueeze(-1)
        picked = torch.where(self.valid, wanted, 0).clamp(0, z.shape[1] - 1).unsqueeze(-1)
        self.one_hot = torch.zeros_like(z).scatter_(1, picked, 1.0)
        self.own_off = self.off.gather(1, picked)
        distance = (z - z.amax(-1, keepdim=True)).clamp_min(LOWEST).abs()
        self.of_sum = 1.05 * (self.p * distance).sum(-1, keepdim=True) + min(z.shape[1], CHAIN) + 8.0
        self.relative = 1.05 * distance + self.of_sum + 4.0


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    found, loss = _Logits(args, dtype), outputs[0]
    each = (found.lse_off + found.own_off + U32 * found.of_sum).squeeze(-1)
    of_rows = torch.where(found.valid, each, 0.0).sum() / found.count
    return (rounding(loss, torch.float32) + U32 * loss.abs() + (1.0 + U32) * of_rows,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    found, u = _Logits(args, dtype), UNIT_ROUNDOFF[dtype]
    (m, n), grad = found.p.shape, grads[0].abs()
    share = torch.where(found.valid, 1.0 / found.count.clamp_min(1), 0.0).unsqueeze(-1)
    scaled_first = dtype == torch.float16  # for a 1 they would vanish there
    if scaled_first:
        share = share * grad
    moved = torch.expm1(found.off + found.lse_off)  # of a probability, relative to it
    into = (share * (found.p - found.one_hot)).abs()  # what flows into the logits, but in float16 for a 1 into the loss
    off = share * found.p * (moved + (1.0 + moved) * U32 * found.relative) + U32 * into + SMALLEST * (share + 1.0)
    off = off + rounding(into + off, dtype)  # kept in the dtype too
    most, x, w = into + off, found.x.abs(), found.weight.abs()
    chunks = math.ceil(m / CHUNK)
    inside = {
        "x": (off @ w + _gamma(n) * (most @ w) + n * FLUSH_THRESHOLD).reshape(args["x"].shape),
        "weight": off.T @ x + (_gamma(m) + (chunks - 1) * u) * (most.T @ x) + m * FLUSH_THRESHOLD,
        "bias": off.sum(0) + _gamma(m) * most.sum(0) + m * SMALLEST,
    }
    if scaled_first:
        return {name: inside[name] + rounding(exact.abs() + inside[name], dtype) for name, exact in gradients.items()}
    # Gradients are made for a 1, rounded, and then scaled by what flows in, and rounded again.
    bounds = {}
    for name, exact in gradients.items():
        for_one = inside[name] + rounding(exact.abs() / grad + inside[name], dtype) if float(grad) else inside[name]
        off_scaled = grad * for_one
        bounds[name] = off_scaled + rounding(exact.abs() + off_scaled, dtype)
    return bounds


def _sizes(request: Request) -> tuple[int, int, int]:
    weight, target = request.args["weight"], request.args["target"]
    return target.numel, weight.shape[0], weight.shape[1]


def cost(request: Request) -> Cost:
    """The products and the exponentials; logits are never among the bytes."""
    (m, n, k), x, weight = _sizes(request), request.args["x"], request.args["weight"]
    target = request.args["target"]
    if request.pass_ == "backward":
        return Cost(6.0 * m * n * k, m * n, x.nbytes + weight.nbytes + target.nbytes, x.nbytes + weight.nbytes)
    return Cost(2.0 * m * n * k, m * n, x.nbytes + weight.nbytes + target.nbytes, x.dtype.itemsize)


def dims(request: Request) -> dict[str, int]:
    m, n, k = _sizes(request)
    return {"M": m, "N": n, "K": k}


def _make(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], n: int, kind: str = "normal", bias: bool = False,
    scale: float = 1.0, ignore_index: int = -100,
) -> dict[str, Any]:  # fmt: skip
    """Every third target is ignored."""
    target = torch.randint(0, n, shape[:-1], generator=generator)
    target.view(-1)[1::3] = ignore_index
    return {
        **draw_arguments(generator, dtype, shape, n, kind, scale),
        "target": target,
        "bias": normal(generator, dtype, n) if bias else None,
        "ignore_index": ignore_index,
    }


def _case(
    name: str, shape: tuple[int, ...], n: int, *, layouts: bool = False, gradients: bool = True,
    flow: float | None = None, **how: Any,
) -> Case:  # fmt: skip
    return Case(name, lambda g, d: _make(g, d, shape, n, **how), layouts=layouts, gradients=gradients, flow=flow)


def _all_ignored(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    return _make(generator, dtype, (4, 8), 9) | {"target": torch.full((4,), -100)}


# Rows, hidden size, classes: one of each, primes, around vector widths and around a chunk of rows.
SHAPES = (
    (1, 1, 1), (1, 8, 2), (2, 7, 9), (3, 16, 17), (4, 33, 31), (5, 64, 33), (7, 15, 67), (8, 128, 128), (9, 31, 129),
    (16, 64, 257), (17, 48, 1031), (31, 5, 4096), (33, 65, 100), (64, 32, 509), (100, 12, 77), (513, 9, 40),
    (1030, 5, 33), (3, 0, 5),
)  # fmt: skip

CASES = (
    *(_case(f"M={m} K={k} N={n}", (m, k), n, bias=k % 2 == 1, layouts=m in (4, 8)) for m, k, n in SHAPES),
    *(
        _case(f"{kind}", (5, 33), 67, kind=kind, gradients=kind in ("large_mean", "tiny", "constant"))
        for kind in ("large_mean", "tiny", "subnormal", "constant", "zeros", "inf", "negative_inf", "nan")
    ),
    _case("shape [K]", (24,), 19),
    _case("shape [2, 3, K], bias", (2, 3, 40), 21, bias=True, layouts=True),
    _case("logits of 30", (6, 32), 77, scale=30.0),
    _case("ignore_index is a class", (7, 16), 19, ignore_index=2),
    _case("1 flows in", (33, 20), 101, bias=True, flow=1.0),
    _case("a scaled loss", (48, 4), 2003, bias=True, flow=2.0**15),
    _case("no rows", (0, 8), 10),
    Case("all ignored", _all_ignored),
)

BENCH_CASES = tuple(
    Case(f"{m}x{k}x{n}", lambda g, d, m=m, k=k, n=n: _make(g, d, (m, k), n), dtypes=dtypes)
    for m, k, n, dtypes in ((64, 256, 8000, (torch.float32, torch.bfloat16)), (16, 384, 32000, (torch.float32,)))
)

# On a GPU: a language model's last product, small and large.
DEVICE_BENCH_CASES = tuple(
    Case(f"{m}x{k}x{n}", lambda g, d, m=m, k=k, n=n: _make(g, d, (m, k), n), dtypes=(torch.bfloat16,))
    for m, k, n in ((4096, 2048, 32000), (8192, 2048, 128256))
)

DEVICE_CASES = (
    _case("M=1200 K=256 N=32003", (1200, 256), 32003),
    _case("M=640 K=512 N=20000, bias", (640, 512), 20000, bias=True, flow=1.0),
)


def _targets(first: int, second: int) -> Callable[[], dict[str, Any]]:
    return lambda: right_of(ARGUMENTS) | {"target": torch.tensor([first, second])}


ERRORS: tuple[Error, ...] = (
    *errors_of(ARGUMENTS),
    ("target too large", _targets(1, 3), IndexError, "target must be in [0, 2]"),
    ("target negative", _targets(-1, 2), IndexError, "got -1 at [0]"),
)


class OfProducts(Contract):
    """Gradients begin with a float32 one, and are products in x's dtype."""

    def unit(self, request: Request) -> torch.dtype:
        dtype: torch.dtype = request.args["x"].dtype
        return dtype


CONTRACT = OfProducts(
    name="linear_cross_entropy",
    family="reduction",
    limits=limits_of(ARGUMENTS),
    arithmetic="products",
    formula="mean over the rows that count of log(sum_j e^z_ij) - z_i,target_i, with z = x weight^T + bias",
    source="Hsu et al., Liger Kernel, 2024 (arXiv:2410.10989), section 3.2; Wijmans et al. 2024 (arXiv:2411.09009)",
    outputs=("loss",),
    results={"loss": Result(torch.float32)},
    differentiable=("x", "weight", "bias"),
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
)
