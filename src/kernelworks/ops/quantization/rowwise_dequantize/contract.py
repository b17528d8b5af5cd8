"""What rowwise_dequantize promises."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Word, check_of, errors_of
from kernelworks.contract.cases import normal
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T

__all__ = ["ARGUMENTS", "CONTRACT", "DTYPES", "EIGHT", "NAMES", "reference"]

F32, BF16, INT8, EIGHT = torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ARGUMENTS: Arguments = {
    "codes": T("... K", dtypes=(INT8, EIGHT), contiguous=True), "scale": T("...", dtypes=(F32,)),
    "dtype": Word(*DTYPES),
}  # fmt: skip


def reference(codes: Tensor, scale: Tensor, dtype: str = "float32") -> tuple[Tensor, ...]:
    """A product in float32, which is what the codes stand for."""
    return ((codes.float() * scale.float().unsqueeze(-1)).double(),)


def _bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (torch.zeros_like(outputs[0]) if dtype == F32 else rounding(outputs[0], dtype),)


def _cost(request: Request) -> Cost:
    codes = request.args["codes"]
    rows = math.prod(codes.shape[:-1])
    return Cost(
        float(codes.numel), 0.0, codes.nbytes + 4.0 * rows, codes.numel * DTYPES[request.args["dtype"]].itemsize
    )


def _dims(request: Request) -> dict[str, int]:
    codes = request.args["codes"]
    return {"M": math.prod(codes.shape[:-1]), "K": codes.shape[-1]}


# ---------------------------------------------------------------- cases

EVERY_CODE, ODD_SCALES = "every code, nan", "odd scales, nan and inf"


def _make(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], of: torch.dtype, kind: str = ""
) -> dict[str, Any]:
    count = math.prod(shape)
    if kind:  # both NaN of float8 among them
        codes = torch.arange(count) % 256
    else:
        codes = torch.randint(0, 256, (count,), generator=generator)
        codes = codes if of is INT8 else codes - (codes % 128 == 127).long()
    scale = normal(generator, F32, *shape[:-1]).abs() * 2.0**-6
    if kind == ODD_SCALES:
        flat = scale.view(-1)
        for i, odd in enumerate((0.0, 1e-40, 2.0**-149, 3e38, math.inf, math.nan, 1e-44)):
            flat[i::8] = odd
    if kind and dtype == torch.float16:
        scale = torch.where(scale > 1e30, 60000.0, scale)  # whose products are infinite as those of 3e38 are
    return {"codes": codes.to(torch.uint8).view(of).reshape(shape), "scale": scale, "dtype": NAMES[dtype]}


def _case(name: str, shape: tuple[int, ...], of: torch.dtype, kind: str = "", **more: Any) -> Case:
    tag = "int8" if of is INT8 else "fp8"
    return Case(f"{tag} {name}", lambda g, d: _make(g, d, shape, of, kind), **more)


def _cases(of: torch.dtype) -> tuple[Case, ...]:
    return (
        *(_case(f"{m}x{k}", (m, k), of) for m, k in (
            (1, 1), (3, 7), (2, 8), (3, 15), (2, 16), (3, 17), (2, 127), (2, 1031), (3, 4096), (300, 20), (0, 5),
            (3, 0), (0, 0),
        )),
        *(_case(f"{kind} x{k}", (17, k), of, kind) for kind in (EVERY_CODE, ODD_SCALES) for k in (33, 257)),
        _case("shape [K]", (65,), of), _case("shape [2, 3, K]", (2, 3, 37), of, layouts=True),
    )  # fmt: skip


def _timed(*sizes: tuple[int, int], dtypes: tuple[torch.dtype, ...]) -> tuple[Case, ...]:
    return tuple(_case(f"{m}x{k}", (m, k), of, dtypes=dtypes) for of in (INT8, EIGHT) for m, k in sizes)


CONTRACT = Contract(
    name="rowwise_dequantize", family="quantization", formula="output = codes times the scale of their row",
    source="Dettmers, Lewis, Belkada and Zettlemoyer, LLM.int8(), 2022 (scales by row)",
    outputs=("output",),
    results={"output": Result("dtype", shape=lambda args: tuple(args["codes"].shape))},
    differentiable=(), check=check_of(ARGUMENTS), reference=reference, bound=_bound, cost=_cost, dims=_dims,
    bucket=lambda request: {"codes": str(request.args["codes"].dtype), "dtype": request.args["dtype"]},
    cases=tuple(case for of in (INT8, EIGHT) for case in _cases(of)),
    bench_cases=_timed((1024, 4096), (1, 4096), dtypes=(F32, BF16)),
    device_cases=_timed((5003, 200), (130, 20_011), dtypes=(F32, BF16)),
    device_bench_cases=_timed((8192, 8192), dtypes=(BF16,)), errors=errors_of(ARGUMENTS), contiguous=("codes",),
)  # fmt: skip
