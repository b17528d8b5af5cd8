"""What silu_mul promises."""

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

__all__ = ["CONTRACT", "reference"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149  # of float32: what a subnormal on the way may be off by
OVERFLOW = 2.0**-128  # 1 / e^-gate where e^-gate leaves float32: what the output may be off by, times |gate up|
SATURATED = 105.0  # beyond it e^-|gate| is 0 in float32


def check(gate: Any, up: Any) -> None:
    need_tensor("gate", gate)
    need_dtype("gate", gate)
    need_tensor("up", up)
    need_same("up", up, "gate", gate)
    if tuple(up.shape) != tuple(gate.shape):
        raise ValueError(f"up must have gate's shape {list(gate.shape)}, got {list(up.shape)}")


def reference(gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    return (gate * torch.sigmoid(gate) * up,)


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    gate, up, output = args["gate"], args["up"], outputs[0]
    relative = 8.0 + 2.0 * gate.abs().clamp(max=SATURATED) * torch.sigmoid(-gate)
    # silu may itself be subnormal, and is rounded before up scales it.
    tail = SMALLEST * (1.0 + up.abs()) + OVERFLOW * up.abs() * gate.abs().clamp(max=SATURATED)
    return (rounding(output, dtype) + U32 * relative * output.abs() + tail,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    gate, up, grad = args["gate"], args["up"], grads[0]
    s, below = torch.sigmoid(gate), torch.sigmoid(-gate)
    steep = 2.0 * gate.abs().clamp(max=SATURATED)
    tail = SMALLEST * (1.0 + gate.abs().clamp(max=SATURATED))
    # The two terms of silu' cancel near gate = -1.28, so each enters with its magnitude.
    slope = U32 * ((10.0 + steep * below) * s + (18.0 + 2.0 * steep) * gate.abs() * s * below) + tail
    value = U32 * (10.0 + steep * below) * (gate * s).abs() + tail
    return {
        "gate": rounding(gradients["gate"], dtype) + (grad * up).abs() * slope + 2.0 * SMALLEST,
        "up": rounding(gradients["up"], dtype) + grad.abs() * value + SMALLEST,
    }


def cost(request: Request) -> Cost:
    gate = request.args["gate"]
    if request.pass_ == "backward":
        return Cost(26.0 * gate.numel, gate.numel, 3 * gate.nbytes, 2 * gate.nbytes)
    return Cost(20.0 * gate.numel, gate.numel, 2 * gate.nbytes, gate.nbytes)


def dims(request: Request) -> dict[str, int]:
    gate = request.args["gate"]
    columns = gate.shape[-1] if gate.shape else 1
    return {"M": gate.numel // max(columns, 1), "N": columns}


def _make(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> dict[str, Any]:
    return {"gate": draw(kind, generator, dtype, *shape), "up": normal(generator, dtype, *shape)}


def _sweep(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    gate = torch.linspace(-110.0, 110.0, 40_009).to(dtype)
    return {"gate": gate, "up": normal(generator, dtype, gate.numel())}


CASES = (
    *row_cases(_make),
    Case("both tails", _sweep),
    Case("scalar", lambda g, d: {"gate": torch.tensor(-1.25, dtype=d), "up": torch.tensor(3.0, dtype=d)}),
    Case("tiny silu, huge up", lambda g, d: _sweep(g, d) | {"up": draw("huge", g, d, 40_009)}, gradients=False),
    Case(
        "past the caches",  # large enough for non-temporal stores, at an odd length
        lambda g, d: _make(g, d, (1031, 2039 * 4 // d.itemsize), "normal"),
        dtypes=(torch.float32, torch.bfloat16),
        gradients=False,
    ),
)

BENCH_CASES = tuple(
    Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, (m, n), "normal"), dtypes=dtypes)  # type: ignore[misc]
    for m, n, dtypes in (
        (1024, 4096, (torch.float32,)),
        (2048, 4096, (torch.bfloat16,)),
        (1, 3072, (torch.bfloat16,)),
    )
)

# On a GPU: sizes that fill one, and one that only its host time limits.
DEVICE_BENCH_CASES = tuple(
    Case(f"{m}x{n}", lambda g, d, m=m, n=n: _make(g, d, (m, n), "normal"), dtypes=(torch.bfloat16,))  # type: ignore[misc]
    for m, n in ((4096, 16384), (8192, 4096), (16, 1024))
)


DEVICE_CASES = (
    Case("2053x8192", lambda g, d: _make(g, d, (2053, 8192), "normal"), dtypes=(torch.bfloat16, torch.float32)),
    Case("several tiles of rows", lambda g, d: _make(g, d, (2, 75, 5000), "normal"), layouts=True),
)


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"gate": torch.ones(2, 8), "up": torch.ones(2, 8)} | changed


ERRORS = (
    ("gate is not a tensor", _with(gate=1.0), TypeError, "gate must be a torch.Tensor"),
    ("gate is an integer tensor", _with(gate=torch.ones(2, dtype=torch.int32)), TypeError, "gate must have dtype"),
    ("up of another shape", _with(up=torch.ones(8)), ValueError, "up must have gate's shape [2, 8]"),
    ("up of another dtype", _with(up=torch.ones(2, 8).half()), TypeError, "up must have gate's dtype"),
    ("up is None", _with(up=None), TypeError, "up must be a torch.Tensor"),
)

CONTRACT = Contract(
    name="silu_mul",
    family="activation",
    formula="output = gate sigmoid(gate) up",
    source="Shazeer, GLU Variants Improve Transformer, 2020 (arXiv:2002.05202)",
    outputs=("output",),
    differentiable=("gate", "up"),
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
