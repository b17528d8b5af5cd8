"""What quantize promises."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Cost, Request
from kernelworks.contract.arguments import Arguments, check_of, errors_of
from kernelworks.contract.cases import VALUES, draw, normal
from kernelworks.contract.packed_formats import BENCH_FORMATS, FORMATS, Blocks, Format, quantize_blocks
from kernelworks.contract.results import Result

__all__ = ["ARGUMENTS", "CONTRACT", "reference"]

ARGUMENTS: Arguments = {"x": Blocks(), "format": Format()}


def reference(x: Tensor, format: str) -> tuple[Tensor, ...]:
    return (quantize_blocks(x, format),)


def _bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (torch.zeros(outputs[0].shape, dtype=torch.float64),)  # bytes are equal or wrong


def _cost(request: Request) -> Cost:
    x, found = request.args["x"], FORMATS[request.args["format"]]
    return Cost(4.0 * x.numel, 0.0, x.nbytes, found.packed_size(x.numel))


def _dims(request: Request) -> dict[str, int]:
    x = request.args["x"]
    return {"M": math.prod(x.shape[:-1]), "K": x.shape[-1]}


# ---------------------------------------------------------------- cases


def _halves(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], step: float) -> Tensor:
    """Numbers halfway between two that a block can hold: the largest of each block is ``step`` times a power of two."""
    x = (torch.randint(-12, 12, shape, generator=generator) + 0.5) / 2
    x[..., :: shape[-1] if shape[-1] < 32 else 32] = step
    return (x if step == 127.0 else x.clamp(-step + 0.5, step)).to(dtype)


def _mixed(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], block: int) -> Tensor:
    """Blocks of every kind beside one another: of zeros, of -0, equal, with NaN or an infinity, of one tiny number."""
    x = normal(generator, dtype, *shape)
    blocks = x.view(-1, block)
    tiny = torch.finfo(dtype).smallest_normal
    for i in range(len(blocks)):
        kind, at = i % 9, (7 * i) % 32
        if kind == 1:
            blocks[i] = 0.0
        elif kind == 2:
            blocks[i] = -0.0
        elif kind == 3:
            blocks[i] = -1.5
        elif kind == 4:
            blocks[i, at] = math.nan
        elif kind == 5:
            blocks[i, at] = math.inf if i % 2 else -math.inf
        elif kind == 6:
            blocks[i] *= tiny  # scales that float16 does not hold
        elif kind == 7:
            blocks[i], blocks[i, at], blocks[i, (at + 9) % 32] = 0.25, 2.0, -2.0  # the first largest decides
        elif kind == 8:
            blocks[i, :] = 0.0
            blocks[i, at] = -tiny
    return x


def _case(name: str, make: Any, shape: tuple[int, ...], format: str, **more: Any) -> Case:
    return Case(f"{format} {name}", lambda g, d: {"x": make(g, d, shape), "format": format}, **more)


def _cases(format: str) -> tuple[Case, ...]:
    block = FORMATS[format].block

    def of(kind: str) -> Any:
        return lambda g, d, shape: draw(kind, g, d, *shape)

    if FORMATS[format].searches:  # fewer, each of which takes longer
        return (
            *(_case(f"{m}x{k * block}", of("normal"), (m, k * block), format, layouts=k == 2)
              for m, k in ((1, 1), (3, 2), (0, 2), (3, 0))),
            *(_case(kind, of(kind), (2, 3 * block), format) for kind in VALUES if kind != "normal"),
            _case("blocks of every kind", lambda g, d, s: _mixed(g, d, s, block), (2, 9 * block), format),
            _case("shape [2, 3, K]", of("normal"), (2, 3, block), format),
        )  # fmt: skip

    return (
        *(_case(f"{m}x{k * block}", of("normal"), (m, k * block), format, layouts=k == 3) for m, k in (
            (1, 1), (3, 2), (2, 3), (5, 4096 // block), (67, 5), (0, 2), (3, 0),
        )),
        *(_case(kind, of(kind), (7, 3 * block), format) for kind in VALUES if kind != "normal"),
        _case("blocks of every kind", lambda g, d, s: _mixed(g, d, s, block), (9, 9 * block), format, layouts=True),
        _case("halves of 127", lambda g, d, s: _halves(g, d, s, 127.0), (9, 128), format),
        _case("halves of 8", lambda g, d, s: _halves(g, d, s, -8.0), (9, 128), format),
        _case("shape [K]", of("normal"), (3 * block,), format),
        _case("shape [2, 3, K]", of("normal"), (2, 3, 2 * block), format, layouts=True),
    )  # fmt: skip


BENCH_CASES = tuple(
    Case(f"{format} {m}x{k}", lambda g, d, m=m, k=k, f=format: {"x": normal(g, d, m, k), "format": f},
         dtypes=(torch.float32,))
    for format in BENCH_FORMATS if not FORMATS[format].searches for m, k in ((1024, 4096), (1, 4096))
)  # fmt: skip

CONTRACT = Contract(
    name="quantize",
    family="quantization",
    formula="output = the bytes of x in format, each block with its own scale",
    source="gguf.quants.quantize (PyPI gguf), ggml/src/ggml-quants.c",
    outputs=("output",),
    results={"output": Result(torch.uint8)},
    differentiable=(),
    check=check_of(ARGUMENTS),
    reference=reference,
    bound=_bound,
    cost=_cost,
    dims=_dims,
    bucket=lambda request: {"format": request.args["format"]},
    cases=tuple(case for format in FORMATS for case in _cases(format)),
    bench_cases=BENCH_CASES,
    errors=errors_of(ARGUMENTS),
)
