"""What linear promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.cases import draw, normal
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

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST_NORMAL = 2.0**-126  # of float32 and of bfloat16
SMALLEST = 2.0**-149  # of float32's subnormals


def check(x: Any, weight: Any, bias: Any = None) -> None:
    need_tensor("x", x)
    need_dtype("x", x)
    if len(x.shape) < 1:
        raise ValueError("x must have at least one dimension, the one that is multiplied; got a scalar tensor")
    need_tensor("weight", weight)
    need_same("weight", weight, "x", x)
    if len(weight.shape) != 2 or weight.shape[1] != x.shape[-1]:
        raise ValueError(f"weight must have shape [N, {x.shape[-1]}], K x's last dimension; got {list(weight.shape)}")
    need_tensor("bias", bias, optional=True)
    if bias is not None:
        need_same("bias", bias, "x", x)
        if tuple(bias.shape) != (weight.shape[0],):
            raise ValueError(f"bias must have shape [{weight.shape[0]}], weight's first; got {list(bias.shape)}")


def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    output = x @ weight.T
    return (output if bias is None else output + bias,)


def _relative(terms: int) -> float:
    """gamma_n = n u / (1 - n u) for a sum of ``terms`` exact products: n is the most roundings that one of them meets.

    A chain of up to 384 in a block and one per block, or one of K/8 along eight lanes and the tree that joins them,
    whichever the row and the shape make of it; then the bias.
    """
    n = min(terms, terms / 8 + 384) + 10
    return n * U32 / (1 - n * U32)


def _flushed(x: Tensor, weight: Tensor) -> Tensor:
    """What a bfloat16 dot-product instruction loses: it reads subnormals as zero and writes them as zero."""
    small_x, small_weight = (t.abs() * (t.abs() < SMALLEST_NORMAL) for t in (x, weight))
    lost = small_x @ weight.nan_to_num(0.0, 0.0, 0.0).abs().T + x.nan_to_num(0.0, 0.0, 0.0).abs() @ small_weight.T
    return lost + 2 * x.shape[-1] * SMALLEST_NORMAL


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    x, weight, bias = args["x"], args["weight"], args["bias"]
    magnitude = x.abs() @ weight.abs().T
    if bias is not None:
        magnitude = magnitude + bias.abs()
    inside = _relative(x.shape[-1]) * magnitude + (x.shape[-1] + 1) * SMALLEST
    if dtype == torch.bfloat16:
        inside = inside + _flushed(x, weight)
    # What is rounded to the dtype is the sum as it came out of float32, so its error is rounded with it.
    return (rounding(outputs[0], dtype) + (1 + UNIT_ROUNDOFF[dtype]) * inside,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    x, weight, grad = args["x"], args["weight"], grads[0]
    k, n = x.shape[-1], weight.shape[0]
    m = x.numel() // k if k else grad.numel() // max(n, 1)
    g, rows = grad.abs().reshape(m, n), x.abs().reshape(m, k)
    inside = {
        "x": _relative(n) * (g @ weight.abs()).reshape(x.shape) + n * SMALLEST,
        "weight": _relative(m) * (g.T @ rows) + m * SMALLEST,
        "bias": (m + 1) * U32 / (1 - (m + 1) * U32) * g.sum(0),
    }
    return {
        name: rounding(found, dtype) + (1 + UNIT_ROUNDOFF[dtype]) * inside[name] for name, found in gradients.items()
    }


def cost(request: Request) -> Cost:
    x, weight = request.args["x"], request.args["weight"]
    d = dims(request)
    m, n, k = d["M"], d["N"], d["K"]
    size = x.dtype.itemsize
    if request.pass_ == "backward":
        flop = (4.0 * k + 1.0) * m * n
        return Cost(flop, 0.0, (m * n + m * k + n * k) * size, (m * k + n * k + n) * size)
    bias = n if request.args.get("bias") is not None else 0
    return Cost(2.0 * m * n * k + m * bias, 0.0, x.nbytes + weight.nbytes + bias * size, m * n * size)


def dims(request: Request) -> dict[str, int]:
    x, weight = request.args["x"], request.args["weight"]
    rows = 1
    for size in x.shape[:-1]:
        rows *= size
    return {"M": rows, "N": weight.shape[0], "K": weight.shape[1]}


FEW = 64  # rows up to which the number itself says which kernel is quickest: each is another blocking


def bucket(request: Request) -> dict[str, Any]:
    """Few rows one by one; and how N and K are aligned, which tiles and vector loads depend on."""
    d = dims(request)
    aligned = next((step for step in (64, 8) if d["N"] % step == 0 and d["K"] % step == 0), 1)
    return {"aligned": aligned} | ({"M": d["M"]} if d["M"] <= FEW else {})


def _make(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], n: int, kind: str = "normal", bias: bool = True
) -> dict[str, Any]:
    k = shape[-1]
    return {
        "x": draw(kind, generator, dtype, *shape),
        "weight": normal(generator, dtype, n, k, scale=max(k, 1) ** -0.5),
        "bias": normal(generator, dtype, n) if bias else None,
    }


# Rows of x: one, a register tile and around it, the most that stream takes (32) and around it, several panels of 14.
# Columns and K: around the tiles of 16 and 32, around the block of 384, primes, 0 and 1.
SHAPES = (
    (1, 1, 1), (1, 1, 4096), (1, 7, 33), (1, 31, 129), (2, 6, 15), (3, 13, 64), (4, 100, 17), (5, 33, 31),
    (7, 64, 509), (13, 5, 8), (14, 17, 1031), (16, 50, 257), (17, 12, 385), (31, 33, 32), (32, 32, 512), (33, 33, 33),
    (34, 35, 16), (40, 64, 383), (47, 95, 1031), (64, 5, 100), (70, 1, 67), (70, 65, 1), (100, 67, 769), (257, 129, 65),
    (0, 3, 4), (3, 0, 4), (3, 5, 0), (40, 50, 0),
)  # fmt: skip

# Values of x by kind; the weight is normal. Derivatives are compared where they do not leave float32's normal range.
KINDS = {
    "large_mean": True, "tiny": True, "huge": False, "subnormal": False, "constant": True, "zeros": True, "inf": False,
    "negative_inf": False, "nan": False,
}  # fmt: skip


def _shape_case(m: int, n: int, k: int) -> Case:
    layouts = (m, n) in ((1, 31), (5, 33), (40, 64))
    return Case(f"M={m} N={n} K={k}", lambda g, d: _make(g, d, (m, k), n, bias=k % 2 == 1), layouts=layouts)


def _kind_case(kind: str, gradients: bool, m: int, n: int, k: int) -> Case:
    return Case(f"{kind} M={m} K={k}", lambda g, d: _make(g, d, (m, k), n, kind), gradients=gradients)


def _subnormal_weight(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    made = _make(generator, dtype, (3, 77), 9)
    return made | {"weight": draw("subnormal", generator, dtype, 9, 77)}


CASES = (
    *(_shape_case(*shape) for shape in SHAPES),
    *(_kind_case(kind, ok, *s) for kind, ok in KINDS.items() for s in ((3, 14, 67), (37, 35, 257))),
    Case("weight subnormal", _subnormal_weight, gradients=False),
    Case("shape [K]", lambda g, d: _make(g, d, (65,), 19)),
    Case("shape [2, 3, 4, K]", lambda g, d: _make(g, d, (2, 3, 4, 40), 21), layouts=True),
    Case("shape [3, 20, K], no bias", lambda g, d: _make(g, d, (3, 20, 40), 21, bias=False), layouts=True),
)


def _bench_case(m: int, n: int, k: int, dtypes: tuple[torch.dtype, ...]) -> Case:
    return Case(f"{m}x{n}x{k}", lambda g, d: _make(g, d, (m, k), n, bias=False), dtypes=dtypes)


BENCH_CASES = tuple(
    _bench_case(*shape, dtypes)
    for shape, dtypes in (
        ((1, 4096, 4096), (torch.bfloat16, torch.float32)),
        ((1, 14336, 4096), (torch.bfloat16,)),
        ((16, 4096, 4096), (torch.float32,)),
        ((128, 1536, 384), (torch.float32,)),
        ((512, 4096, 4096), (torch.bfloat16, torch.float32)),
        ((128, 1024, 1024), (torch.float16,)),
    )
)

# On a GPU: sizes that fill one, and one that only its host time limits.
DEVICE_BENCH_CASES = tuple(
    _bench_case(*shape, (torch.bfloat16,))
    for shape in (
        (1, 4096, 4096),
        (1, 14336, 4096),
        (1, 28672, 8192),
        (16, 4096, 4096),
        (64, 14336, 4096),
        (2048, 2048, 2048),
        (4096, 4096, 4096),
        (8192, 8192, 8192),
    )
)


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"x": torch.ones(2, 8), "weight": torch.ones(3, 8), "bias": torch.ones(3)} | changed


# On a GPU: each kernel of the row sm90 (1, 2, 8 and 16 rows, and tiles) and each configuration of the Triton row, with
# K that is and is not a multiple of a step, more tiles than multiprocessors, tiles that stick out on either side, and
# last turns whose tiles are cut along K: into two and three parts, and two turns at once.
DEVICE_SHAPES = (
    (1, 4096, 4096), (1, 14337, 4096), (1, 1000, 1032), (1, 28672, 8192), (1, 1001, 14344), (2, 4099, 2056),
    (2, 521, 8200), (3, 77, 520), (4, 523, 8200), (8, 4096, 4096), (8, 1001, 264),
    (5, 520, 4616), (6, 6152, 4104), (7, 264, 6152), (11, 1000, 1032), (16, 14336, 4096),
    (17, 8, 8), (129, 72, 64), (300, 520, 264), (1000, 4096, 1032),
    (2048, 2048, 2048), (2049, 8200, 520), (6000, 4096, 1024),
    (2300, 2824, 2056), (2560, 2560, 2048), (4096, 4352, 1032),
)  # fmt: skip
DEVICE_CASES = (
    *(
        Case(f"M={m} N={n} K={k}", lambda g, d, m=m, n=n, k=k: _make(g, d, (m, k), n, bias=k % 16 == 8))
        for m, n, k in DEVICE_SHAPES
    ),
    Case("strided M=5 N=264 K=1032", lambda g, d: _make(g, d, (5, 1032), 264), layouts=True),
    Case("strided M=200 N=264 K=136", lambda g, d: _make(g, d, (200, 136), 264), layouts=True),
    Case("shape [3, 50, K]", lambda g, d: _make(g, d, (3, 50, 136), 264), layouts=True),
    *(_kind_case(kind, ok, *s) for kind, ok in KINDS.items() for s in ((1, 24, 520), (7, 24, 520), (140, 264, 520))),
)

ERRORS = (
    ("x is not a tensor", _with(x=[1.0]), TypeError, "x must be a torch.Tensor"),
    ("x is an integer tensor", _with(x=torch.ones(2, 8, dtype=torch.int64)), TypeError, "x must have dtype"),
    ("x is a scalar", _with(x=torch.tensor(1.0)), ValueError, "x must have at least one dimension"),
    ("weight of another K", _with(weight=torch.ones(3, 7)), ValueError, "weight must have shape [N, 8]"),
    ("weight of one dimension", _with(weight=torch.ones(8)), ValueError, "weight must have shape [N, 8]"),
    ("weight of another dtype", _with(weight=torch.ones(3, 8).half()), TypeError, "weight must have x's dtype"),
    ("bias of another length", _with(bias=torch.ones(8)), ValueError, "bias must have shape [3]"),
    ("bias is a number", _with(bias=1.0), TypeError, "bias must be a torch.Tensor or None"),
)

CONTRACT = Contract(
    name="linear",
    family="linear",
    arithmetic="products",
    formula="output = x weight^T + bias",
    source="torch.nn.functional.linear",
    outputs=("output",),
    differentiable=("x", "weight", "bias"),
    check=check,
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    bucket=bucket,
    cases=CASES,
    bench_cases=BENCH_CASES,
    device_cases=DEVICE_CASES,
    device_bench_cases=DEVICE_BENCH_CASES,
    errors=ERRORS,
)
