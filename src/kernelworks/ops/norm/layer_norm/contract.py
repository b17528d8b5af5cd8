"""What layer_norm promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.cases import draw, normal, row_cases
from kernelworks.contract import (
    FLOATS,
    UNIT_ROUNDOFF,
    Case,
    Contract,
    Cost,
    Request,
    need_dtype,
    need_same,
    need_tensor,
    rounding,
)  # fmt: skip

__all__ = ["CONTRACT", "reference"]

EPS = 1e-5
U32 = UNIT_ROUNDOFF[torch.float32]
PIECE = 4096  # elements or, down a column, 128 rows: how far a float32 sum may run before it moves on to float64
BLOCK = 128


def check(x: Any, weight: Any, bias: Any, eps: Any) -> None:
    need_tensor("x", x)
    need_dtype("x", x)
    if len(x.shape) < 1:
        raise ValueError("x must have at least one dimension, the one that is normalised; got a scalar tensor")
    for name, value in (("weight", weight), ("bias", bias)):
        need_tensor(name, value, optional=True)
        if value is not None:
            need_same(name, value, "x", x)
            if tuple(value.shape) != (x.shape[-1],):
                raise ValueError(f"{name} must have shape [{x.shape[-1]}], x's last dimension; got {list(value.shape)}")
    if isinstance(eps, bool) or not isinstance(eps, (int, float)):
        raise TypeError(f"eps must be a float, got {type(eps).__name__}")
    if not eps >= 0.0:
        raise ValueError(f"eps must be at least 0, got {eps}")


def reference(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    deviations = x - x.mean(-1, keepdim=True)
    output = deviations * torch.rsqrt(deviations.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        output = output * weight
    return (output if bias is None else output + bias,)


def _roundings(n: int) -> float:
    """The longest chain of float32 roundings into a sum over a row: N/32 additions (four accumulators of eight lanes,
    the narrowest wide row) within a piece, the tree that joins them, the deviation's own, and the few of the root,
    the scale and the products."""
    return min(n, PIECE) / 32 + 12


def _normalised(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    deviations = x - x.mean(-1, keepdim=True)
    rstd = torch.rsqrt(deviations.square().mean(-1, keepdim=True) + eps)
    return deviations * rstd, rstd


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    x, weight, output = args["x"], args["weight"], outputs[0]
    z, _ = _normalised(x, args["eps"])
    scale = torch.ones(x.shape[-1], dtype=torch.float64) if weight is None else weight.abs()
    # The mean is off by c u of the spread, which moves z by c u; 1/spread by less than c u, which moves it by c u |z|.
    inside = _roundings(x.shape[-1]) * U32 * (z.abs() + 1.0) * scale
    return (rounding(output, dtype) + U32 * output.abs() + inside + 2.0**-149 * scale,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    x, weight = args["x"], args["weight"]
    z, rstd = _normalised(x, args["eps"])
    n, rows = x.shape[-1], x.numel() // max(x.shape[-1], 1)
    c = _roundings(n)
    g = grads[0].abs()
    gw = g if weight is None else g * weight.abs()
    wide = z.abs() + 1.0  # what the error of z is relative to
    # Each term of rstd (gw - mean(gw) - z mean(gw z)) enters with its magnitude, for they may cancel. The sums here
    # have two accumulators where the forward's have four: twice the chain.
    terms = rstd * (c * gw + 6.0 * 2.0 * c * wide * (gw * wide).mean(-1, keepdim=True))
    over_rows = tuple(range(x.dim() - 1))
    chain = min(rows, BLOCK) + 8
    found = {"x": U32 * terms}
    if "weight" in gradients:
        magnitude = g * wide
        found["weight"] = U32 * (c + chain) * (magnitude.sum(over_rows) if over_rows else magnitude)
    if "bias" in gradients:
        found["bias"] = U32 * chain * (g.sum(over_rows) if over_rows else g)
    return {name: rounding(gradient, dtype) + found[name] for name, gradient in gradients.items()}


def cost(request: Request) -> Cost:
    x = request.args["x"]
    n, rows = x.shape[-1], x.numel // max(x.shape[-1], 1)
    parameters = sum(n * x.dtype.itemsize for name in ("weight", "bias") if request.args.get(name) is not None)
    if request.pass_ == "backward":
        return Cost(17.0 * x.numel, rows, 2 * x.nbytes + parameters, x.nbytes + parameters)
    return Cost(8.0 * x.numel, rows, x.nbytes + parameters, x.nbytes)


def dims(request: Request) -> dict[str, int]:
    x = request.args["x"]
    return {"M": x.numel // max(x.shape[-1], 1), "N": x.shape[-1]}


def _make(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> dict[str, Any]:
    x, n = draw(kind, generator, dtype, *shape), shape[-1]
    return {"x": x, "weight": normal(generator, dtype, n), "bias": normal(generator, dtype, n), "eps": EPS}


def _plain(generator: Generator, dtype: torch.dtype, **changed: Any) -> dict[str, Any]:
    return _make(generator, dtype, (5, 77), "normal") | changed


def _far(generator: Generator, dtype: torch.dtype, mean: float) -> dict[str, Any]:
    """A mean so far from zero that squares of x hold nothing of the variance in float32."""
    return _make(generator, dtype, (5, 1031), "normal") | {"x": normal(generator, dtype, 5, 1031, mean=mean)}


def _large(generator: Generator, dtype: torch.dtype, n: int) -> dict[str, Any]:
    return _make(generator, dtype, ((9 << 20) // (n * dtype.itemsize), n), "normal")


CASES = (
    *row_cases(_make),
    Case("N=9001, more than one piece", lambda g, d: _make(g, d, (2, 9001), "normal")),
    # Outputs of 9 MiB: rows at cache lines, and rows that start anywhere.
    Case("large N=1088", lambda g, d: _large(g, d, 1088), gradients=False),
    Case("large N=1031", lambda g, d: _large(g, d, 1031), gradients=False),
    Case("no weight", lambda g, d: _plain(g, d, weight=None)),
    Case("no bias", lambda g, d: _plain(g, d, bias=None)),
    Case("no weight, no bias", lambda g, d: _plain(g, d, weight=None, bias=None), layouts=True),
    Case("large eps", lambda g, d: _plain(g, d, eps=1.0)),
    Case("mean 1e4", lambda g, d: _far(g, d, 1e4)),
    Case("mean 1e7", lambda g, d: _far(g, d, 1e7), dtypes=(torch.float32, torch.bfloat16)),
    Case("eps 0, tiny", lambda g, d: _make(g, d, (4, 100), "tiny") | {"eps": 0.0}, gradients=False),
    Case("eps 0, huge", lambda g, d: _make(g, d, (4, 100), "huge") | {"eps": 0.0}, gradients=False),
)

BENCH_CASES = tuple(
    Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, (m, n), "normal"), dtypes=dtypes)
    for m, n, dtypes in (
        (2048, 4096, (torch.bfloat16,)),
        (1024, 4096, (torch.float32,)),
        (512, 384, (torch.float32,)),
        (1, 1024, (torch.float32, torch.bfloat16)),
    )
)

# For every configuration of the tuning table: enough rows for more than one tile a program, whole and broken chunks.
DEVICE_CASES = (
    *(
        Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, (m, n), "normal"))
        for m, n in (
            (40000, 64), (4099, 128), (5003, 768), (3001, 1024), (1500, 2048), (1501, 3072), (701, 4096), (700, 5120),
            (701, 4608), (600, 6144), (300, 8192), (301, 12000), (300, 16384), (40, 20000), (40, 32768), (20, 65536),
            (1501, 8200), (901, 16384),
        )
    ),
    *(
        Case(
            f"mean {mean}, {m}x{n}",
            lambda g, d, m=m, n=n, mean=mean: _make(g, d, (m, n), "normal")
            | {"x": normal(g, d, m, n, mean=float(mean))},
            dtypes=(torch.float32, torch.bfloat16) if mean == "1e7" else FLOATS,
        )
        for mean, m, n in (("1e4", 300, 4096), ("1e7", 1201, 4096), ("1e7", 3001, 1280), ("1e4", 500, 16384))
    ),
    *(  # more rows than a program may add up
        Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, (m, n), "normal"), dtypes=(torch.bfloat16,))
        for m, n in ((70000, 512),)
    ),
)  # fmt: skip

# On a GPU: sizes that fill one, and one that only its host time limits.
DEVICE_BENCH_CASES = tuple(
    Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, (m, n), "normal"), dtypes=(torch.bfloat16,))
    for m, n in ((8192, 4096), (4096, 16384), (32768, 1024), (16, 1024))
)


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"x": torch.ones(2, 8), "weight": torch.ones(8), "bias": torch.ones(8), "eps": EPS} | changed


def _no_eps() -> dict[str, Any]:
    return {"x": torch.ones(2, 8), "weight": torch.ones(8), "bias": None}


ERRORS = (
    ("x is not a tensor", _with(x=[1.0]), TypeError, "x must be a torch.Tensor"),
    ("x is an integer tensor", _with(x=torch.ones(2, 8, dtype=torch.int64)), TypeError, "x must have dtype"),
    ("x is a scalar tensor", _with(x=torch.ones(())), ValueError, "x must have at least one dimension"),
    ("weight of another length", _with(weight=torch.ones(7)), ValueError, "weight must have shape [8]"),
    ("bias of another length", _with(bias=torch.ones(2, 8)), ValueError, "bias must have shape [8]"),
    ("bias of another dtype", _with(bias=torch.ones(8).half()), TypeError, "bias must have x's dtype"),
    ("negative eps", _with(eps=-1.0), ValueError, "eps must be at least 0"),
    ("eps missing", _no_eps, TypeError, "eps"),
)

CONTRACT = Contract(
    name="layer_norm",
    family="norm",
    formula="output = (x - mean(x, -1)) / sqrt(mean((x - mean)^2, -1) + eps) * weight + bias",
    source="Ba, Kiros and Hinton, Layer Normalization, 2016 (arXiv:1607.06450)",
    outputs=("output",),
    differentiable=("x", "weight", "bias"),
    check=check,
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
