"""What rowwise_linear promises."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import FLOATS, UNIT_ROUNDOFF, Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, check_of, errors_of
from kernelworks.contract.cases import VALUES, draw, normal
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.product import gamma

__all__ = ["ARGUMENTS", "CONTRACT", "EIGHT", "reference"]

F32, BF16, INT8, EIGHT = torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn
SMALLEST = 2.0**-149
FEW = 8  # rows of x that each have tuning records of their own
ARGUMENTS: Arguments = {
    "x": T("... K"), "weight": T("N K", dtypes=(INT8, EIGHT), contiguous=True), "scale": T("N", dtypes=(F32,)),
    "bias": T("N", like="x", optional=True),
}  # fmt: skip


def reference(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    output = (x @ weight.to(x.dtype).T) * scale.to(x.dtype)
    return (output if bias is None else output + bias,)


# ---------------------------------------------------------------- bounds


def _bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """A sum of K products along eight lanes and the tree that joins them, the scale, the bias."""
    x, scale, bias = args["x"].double(), args["scale"].double().abs(), args["bias"]
    terms = (x.abs() @ args["weight"].double().abs().T) * scale
    terms = terms if bias is None else terms + bias.abs()
    k = x.shape[-1]
    inside = gamma(k / 8 + 12) * terms + (k * scale + 2) * SMALLEST
    return (rounding(outputs[0], dtype) + (1 + UNIT_ROUNDOFF[dtype]) * inside,)


def _gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Sums over N for x and over M for the bias, one after the other."""
    weight, n = args["weight"].double().abs() * args["scale"].double().abs().unsqueeze(1), args["weight"].shape[0]
    g = grads[0].abs().reshape(math.prod(args["x"].shape[:-1]), n)
    inside = {
        "x": gamma(n + 3) * (g @ weight).reshape(args["x"].shape) + n * SMALLEST,
        "bias": gamma(len(g) + 1) * g.sum(0),
    }
    u = UNIT_ROUNDOFF[dtype]
    return {name: rounding(found, dtype) + (1 + u) * inside[name] for name, found in gradients.items()}


# ---------------------------------------------------------------- cost


def _dims(request: Request) -> dict[str, int]:
    weight = request.args["weight"]
    flows = request.args["grad_output" if request.pass_ == "backward" else "x"]
    return {"M": math.prod(flows.shape[:-1]), "N": weight.shape[0], "K": weight.shape[1]}


def _cost(request: Request) -> Cost:
    m, n, k = _dims(request).values()
    weight = request.args["weight"].nbytes + 4 * n
    if request.pass_ == "backward":
        size = request.args["grad_output"].dtype.itemsize
        return Cost((2.0 * k + 2.0) * m * n, 0.0, m * n * size + weight, (m * k + n) * size)
    size, bias = request.args["x"].dtype.itemsize, n if request.args.get("bias") is not None else 0
    return Cost(2.0 * m * n * k + m * (n + bias), 0.0, (m * k + bias) * size + weight, m * n * size)


def _bucket(request: Request) -> dict[str, Any]:
    m = _dims(request)["M"]
    return {"weight": str(request.args["weight"].dtype)} | ({"M": m} if m <= FEW else {})


# ---------------------------------------------------------------- cases

ALL_CODES, ZEROS, ODD_SCALES = "every code", "zeros", "odd scales"


def _make(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], n: int, of: torch.dtype, kind: str = "normal",
    weights: str = "normal", bias: bool = True,
) -> dict[str, Any]:  # fmt: skip
    k = shape[-1]
    if weights == ALL_CODES:  # of float8 all but both NaN
        codes = torch.arange(n * k).reshape(n, k) % (256 if of is INT8 else 254)
        codes = codes if of is INT8 else codes + (codes >= 127)
        weight = codes.to(torch.uint8).view(of)
    else:
        drawn = torch.randint(-127, 128, (n, k), generator=generator)
        weight = (drawn if of is INT8 else drawn * 3.5).float().mul(weights != ZEROS).to(of)
    scale = normal(generator, F32, n).abs() * (max(k, 1) ** -0.5 / 64)
    if weights == ODD_SCALES:
        scale[::3], scale[1::3] = 0.0, 1e-40
    made = {"x": draw(kind, generator, dtype, *shape), "weight": weight, "scale": scale}
    return {**made, "bias": normal(generator, dtype, n) if bias else None}


def _case(name: str, shape: tuple[int, ...], n: int, of: torch.dtype, *, layouts: bool = False, **made: Any) -> Case:
    finite = made.get("kind", "normal") in ("normal", "large_mean", "constant")
    tag = "int8" if of is INT8 else "fp8"
    return Case(f"{tag} {name}", lambda g, d: _make(g, d, shape, n, of, **made), layouts=layouts, gradients=finite)


SHAPES = (
    (1, 1, 1), (1, 7, 15), (1, 50, 16), (1, 33, 17), (1, 16, 4096), (2, 9, 160), (3, 6, 96), (4, 13, 64), (5, 5, 127),
    (8, 17, 256), (9, 5, 63), (17, 12, 96), (33, 14, 1024), (70, 31, 64), (0, 3, 32), (3, 0, 32), (3, 5, 0),
)  # fmt: skip
KINDS = tuple(kind for kind in VALUES if kind not in ("normal", "huge"))


def _cases(of: torch.dtype) -> tuple[Case, ...]:
    return (
        *(_case(f"M={m} N={n} K={k}", (m, k), n, of, bias=n % 2 == 1, layouts=(m, n) == (4, 13)) for m, n, k in SHAPES),
        *(_case(kind, (1 + 10 * (i % 2), 100), 21, of, kind=kind) for i, kind in enumerate(KINDS)),
        *(_case(f"{weights} M={m}", (m, 96), 17, of, weights=weights)
          for weights in (ALL_CODES, ZEROS, ODD_SCALES) for m in (1, 11)),
        _case("shape [K]", (64,), 19, of), _case("shape [2, 3, 4, K]", (2, 3, 4, 40), 21, of, layouts=True),
    )  # fmt: skip


def _timed(of: torch.dtype, *sizes: tuple[int, int, int], dtypes: tuple[torch.dtype, ...] = (F32,)) -> tuple[Case, ...]:
    tag = "int8" if of is INT8 else "fp8"
    return tuple(
        Case(f"{tag} {m}x{n}x{k}", lambda g, d, s=(m, k), n=n: _make(g, d, s, n, of, bias=False), dtypes=dtypes)
        for m, n, k in sizes
    )


CONTRACT = Contract(
    name="rowwise_linear", family="quantization", formula="output = (x weight^T) scale + bias",
    source="Dettmers, Lewis, Belkada and Zettlemoyer, LLM.int8(), 2022 (scales by row); torch.nn.functional.linear",
    outputs=("output",), differentiable=("x", "bias"), arithmetic="products", contiguous=("weight",),
    results={"output": Result("x", shape=lambda args: (*args["x"].shape[:-1], args["weight"].shape[0]))},
    check=check_of(ARGUMENTS), reference=reference, bound=_bound, gradient_bound=_gradient_bound, cost=_cost,
    dims=_dims, bucket=_bucket, cases=tuple(case for of in (INT8, EIGHT) for case in _cases(of)),
    bench_cases=tuple(
        c for of in (INT8, EIGHT) for c in _timed(of, (1, 4096, 4096), (8, 4096, 4096), (64, 1024, 1024))
    ),
    device_cases=tuple(c for of in (INT8, EIGHT) for c in _timed(of, (1, 1031, 2049), (16, 515, 1000), dtypes=FLOATS)),
    device_bench_cases=tuple(
        c for of in (INT8, EIGHT) for c in _timed(of, (1, 8192, 8192), (8, 8192, 8192), dtypes=(BF16,))
    ),
    errors=errors_of(ARGUMENTS),
)  # fmt: skip
