"""What gelu promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.cases import LENGTHS, draw, normal, row_cases
from kernelworks.contract import (
    UNIT_ROUNDOFF,
    Case,
    Contract,
    Cost,
    Request,
    need_dtype,
    need_tensor,
    rounding,
)  # fmt: skip

__all__ = ["CONTRACT", "derivative", "reference"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149  # of float32: what an exponential in the subnormals may be off by
FORMS = ("none", "tanh")
TWICE_ROOT_TWO_OVER_PI = 2.0 * math.sqrt(2.0 / math.pi)
SATURATED = 20.0  # beyond it both distribution functions are 0 or 1 in float32


def check(x: Any, approximate: Any) -> None:
    need_tensor("x", x)
    need_dtype("x", x)
    if not isinstance(approximate, str):
        raise TypeError(f"approximate must be a str, got {type(approximate).__name__}")
    if approximate not in FORMS:
        raise ValueError(f"approximate must be 'none' or 'tanh', got {approximate!r}")


def _twice_u(x: Tensor) -> Tensor:
    return TWICE_ROOT_TWO_OVER_PI * (x + 0.044715 * x * x * x)


def _share(x: Tensor, approximate: str) -> Tensor:
    """What x is multiplied by, kept from cancelling where it is near 0."""
    return torch.sigmoid(_twice_u(x)) if approximate == "tanh" else 0.5 * torch.special.erfc(-x / math.sqrt(2.0))


def _change(x: Tensor, approximate: str) -> Tensor:
    """x times the derivative of the share."""
    if approximate == "tanh":
        slope = TWICE_ROOT_TWO_OVER_PI * (1.0 + 3.0 * 0.044715 * x * x)
        return torch.sigmoid(_twice_u(x)) * torch.sigmoid(-_twice_u(x)) * slope * x
    return x * torch.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def reference(x: Tensor, approximate: str) -> tuple[Tensor, ...]:
    return (x * _share(x, approximate),)


def derivative(x: Tensor, approximate: str) -> Tensor:
    return _share(x, approximate) + _change(x, approximate)


def _share_error(x: Tensor, approximate: str) -> Tensor:
    """How far the float32 share may be off. README.md derives the two."""
    share = _share(x, approximate)
    if approximate == "tanh":
        u2 = _twice_u(x)
        return U32 * (8.0 * share + 4.0 * u2.abs() * share * torch.sigmoid(-u2)) + SMALLEST
    return U32 * (16.0 * share + 2.5 * x * x * _share(-x.abs(), approximate)) + SMALLEST


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    x, approximate = args["x"], args["approximate"]
    return (rounding(outputs[0], dtype) + x.abs() * _share_error(x, approximate) + SMALLEST,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    x, approximate = args["x"], args["approximate"]
    share, change = _share(x, approximate), _change(x, approximate).abs()
    # The two terms cancel near x = -0.75, so each enters with its magnitude.
    if approximate == "tanh":
        relative = 22.0 + 8.0 * _twice_u(x).abs()
        slope = TWICE_ROOT_TWO_OVER_PI * (1.0 + 3.0 * 0.044715 * SATURATED**2)
    else:
        relative, slope = 10.0 + 2.5 * x * x, 1.0
    errors = _share_error(x, approximate) + U32 * (relative * change + 2.0 * share)
    errors = errors + SMALLEST * slope * x.abs().clamp(max=SATURATED)
    return {"x": rounding(gradients["x"], dtype) + grads[0].abs() * errors + SMALLEST}


def cost(request: Request) -> Cost:
    x = request.args["x"]
    flop = 20.0 if request.args["approximate"] == "tanh" else 28.0
    if request.pass_ == "backward":
        return Cost((flop + 8.0) * x.numel, x.numel, 2 * x.nbytes, x.nbytes)
    return Cost(flop * x.numel, x.numel, x.nbytes, x.nbytes)


def dims(request: Request) -> dict[str, int]:
    x = request.args["x"]
    columns = x.shape[-1] if x.shape else 1
    return {"M": x.numel // max(columns, 1), "N": columns}


def _maker(approximate: str) -> Callable[[Generator, torch.dtype, tuple[int, ...], str], dict[str, Any]]:
    return lambda g, d, shape, kind: {"x": draw(kind, g, d, *shape), "approximate": approximate}


def _sweep(approximate: str, dtype: torch.dtype, reach: float) -> dict[str, Any]:
    return {"x": torch.linspace(-reach, reach, 40_009).to(dtype), "approximate": approximate}


def _cases(approximate: str, lengths: tuple[int, ...]) -> tuple[Case, ...]:
    rows = row_cases(_maker(approximate), lengths=lengths)
    return (
        *(replace(case, name=f"{approximate}, {case.name}") for case in rows),
        Case(f"{approximate}, both tails", lambda g, d: _sweep(approximate, d, 16.0)),
        Case(f"{approximate}, around 0", lambda g, d: _sweep(approximate, d, 1e-2)),
        Case(
            f"{approximate}, scalar",
            lambda g, d: {"x": torch.tensor(-0.75, dtype=d), "approximate": approximate},
        ),
        Case(
            f"{approximate}, past the caches",  # large enough for non-temporal stores, at an odd length
            lambda g, d: {"x": normal(g, d, 1031, 2039), "approximate": approximate},
            dtypes=(torch.float32,),
            gradients=False,
        ),
    )


def _every_value(approximate: str, dtype: torch.dtype) -> dict[str, Any]:
    """All finite numbers of a 16-bit type."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return {"x": torch.where(x.isfinite(), x, 1.0), "approximate": approximate}


BENCH_CASES = tuple(
    Case(
        f"{approximate} {m}x{n}",
        lambda g, d, m=m, n=n, a=approximate: {"x": normal(g, d, m, n), "approximate": a},  # type: ignore[misc]
        dtypes=(dtype,),
    )
    for m, n, approximate, dtype in (
        (1024, 4096, "tanh", torch.float32),
        (2048, 4096, "tanh", torch.bfloat16),
        (64, 1536, "tanh", torch.float32),
        (4096, 1536, "none", torch.float32),
        (2048, 4096, "none", torch.bfloat16),
    )
)

# On a GPU: sizes that fill one, and one that only its host time limits.
DEVICE_BENCH_CASES = tuple(
    Case(
        f"{approximate} {m}x{n}",
        lambda g, d, m=m, n=n, a=approximate: {"x": normal(g, d, m, n), "approximate": a},  # type: ignore[misc]
        dtypes=(torch.bfloat16,),
    )
    for m, n, approximate in ((4096, 16384, "tanh"), (4096, 16384, "none"), (16, 1024, "tanh"))
)


DEVICE_CASES = tuple(
    case
    for approximate in FORMS
    for case in (
        Case(
            f"{approximate}, 2053x8192",
            lambda g, d, a=approximate: _maker(a)(g, d, (2053, 8192), "normal"),  # type: ignore[misc]
            dtypes=(torch.bfloat16, torch.float32),
        ),
        Case(
            f"{approximate}, several tiles of rows",
            lambda g, d, a=approximate: _maker(a)(g, d, (2, 75, 5000), "normal"),  # type: ignore[misc]
            layouts=True,
        ),
        Case(
            f"{approximate}, every value",
            lambda g, d, a=approximate: _every_value(a, d),  # type: ignore[misc]
            dtypes=(torch.bfloat16, torch.float16),
        ),
    )
)


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"x": torch.ones(2, 8)} | changed


ERRORS = (
    ("x is not a tensor", _with(x=1.0), TypeError, "x must be a torch.Tensor"),
    ("x is an integer tensor", _with(x=torch.ones(2, dtype=torch.int64)), TypeError, "x must have dtype"),
    ("a form that does not exist", _with(approximate="erf"), ValueError, "approximate must be 'none' or 'tanh'"),
    ("approximate is not a string", _with(approximate=True), TypeError, "approximate must be a str"),
)

CONTRACT = Contract(
    name="gelu",
    family="activation",
    elementary="tanh",
    formula="output = x Phi(x), or x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))",
    source="Hendrycks and Gimpel, Gaussian Error Linear Units, 2016 (arXiv:1606.08415)",
    outputs=("output",),
    differentiable=("x",),
    check=check,
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    cases=(*_cases("tanh", LENGTHS), *_cases("none", (0, 1, 15, 16, 17, 33, 67))),
    bench_cases=BENCH_CASES,
    device_cases=DEVICE_CASES,
    device_bench_cases=DEVICE_BENCH_CASES,
    errors=ERRORS,
)
