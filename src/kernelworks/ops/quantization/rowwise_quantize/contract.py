"""What rowwise_quantize promises."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import FLOATS, Case, Contract, Cost, Request
from kernelworks.contract.arguments import Arguments, Word, check_of, errors_of
from kernelworks.contract.cases import VALUES, draw, normal
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T

__all__ = ["ARGUMENTS", "CONTRACT", "MOST", "quantize_rows", "reference"]

F32, BF16, INT8 = torch.float32, torch.bfloat16, torch.int8
MOST = {"int8": 127.0, "float8_e4m3fn": 448.0}
ARGUMENTS: Arguments = {"x": T("... K"), "dtype": Word(*MOST)}
NAN_CODE = 127  # of float8


def quantize_rows(x: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """Codes as bytes, and scales: in float32, whose quotients every kernel rounds alike. By a number, torch multiplies
    by its reciprocal on a GPU: by a tensor it divides."""
    x = x.float()
    largest = x.abs().amax(-1, keepdim=True) if x.shape[-1] else x.new_zeros((*x.shape[:-1], 1))
    scale = largest / torch.full_like(largest, MOST[dtype])
    quotient = torch.where(scale == 0.0, 0.0, x / scale).clamp(-MOST[dtype], MOST[dtype])
    if dtype == "int8":
        return quotient.nan_to_num(0.0).round().to(INT8), scale.squeeze(-1)
    codes = quotient.nan_to_num(0.0).to(torch.float8_e4m3fn).view(INT8)
    return torch.where(quotient.isnan(), torch.full_like(codes, NAN_CODE), codes), scale.squeeze(-1)


def reference(x: Tensor, dtype: str) -> tuple[Tensor, ...]:
    return quantize_rows(x, dtype)


def _bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(output.shape, dtype=torch.float64) for output in outputs)  # bits are equal or wrong


def _cost(request: Request) -> Cost:
    x = request.args["x"]
    return Cost(3.0 * x.numel, 0.0, x.nbytes, x.numel + 4.0 * math.prod(x.shape[:-1]))


def _dims(request: Request) -> dict[str, int]:
    x = request.args["x"]
    return {"M": math.prod(x.shape[:-1]), "K": x.shape[-1]}


# ---------------------------------------------------------------- cases


def _halves(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], most: float) -> Tensor:
    """Numbers halfway between two codes, of both signs: the largest of each row makes a scale of a power of two."""
    x = torch.randint(-120, 120, shape, generator=generator) + 0.5
    if most == MOST["float8_e4m3fn"]:  # midway between neighbours of three bits, and float8's subnormals
        x = (torch.randint(8, 15, shape, generator=generator) + 0.5) * 2.0 ** torch.randint(
            -9, 5, shape, generator=generator
        )
        x[..., 1::3] = (torch.randint(-8, 8, x[..., 1::3].shape, generator=generator) + 0.5) * 2.0**-9
    x[..., 0] = most
    return (x * 2.0**-3).to(dtype)


def _mixed(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Rows of every kind beside one another: zeros, -0, equal, NaN, infinities, subnormal, one tiny number, huge."""
    x, info = normal(generator, dtype, *shape), torch.finfo(dtype)
    for i in range(len(x)):
        kind, at = i % 10, (7 * i) % shape[-1]
        if kind == 1:
            x[i] = 0.0
        elif kind == 2:
            x[i] = -0.0
        elif kind == 3:
            x[i] = -1.5
        elif kind == 4:
            x[i, at] = math.nan
        elif kind == 5:
            x[i, at] = math.inf if i % 20 == 5 else -math.inf
        elif kind == 6:
            x[i] *= info.smallest_normal  # a scale that is subnormal
        elif kind == 7:
            x[i] = 0.0
            x[i, at] = -info.tiny * info.eps  # the smallest there is: its scale is 0
        elif kind == 8:
            x[i] = x[i].sign() * info.max
        elif kind == 9:
            x[i] = torch.arange(shape[-1]).remainder(200).mul(info.tiny * info.eps)  # scales of a few units
    return x


def _case(name: str, make: Any, shape: tuple[int, ...], of: str, **more: Any) -> Case:
    return Case(f"{of} {name}", lambda g, d: {"x": make(g, d, shape), "dtype": of}, **more)


def _cases(of: str) -> tuple[Case, ...]:
    def kind_of(kind: str) -> Any:
        return lambda g, d, shape: draw(kind, g, d, *shape)

    return (
        *(_case(f"{m}x{k}", kind_of("normal"), (m, k), of, layouts=(m, k) == (4, 33)) for m, k in (
            (1, 1), (3, 7), (2, 8), (3, 15), (2, 16), (3, 17), (4, 33), (2, 127), (2, 1031), (3, 4096), (300, 20),
            (0, 5), (3, 0), (0, 0),
        )),
        *(_case(kind, kind_of(kind), (7, 67), of) for kind in VALUES if kind != "normal"),
        *(_case(f"rows of every kind, nan and inf, {k}", _mixed, (20, k), of, layouts=k == 19) for k in (19, 259)),
        _case("halves", lambda g, d, s: _halves(g, d, s, MOST[of]), (9, 131), of),
        _case("shape [K]", kind_of("normal"), (65,), of),
        _case("shape [2, 3, K]", kind_of("normal"), (2, 3, 37), of, layouts=True),
    )  # fmt: skip


def _timed(*sizes: tuple[int, int], dtypes: tuple[torch.dtype, ...] = (F32,)) -> tuple[Case, ...]:
    return tuple(
        _case(f"{m}x{k}", lambda g, d, s: normal(g, d, *s), (m, k), of, dtypes=dtypes) for of in MOST for m, k in sizes
    )


CONTRACT = Contract(
    name="rowwise_quantize", family="quantization",
    formula="scale = max |x| of a row / 127 (float8: 448), codes = x / scale, rounded to the nearest code",
    source="Dettmers, Lewis, Belkada and Zettlemoyer, LLM.int8(), 2022 (scales by row); Micikevicius et al., FP8 "
    "Formats for Deep Learning, 2022",
    outputs=("codes", "scale"),
    results={
        "codes": Result(INT8, shape=lambda args: tuple(args["x"].shape)),
        "scale": Result(F32, shape=lambda args: tuple(args["x"].shape[:-1])),
    },
    differentiable=(), check=check_of(ARGUMENTS), reference=reference, bound=_bound, cost=_cost, dims=_dims,
    bucket=lambda request: {"dtype": request.args["dtype"]},
    cases=tuple(case for of in MOST for case in _cases(of)), bench_cases=_timed((1024, 4096), (1, 4096)),
    device_cases=_timed((5003, 200), (130, 20_011), dtypes=FLOATS),
    device_bench_cases=_timed((8192, 8192), dtypes=(BF16,)), errors=errors_of(ARGUMENTS),
)  # fmt: skip
