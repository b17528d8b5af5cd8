"""What softmax promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.cases import draw, normal, row_cases
from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Request, need_dtype, need_tensor, rounding

__all__ = ["CONTRACT", "reference"]

U32 = UNIT_ROUNDOFF[torch.float32]
BLOCK = 128  # the longest chain of float32 additions, whatever the length: then sums move on to float64
LOWEST = -105.0  # e^-105 rounds to 0 in float32


def check(x: Any, dim: Any) -> None:
    need_tensor("x", x)
    need_dtype("x", x)
    if len(x.shape) < 1:
        raise ValueError("x must have at least one dimension; got a scalar tensor")
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be an int, got {type(dim).__name__}")
    if not -len(x.shape) <= dim < len(x.shape):
        raise ValueError(f"dim must be in [{-len(x.shape)}, {len(x.shape) - 1}] for x of {list(x.shape)}, got {dim}")


def reference(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    return (torch.softmax(x, dim),)


def _relative(x: Tensor, output: Tensor, dim: int) -> Tensor:
    """The relative error of an output in units of 2^-24, as the bound in README.md derives it."""
    if not x.numel():
        return torch.zeros_like(x)
    distance = (x - x.amax(dim, keepdim=True)).clamp_min(LOWEST).abs()
    mean_distance = (output * distance).sum(dim, keepdim=True)
    return 1.05 * (distance + mean_distance) + min(x.shape[dim], BLOCK) + 12.0


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    output = outputs[0]
    return (rounding(output, dtype) + U32 * _relative(args["x"], output, args["dim"]) * output + 2.0**-149,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    dim, (y,) = args["dim"], reference(args["x"], args["dim"])
    (off,) = bound(args, (y,), dtype)  # the backward starts from the output as it was rounded
    g, largest = grads[0], y + off
    total = (y * g).sum(dim, keepdim=True)
    chain = (min(y.shape[dim], BLOCK) + 8.0) * U32
    total_off = ((off + chain * largest) * g.abs()).sum(dim, keepdim=True)
    grad_x = off * (g - total).abs() + largest * (total_off + 3.0 * U32 * (g.abs() + total.abs())) + 2.0**-148
    return {"x": rounding(gradients["x"], dtype) + grad_x}


def cost(request: Request) -> Cost:
    if request.pass_ == "backward":
        y = request.args["output"]
        return Cost(4.0 * y.numel, 0.0, 2 * y.nbytes, y.nbytes)
    x = request.args["x"]
    return Cost(4.0 * x.numel, x.numel, x.nbytes, x.nbytes)


def dims(request: Request) -> dict[str, int]:
    x = request.args["output" if request.pass_ == "backward" else "x"]
    n = x.shape[request.args["dim"]]
    return {"M": x.numel // max(n, 1), "N": n}


def _make(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str, dim: int = -1) -> dict[str, Any]:
    return {"x": draw(kind, generator, dtype, *shape), "dim": dim}


def _along(shape: tuple[int, ...], dim: int, *, layouts: bool = False) -> Case:
    name = f"dim {dim} of {list(shape)}"
    return Case(name, lambda g, d: _make(g, d, shape, "normal", dim), layouts=layouts)


def _wide(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """Logits far apart: most outputs are subnormal or 0."""
    return {"x": normal(generator, dtype, 5, 515, scale=60.0), "dim": -1}


def _climbing(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """The maximum rises from piece to piece of a long row."""
    return {"x": torch.linspace(-20, 20, 20000).to(dtype).repeat(2, 1), "dim": -1}


def _late_start(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """A long row that is -inf for more than a piece, and one that is nothing else."""
    x = normal(generator, dtype, 2, 9001)
    x[0, :5000] = float("-inf")
    x[1] = float("-inf")
    return {"x": x, "dim": -1}


def _large(generator: Generator, dtype: torch.dtype, n: int) -> dict[str, Any]:
    return _make(generator, dtype, ((9 << 20) // (n * dtype.itemsize), n), "normal")


CASES = (
    *row_cases(_make),
    _along((5, 7), 0),
    _along((3, 17, 5), 1, layouts=True),
    _along((2, 1, 33), 1),
    _along((300, 70), 0, layouts=True),
    _along((7, 130, 2, 3), -3),
    _along((0, 5), 0),
    _along((4, 0, 3), 1),
    _along((2, 9001), 1),
    _along((2, 4500, 3), 1),
    # Outputs of 9 MiB: rows at cache lines, and rows that start anywhere.
    Case("large N=1088", lambda g, d: _large(g, d, 1088), gradients=False),
    Case("large N=1031", lambda g, d: _large(g, d, 1031), gradients=False),
    Case("huge, dim 0", lambda g, d: _make(g, d, (40, 19), "huge", 0), gradients=False),
    Case("nan, dim 0", lambda g, d: _make(g, d, (40, 19), "nan", 0), gradients=False),
    Case("inf, dim 0", lambda g, d: _make(g, d, (40, 19), "inf", 0), gradients=False),
    Case("far apart", _wide),
    Case("long and climbing", _climbing),
    Case("long, from -inf", _late_start, gradients=False),
)

# Rows of every way to hold them, shorter and longer than what stays in registers; columns.
DEVICE_CASES = (
    *(
        Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, (m, n), "normal"))  # type: ignore[misc]
        for m, n in (
            (4099, 128), (3001, 1024), (700, 2048), (701, 4096), (300, 8192), (301, 9999), (200, 16384), (100, 32768),
            (50, 32769), (20, 100003), (9, 131072), (3, 1000003),
        )
    ),
    Case("wide apart, 200x16384", lambda g, d: {"x": normal(g, d, 200, 16384, scale=20.0), "dim": -1}),
    _along((64, 300, 129), 1),
    _along((5000, 130), 0),
)  # fmt: skip

BENCH_CASES = tuple(
    Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, (m, n), "normal"), dtypes=dtypes)  # type: ignore[misc]
    for m, n, dtypes in (
        (2048, 4096, (torch.bfloat16,)),
        (1024, 4096, (torch.float32,)),
        (384, 128, (torch.float32,)),
        (1, 1024, (torch.float32, torch.bfloat16)),
    )
)

# On a GPU: sizes that fill one, and one that only its host time limits.
DEVICE_BENCH_CASES = tuple(
    Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, (m, n), "normal"), dtypes=(torch.bfloat16,))  # type: ignore[misc]
    for m, n in ((8192, 4096), (4096, 16384), (32768, 1024), (16, 1024))
)


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"x": torch.ones(2, 8)} | changed


ERRORS = (
    ("x is not a tensor", _with(x=[1.0]), TypeError, "x must be a torch.Tensor"),
    ("x is an integer tensor", _with(x=torch.ones(2, 8, dtype=torch.int64)), TypeError, "x must have dtype"),
    ("x is a scalar tensor", _with(x=torch.ones(())), ValueError, "x must have at least one dimension"),
    ("dim too large", _with(dim=2), ValueError, "dim must be in [-2, 1]"),
    ("dim is a float", _with(dim=1.0), TypeError, "dim must be an int"),
)

CONTRACT = Contract(
    name="softmax",
    family="reduction",
    formula="output = e^(x - max(x)) / sum(e^(x - max(x))), along dim",
    source="Blanchard, Higham and Higham, Accurately Computing the Log-Sum-Exp and Softmax Functions, 2021",
    outputs=("output",),
    differentiable=("x",),
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
