"""What dequantize promises."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Word, check_of, errors_of
from kernelworks.contract.packed_formats import BENCH_FORMATS, FORMATS, Format, PackedBytes, dequantize_blocks
from kernelworks.contract.results import Result
from kernelworks.templates.packed_blocks import KINDS, draw_packed

__all__ = ["ARGUMENTS", "CONTRACT", "DTYPES", "NAMES", "reference"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ARGUMENTS: Arguments = {"packed": PackedBytes(), "format": Format(), "dtype": Word(*DTYPES)}


def reference(packed: Tensor, format: str, dtype: str = "float32") -> tuple[Tensor, ...]:
    return (dequantize_blocks(packed, format).double(),)


def _bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """float32 holds the numbers that a format defines; another dtype is one rounding of them."""
    if dtype == torch.float32:
        return (torch.zeros_like(outputs[0]),)
    return (rounding(outputs[0], dtype),)


def _size(request: Request) -> int:
    packed: int = FORMATS[request.args["format"]].unpacked_size(request.args["packed"].numel)
    return packed


def _cost(request: Request) -> Cost:
    size = _size(request)
    return Cost(float(size), 0.0, request.args["packed"].nbytes, size * DTYPES[request.args["dtype"]].itemsize)


def _dims(request: Request) -> dict[str, int]:
    packed, found = request.args["packed"], FORMATS[request.args["format"]]
    return {"M": math.prod(packed.shape[:-1]), "K": found.unpacked_size(packed.shape[-1])}


def _make(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], format: str, kind: str = "normal"
) -> dict[str, Any]:
    return {"packed": draw_packed(generator, shape, format, kind), "format": format, "dtype": NAMES[dtype]}


def _case(name: str, shape: tuple[int, ...], format: str, kind: str = "normal", **more: Any) -> Case:
    return Case(f"{format} {name}", lambda g, d: _make(g, d, shape, format, kind), **more)


def _cases(format: str) -> tuple[Case, ...]:
    block = FORMATS[format].block
    return (
        *(_case(f"{m}x{blocks * block}", (m, blocks * block), format) for m, blocks in (
            (1, 1), (3, 2), (2, 3), (5, 4096 // block), (67, 5), (0, 2), (3, 0),
        )),
        *(_case(kind, (7, 3 * block), format, kind) for kind in KINDS[1:]),
        _case("shape [bytes]", (3 * block,), format),
        _case("shape [2, 3, bytes]", (2, 3, 2 * block), format),
    )  # fmt: skip


def _bench_cases(*sizes: tuple[int, int]) -> tuple[Case, ...]:
    return tuple(
        Case(f"{format} {m}x{k}", lambda g, d, m=m, k=k, f=format: _make(g, d, (m, k), f),
             dtypes=(torch.float32, torch.bfloat16))
        for format in BENCH_FORMATS for m, k in sizes
    )  # fmt: skip


CONTRACT = Contract(
    name="dequantize",
    family="quantization",
    formula="output = the numbers whose bytes in format are packed",
    source="gguf.quants.dequantize (PyPI gguf), ggml/src/ggml-quants.c",
    outputs=("output",),
    results={"output": Result("dtype")},
    differentiable=(),
    check=check_of(ARGUMENTS),
    reference=reference,
    bound=_bound,
    cost=_cost,
    dims=_dims,
    bucket=lambda request: {"format": request.args["format"], "dtype": request.args["dtype"]},
    cases=tuple(case for format in FORMATS for case in _cases(format)),
    bench_cases=_bench_cases((1024, 4096), (1, 4096)),
    device_bench_cases=_bench_cases((8192, 8192)),
    errors=errors_of(ARGUMENTS),
    contiguous=("packed",),
)
