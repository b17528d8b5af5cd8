"""What rms_norm promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.cases import draw, normal, row_cases
from kernelworks.contract import (
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

__all__ = ["CONTRACT"]

EPS = 1e-6
U32 = UNIT_ROUNDOFF[torch.float32]


def check(x: Any, weight: Any, eps: Any, residual: Any = None) -> None:
    need_tensor("x", x)
    need_dtype("x", x)
    if len(x.shape) < 1:
        raise ValueError("x must have at least one dimension, the one that is normalised; got a scalar tensor")
    need_tensor("weight", weight, optional=True)
    if weight is not None:
        need_same("weight", weight, "x", x)
        if tuple(weight.shape) != (x.shape[-1],):
            raise ValueError(f"weight must have shape [{x.shape[-1]}], x's last dimension; got {list(weight.shape)}")
    if isinstance(eps, bool) or not isinstance(eps, (int, float)):
        raise TypeError(f"eps must be a float, got {type(eps).__name__}")
    if not eps >= 0.0:
        raise ValueError(f"eps must be at least 0, got {eps}")
    need_tensor("residual", residual, optional=True)
    if residual is not None:
        need_same("residual", residual, "x", x)
        if tuple(residual.shape) != tuple(x.shape):
            raise ValueError(f"residual must have x's shape {list(x.shape)}, got {list(residual.shape)}")


def reference(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None = None) -> tuple[Tensor, ...]:
    sum_ = x if residual is None else x + residual
    output = sum_ * torch.rsqrt(sum_.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        output = output * weight
    return (output,) if residual is None else (output, sum_)


def _roundings(n: int) -> float:
    """How many float32 roundings enter 1/rms, halved by the square root: a chain of N/32 sums (four accumulators of
    eight lanes, the narrowest we have), the tree that joins them, the division, the square root."""
    return n / 64 + 8


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    x, output = args["x"], outputs[0]
    # x + residual rounds once in float32, relative to the sum; then the scale; then two products.
    relative = (_roundings(x.shape[-1]) + 4) * U32
    bounds = [rounding(output, dtype) + relative * output.abs()]
    if len(outputs) == 2:
        bounds.append(rounding(outputs[1], dtype) + U32 * outputs[1].abs())
    return tuple(bounds)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    x, eps = args["x"], args["eps"]
    x = x if args.get("residual") is None else x + args["residual"]
    weight = torch.ones(x.shape[-1], dtype=torch.float64) if args["weight"] is None else args["weight"]
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    # The two terms of grad_x may cancel, so each enters with its magnitude; so do the terms of the mean. The chain is
    # that of one accumulator here.
    n = x.shape[-1]
    relative = (n / 8 + 16) * U32
    terms = r * (
        (grads[0] * weight).abs() + x.abs() * r.square() * (grads[0] * weight * x).abs().mean(-1, keepdim=True)
    )
    added = grads[1].abs() if len(grads) == 2 else 0.0
    grad_x = relative * (terms + added)
    found = {"x": grad_x, "residual": grad_x}
    if args["weight"] is not None:
        over_rows = tuple(range(x.dim() - 1))
        magnitude = (grads[0] * x * r).abs()
        found["weight"] = relative * (magnitude.sum(over_rows) if over_rows else magnitude)
    return {name: rounding(g, dtype) + found[name] for name, g in gradients.items()}


def cost(request: Request) -> Cost:
    x = request.args["x"]
    n, rows = (x.shape[-1], x.numel // max(x.shape[-1], 1))
    size = x.dtype.itemsize
    weight = n * size if request.args["weight"] is not None else 0
    residual = 1 if request.args.get("residual") is not None else 0
    if request.pass_ == "backward":
        return Cost(11.0 * x.numel, rows, (2 + 2 * residual) * x.nbytes + weight, x.nbytes + weight)
    return Cost((4.0 + residual) * x.numel, rows, (1 + residual) * x.nbytes + weight, (1 + residual) * x.nbytes)


def dims(request: Request) -> dict[str, int]:
    x = request.args["x"]
    return {"M": x.numel // max(x.shape[-1], 1), "N": x.shape[-1]}


def _make(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> dict[str, Any]:
    x, weight = draw(kind, generator, dtype, *shape), normal(generator, dtype, shape[-1])
    return {"x": x, "weight": weight, "eps": EPS, "residual": None}


def _with_residual(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
    return _make(generator, dtype, shape, "normal") | {"residual": normal(generator, dtype, *shape)}


def _without_eps(generator: Generator, dtype: torch.dtype, kind: str) -> dict[str, Any]:
    return _make(generator, dtype, (4, 100), kind) | {"eps": 0.0}


CASES = (
    *row_cases(_make),
    *(
        Case(f"residual N={n}", lambda g, d, n=n: _with_residual(g, d, (5, n)), layouts=n == 33)
        for n in (1, 16, 33, 1031)
    ),
    Case("no weight", lambda g, d: _make(g, d, (5, 77), "normal") | {"weight": None}),
    Case("large eps", lambda g, d: _make(g, d, (5, 77), "normal") | {"eps": 1.0}),
    Case("eps 0, tiny", lambda g, d: _without_eps(g, d, "tiny"), gradients=False),
    Case("eps 0, huge", lambda g, d: _without_eps(g, d, "huge"), gradients=False),
)

BENCH_CASES = tuple(
    Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, (m, n), "normal"), dtypes=dtypes)
    for m, n, dtypes in (
        (2048, 4096, (torch.bfloat16,)),
        (1024, 4096, (torch.float32,)),
        (128, 1024, (torch.bfloat16,)),
        (1, 1024, (torch.float32, torch.bfloat16)),
    )
)

# For every configuration of the tuning table: enough rows for more than one tile a program, whole and broken chunks.
DEVICE_CASES = (
    *(
        Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, (m, n), "normal"))
        for m, n in (
            (40000, 64), (4099, 128), (5003, 768), (3001, 1024), (1500, 2048), (1501, 3072), (701, 4096), (700, 5120),
            (600, 6144), (300, 8192), (301, 12000), (300, 16384), (40, 20000), (40, 32768), (20, 65536),
        )
    ),
    *(
        Case(f"residual {m}x{n}", lambda g, d, m=m, n=n: _with_residual(g, d, (m, n)))
        for m, n in ((4099, 65), (3001, 1024), (701, 4096), (300, 12000), (200, 16384), (40, 32768))
    ),
)  # fmt: skip

# On a GPU: sizes that fill one, and one that only its host time limits.
DEVICE_BENCH_CASES = tuple(
    Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, (m, n), "normal"), dtypes=(torch.bfloat16,))
    for m, n in ((8192, 4096), (4096, 16384), (32768, 1024), (16, 1024))
)


def _with(changed: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Good arguments but for what is changed; made when asked for, so that importing the room runs no tensor op."""
    return lambda: {"x": torch.ones(2, 8), "weight": torch.ones(8), "eps": EPS} | changed()


def _no_eps() -> dict[str, Any]:
    return {"x": torch.ones(2, 8), "weight": torch.ones(8)}


ERRORS = (
    ("x is not a tensor", _with(lambda: {"x": [1.0]}), TypeError, "x must be a torch.Tensor"),
    (
        "x is an integer tensor",
        _with(lambda: {"x": torch.ones(2, 8, dtype=torch.int64)}),
        TypeError,
        "x must have dtype",
    ),
    ("weight of another length", _with(lambda: {"weight": torch.ones(7)}), ValueError, "weight must have shape [8]"),
    (
        "weight of another dtype",
        _with(lambda: {"weight": torch.ones(8).half()}),
        TypeError,
        "weight must have x's dtype",
    ),
    ("negative eps", _with(lambda: {"eps": -1.0}), ValueError, "eps must be at least 0"),
    ("eps missing", _no_eps, TypeError, "eps"),
    (
        "residual of another shape",
        _with(lambda: {"residual": torch.ones(2, 9)}),
        ValueError,
        "residual must have x's shape",
    ),
)

CONTRACT = Contract(
    name="rms_norm",
    family="norm",
    formula="output = s / sqrt(mean(s^2, -1) + eps) * weight, with s = x + residual",
    source="Zhang and Sennrich, Root Mean Square Layer Normalization, 2019 (arXiv:1910.07467)",
    outputs=("output", "sum"),
    differentiable=("x", "weight", "residual"),
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
