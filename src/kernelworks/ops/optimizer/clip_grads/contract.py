"""What clip_grads_ promises: one number for a whole list, and the list scaled by what follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Mutant, Request, need_64_bits, rounding
from kernelworks.contract.arguments import Arguments, Flag, check_of, errors_of
from kernelworks.contract.cases import LENGTHS, draw
from kernelworks.contract.lists import Tensors
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import GivenArguments, Wrong

__all__ = ["ARGUMENTS", "CONTRACT", "EPS", "clip_step", "scale_of"]

U32 = UNIT_ROUNDOFF[torch.float32]
F32 = torch.float32
EPS = 1e-6  # torch's, added to the norm
KINDS = ("large_mean", "tiny", "huge", "subnormal", "constant", "zeros", "inf", "negative_inf", "nan")


@dataclass(frozen=True)
class Limit:
    """How large a norm may be: a number of at least 0, or infinity."""

    schema = "float"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a float, got {type(value).__name__}")
        need_64_bits(name, value)
        if not value >= 0.0:
            raise ValueError(f"{name} must be at least 0, got {value}")

    def right(self, given: GivenArguments) -> Any:
        return 1.0

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a string", "1", TypeError, f"{name} must be a float"
        yield f"{name} is True", True, TypeError, f"{name} must be a float"
        yield f"{name} is NaN", math.nan, ValueError, f"{name} must be at least 0"
        yield f"negative {name}", -1.0, ValueError, f"{name} must be at least 0"
        yield f"{name} of 65 bits", 2**63, ValueError, f"{name} must fit into 64 bits"

    def __str__(self) -> str:
        return "a number of at least 0, or infinity"


@dataclass(frozen=True)
class NormType:
    """The order of a norm: 2, or infinity for the largest magnitude."""

    schema = "float"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a float, got {type(value).__name__}")
        if value not in (2, math.inf):
            raise ValueError(f"{name} must be 2 or inf, got {value}")

    def right(self, given: GivenArguments) -> Any:
        return 2.0

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a string", "inf", TypeError, f"{name} must be a float"
        yield f"{name} is 1", 1.0, ValueError, f"{name} must be 2 or inf"
        yield f"{name} is NaN", math.nan, ValueError, f"{name} must be 2 or inf"

    def __str__(self) -> str:
        return "2 or inf"


ARGUMENTS: Arguments = {
    "grads": Tensors(written="a", one_device=True),
    "max_norm": Limit(),
    "norm_type": NormType(),
    "error_if_nonfinite": Flag(),
}
USUAL = {"max_norm": 1.0, "norm_type": 2.0, "error_if_nonfinite": False}


def total_norm(grads: Sequence[Tensor], norm_type: float) -> Tensor:
    """The norm of all elements as one vector, in float64."""
    wide = [g.double().reshape(-1) for g in grads if g.numel()]
    if not wide:
        return torch.zeros((), dtype=torch.float64, device=grads[0].device if grads else None)
    total: Tensor = torch.linalg.vector_norm(torch.cat(wide), norm_type)
    return total


def scale_of(total: Tensor, max_norm: float) -> Tensor:
    """What gradients of this norm are multiplied by."""
    return (max_norm / (total + EPS)).clamp(max=1.0)


def clip_step(grads: Sequence[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool) -> tuple[Any, ...]:
    """The norm and the scaled gradients: the definition."""
    total = total_norm(grads, norm_type)
    scale = scale_of(total, max_norm)
    return total, tuple(g.double() * scale for g in grads)


def _bound(
    args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype, *, given: dict[str, Any]
) -> tuple[Any, ...]:
    """Sums of squares are float64's: what is left are the roundings of norm, scale and product."""
    total, *scaled = outputs
    error = U32 * total.abs()
    return rounding(total, F32) + error, tuple(
        rounding(s, g.dtype) + 4.0 * U32 * s.abs() + 2.0**-149 for s, g in zip(scaled, given["grads"], strict=True)
    )


def _cost(request: Request) -> Cost:
    """As where the norm is above the limit: gradients are read twice, for their norm is of all of them."""
    n = sum(t.numel for t in request.args["grads"])
    moved = sum(t.nbytes for t in request.args["grads"])
    return Cost(3.0 * n, 0.0, 2.0 * moved, moved + 4.0)


def _dims(request: Request) -> dict[str, int]:
    grads = request.args["grads"]
    return {"tensors": len(grads), "elements": sum(t.numel for t in grads)}


def _make(
    generator: Generator, dtype: torch.dtype, shapes: Sequence[tuple[int, ...]], *, kind: str = "normal",
    share: float | None = None, **numbers: Any,
) -> dict[str, Any]:  # fmt: skip
    """``share``: the limit as a share of the norm that the gradients have."""
    grads = [draw(kind, generator, dtype, *shape) for shape in shapes]
    made = {"grads": grads, **USUAL, **numbers}
    if share is not None:
        made["max_norm"] = float(total_norm(grads, made["norm_type"])) * share
    return made


def _case(label: str, *shapes: tuple[int, ...], layouts: bool = False, **how: Any) -> Case:
    return Case(label, lambda g, d: _make(g, d, shapes, **how), layouts=layouts)


SHAPES = ((67,), (5, 40), (3,))
CASES = (
    *(_case(f"N={n}", (n,), (3, n), layouts=n in (17, 128)) for n in LENGTHS),
    *(_case(kind, (33,), (5, 103), kind=kind) for kind in KINDS),
    *(_case(f"{kind}, largest", (33,), (5, 103), kind=kind, norm_type=math.inf) for kind in KINDS),
    _case("no tensors"),
    _case("no elements", (0,), (2, 0)),
    _case("three tensors", (7,), (4, 9, 5), (2, 3, 4, 5), layouts=True),
    _case("some without elements", (0,), (5, 3), (2, 0, 3), (41,)),
    _case("half", *SHAPES, share=0.5),
    _case("just above", *SHAPES, share=0.99),
    _case("just below", *SHAPES, share=1.01),
    _case("far below", *SHAPES, share=100.0),
    _case("largest, half", *SHAPES, share=0.5, norm_type=math.inf),
    _case("largest, below", *SHAPES, share=2.0, norm_type=math.inf),
    _case("no limit", *SHAPES, max_norm=math.inf),
    _case("limit 0", *SHAPES, max_norm=0.0),
    _case("small norm", *SHAPES, kind="tiny", max_norm=1e-7),
    _case("checked", *SHAPES, error_if_nonfinite=True),
    _case("norm beyond float16", (1031, 67), (700, 41), kind="large_mean"),
    _case("many tensors", *((i // 3 % 7, 9) for i in range(42)), (1031,)),
)
DEVICE_CASES = (
    _case("hundreds of tensors", *((16 * i, 40) for i in range(1, 300)), (7,), (3, 5)),
    _case("large tensors", (2048, 1024), (4099, 513)),
)


def _bench(sizes: dict[str, tuple[tuple[int, ...], ...]]) -> tuple[Case, ...]:
    return tuple(
        Case(f"{name}, {what}", lambda g, d, s=shapes, m=share: _make(g, d, s, share=m), dtypes=(F32,))
        for name, shapes in sizes.items()
        for what, share in (("clipped", 0.999999), ("not clipped", 2.0))
    )


CONTRACT = Contract(
    name="clip_grads_",
    family="optimizer",
    formula="total = ||grads||, grads <- grads min(max_norm / (total + 1e-6), 1)",
    source="Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, ICML 2013 "
    "(arXiv:1211.5063); torch.nn.utils.clip_grad_norm_",
    outputs=("total_norm", "grads"),
    results={"total_norm": Result(F32)},
    differentiable=(),
    check=check_of(ARGUMENTS),
    reference=clip_step,
    bound=_bound,
    cost=_cost,
    dims=_dims,
    cases=CASES,
    bench_cases=_bench({"1 x 2048x2048": ((2048, 2048),), "16 x 384x384": ((384, 384),) * 16}),
    device_cases=DEVICE_CASES,
    device_bench_cases=_bench({"16 x 4096x4096": ((4096, 4096),) * 16, "64 x 1024x1024": ((1024, 1024),) * 64}),
    mutates=("grads",),
    errors=errors_of(ARGUMENTS),
)


def mutant(name: str, change: Callable[..., Any], why: str) -> Mutant:
    """One whose norm and scaled gradients are those of ``change(grads, max_norm, norm_type)``."""

    def run(grads: Sequence[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool) -> Tensor:
        total, scaled = change(grads, max_norm, norm_type)
        for g, value in zip(grads, scaled, strict=True):
            g.copy_(value)
        norm: Tensor = total.float()
        return norm

    return Mutant(name, run, why)
