"""What rope promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import (  # fmt: skip
    UNIT_ROUNDOFF,
    Case,
    Contract,
    Cost,
    Request,
    describe,
    rounding,
)
from kernelworks.contract.arguments import Arguments, Error, Flag, check_of, errors_of
from kernelworks.contract.cases import draw, normal
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T

__all__ = ["CONTRACT", "apply_rotation", "rotate_half", "rotate_half_back", "tables_per_head"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149  # of float32
PAIRS = {False: "", True: ", interleaved"}  # how a case says it


TABLE = ("R % 2 == 0", "min(2, D) <= R <= D")
ARGUMENTS: Arguments = {
    "q": T("B H L D"), "k": T("B Hkv L D", like="q"),
    "cos": T("L R or B|1 L R", like="q", dtypes=(torch.float32,), where=TABLE),
    "sin": T("L R or B|1 L R", like="cos"),
    "interleaved": Flag(),
}  # fmt: skip
_check = check_of(ARGUMENTS)


def check(**call: Any) -> None:
    _check(**call)
    for name in ("cos", "sin"):
        if torch.is_grad_enabled() and getattr(call[name], "requires_grad", False):
            raise ValueError(f"{name} is a table and is not differentiated; pass {name}.detach()")
    if call["cos"].shape != call["sin"].shape:
        raise ValueError(f"sin must have cos's shape {describe(call['cos'])}, got {describe(call['sin'])}")


def tables_per_head(table: Tensor) -> Tensor:
    """[L, R] or [B, L, R] as it meets [B, H, L, R]."""
    return table.unsqueeze(1) if table.dim() == 3 else table


def rotate_half(x: Tensor, interleaved: bool) -> Tensor:
    """(-b, a) for every pair (a, b)."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def rotate_half_back(x: Tensor, interleaved: bool) -> Tensor:
    """(b, -a) for every pair (a, b): the transpose of ``rotate_half``."""
    return -rotate_half(x, interleaved)


def apply_rotation(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    R = cos.shape[-1]
    part = x[..., :R]
    y = part * tables_per_head(cos) + rotate_half(part, interleaved) * tables_per_head(sin)
    return torch.cat((y, x[..., R:]), -1)


def reference(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, ...]:
    return apply_rotation(q, cos, sin, interleaved), apply_rotation(k, cos, sin, interleaved)


def _terms(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """|a cos| + |b sin|, and 0 where elements are only copied."""
    R = cos.shape[-1]
    part = x[..., :R].abs()
    y = part * tables_per_head(cos).abs() + rotate_half(part, interleaved).abs() * tables_per_head(sin).abs()
    return torch.cat((y, torch.zeros_like(x[..., R:])), -1)


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    cos, sin, interleaved = args["cos"], args["sin"], args["interleaved"]
    return tuple(
        rounding(output, dtype) + 2.0 * U32 * _terms(x, cos, sin, interleaved) + SMALLEST
        for output, x in zip(outputs, (args["q"], args["k"]), strict=True)
    )


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    cos, sin, interleaved = args["cos"], args["sin"], args["interleaved"]
    found = {}
    for name, grad in zip(("q", "k"), grads, strict=True):
        R = cos.shape[-1]
        part = grad[..., :R].abs()
        swapped = rotate_half(part * tables_per_head(sin).abs(), interleaved).abs()
        terms = torch.cat((part * tables_per_head(cos).abs() + swapped, torch.zeros_like(grad[..., R:])), -1)
        found[name] = rounding(gradients[name], dtype) + 2.0 * U32 * terms + SMALLEST
    return found


def cost(request: Request) -> Cost:
    names = ("grad_q_turned", "grad_k_turned") if request.pass_ == "backward" else ("q", "k")
    q, k, cos = request.args[names[0]], request.args[names[1]], request.args["cos"]
    n, nbytes = q.numel + k.numel, q.nbytes + k.nbytes
    return Cost(3.0 * n, 0.0, nbytes + 2 * cos.nbytes, nbytes)


def dims(request: Request) -> dict[str, int]:
    names = ("grad_q_turned", "grad_k_turned") if request.pass_ == "backward" else ("q", "k")
    q, k = request.args[names[0]], request.args[names[1]]
    return {"B": q.shape[0], "H": q.shape[1], "Hkv": k.shape[1], "L": q.shape[2], "D": q.shape[3]}


def _tables(L: int, R: int, dtype: torch.dtype, interleaved: bool, start: int = 0) -> tuple[Tensor, Tensor]:
    frequencies = 1e4 ** (-torch.arange(0, R, 2, dtype=torch.float64) / R)
    angles = torch.outer(torch.arange(start, start + L, dtype=torch.float64), frequencies)
    angles = angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _make(
    generator: Generator,
    dtype: torch.dtype,
    shape: tuple[int, int, int, int, int],
    *,
    R: int | None = None,
    interleaved: bool = False,
    kind: str = "normal",
    heads_inside: bool = False,
    tables: str = "real",
    table_dtype: torch.dtype | None = None,
) -> dict[str, Any]:
    """``shape`` is B, H, Hkv, L, D. Tables are real ones, or random: then no two entries are equal."""
    B, H, Hkv, L, D = shape

    def heads(n: int) -> Tensor:
        if heads_inside:
            return draw(kind, generator, dtype, B, L, n, D).transpose(1, 2)
        return draw(kind, generator, dtype, B, n, L, D)

    q, k = heads(H), heads(Hkv)
    if tables == "real":
        cos, sin = _tables(L, R or D, table_dtype or dtype, interleaved)
    else:
        sizes = {"random": (L, R or D), "per entry": (B, L, R or D), "one entry": (1, L, R or D)}[tables]
        cos, sin = (normal(generator, table_dtype or dtype, *sizes) for _ in range(2))
    return {"q": q, "k": k, "cos": cos, "sin": sin, "interleaved": interleaved}


def _case(
    name: str, B: int, H: int, Hkv: int, L: int, D: int, *, layouts: bool = False, gradients: bool = True, **more: Any
) -> Case:
    shape = (B, H, Hkv, L, D)
    return Case(name, lambda g, d: _make(g, d, shape, **more), layouts=layouts, gradients=gradients)


CASES = (
    *(
        _case(f"D={D}{PAIRS[pairs]}", 2, 3, 1, 5, D, interleaved=pairs, tables="random", layouts=D == 34)
        for D in (2, 4, 14, 16, 18, 30, 32, 34, 62, 64, 66, 128, 130, 256)
        for pairs in (False, True)
    ),
    *(_case(f"L={L}", 1, 2, 1, L, 64) for L in (0, 1, 7, 255, 257, 521)),
    *(
        _case(f"partial R={R}{PAIRS[pairs]}", 2, 2, 1, 3, 80, R=R, interleaved=pairs, tables="random")
        for R in (2, 20, 32, 64)
        for pairs in (False, True)
    ),
    *(
        _case(f"{kind}{PAIRS[pairs]}", 1, 2, 2, 9, 66, kind=kind, interleaved=pairs,
              gradients=kind in ("large_mean", "tiny", "constant"))
        for kind in ("large_mean", "tiny", "huge", "subnormal", "constant", "zeros", "inf", "negative_inf", "nan")
        for pairs in (False, True)
    ),
    _case("a table for each entry of the batch", 3, 2, 1, 7, 64, tables="per entry", layouts=True),
    _case("one table of three dimensions", 3, 2, 1, 7, 64, tables="one entry"),
    _case("heads inside positions", 2, 8, 2, 33, 128, heads_inside=True),
    _case("float32 tables", 1, 4, 2, 17, 64, table_dtype=torch.float32, tables="random"),
    _case("many heads", 1, 32, 8, 40, 128),
    _case("no batch", 0, 2, 1, 4, 8),
)  # fmt: skip

BENCH_CASES = tuple(
    Case(f"{H}+{Hkv} heads L{L} D{D}", lambda g, d, s=(1, H, Hkv, L, D): _make(g, d, s), dtypes=dtypes)
    for H, Hkv, L, D, dtypes in (
        (16, 8, 512, 128, (torch.float32, torch.bfloat16)),
        (16, 8, 1, 128, (torch.bfloat16,)),
    )
)

# On a GPU: sizes that fill one, and one that only its host time limits.
DEVICE_BENCH_CASES = tuple(
    Case(f"{H}+{Hkv} heads L{L} D{D}", lambda g, d, s=(1, H, Hkv, L, D): _make(g, d, s), dtypes=(torch.bfloat16,))
    for H, Hkv, L, D in ((32, 8, 8192, 128), (32, 8, 1, 128))
)


DEVICE_CASES = tuple(
    _case(
        f"32+8 heads, L=1531{', heads inside positions' if inside else ''}{PAIRS[pairs]}",
        2, 32, 8, 1531, 128, heads_inside=inside, interleaved=pairs,
    )
    for inside in (False, True)
    for pairs in (False, True)
)  # fmt: skip


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    usual = {
        "q": torch.ones(1, 2, 3, 8), "k": torch.ones(1, 1, 3, 8), "cos": torch.ones(3, 8), "sin": torch.zeros(3, 8),
    }  # fmt: skip
    return lambda: usual | changed


ERRORS: tuple[Error, ...] = (
    *errors_of(ARGUMENTS),
    ("sin of a batch, cos of none", _with(sin=torch.ones(1, 3, 8)), ValueError, "sin must have cos's shape"),
    ("a table that asks for a gradient", _with(cos=torch.ones(3, 8, requires_grad=True)), ValueError, "cos is a table"),
)

CONTRACT = Contract(
    name="rope",
    family="position",
    formula="a' = a cos_a - b sin_a, b' = b cos_b + a sin_b for every pair (a, b) of a head; the rest is copied",
    source="Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021 (arXiv:2104.09864)",
    outputs=("q_turned", "k_turned"),
    results={"k_turned": Result("k")},
    differentiable=("q", "k"),
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
