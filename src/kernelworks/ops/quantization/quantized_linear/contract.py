"""What quantized_linear promises."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import INT8_BY_BLOCK, UNIT_ROUNDOFF, Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Word, check_of, errors_of
from kernelworks.contract.cases import VALUES, draw, normal
from kernelworks.contract.packed_formats import (
    BENCH_FORMATS,
    FORMATS,
    Blocks,
    Format,
    PackedBytes,
    dequantize_blocks,
    magnitude_of_blocks,
)  # fmt: skip
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.packed_blocks import KINDS, draw_packed
from kernelworks.templates.product import gamma

__all__ = ["ARGUMENTS", "CONTRACT", "reference"]

BLOCK = 32  # of the activations that are rounded to 8 bits
LEAST_SCALED = 2.0**-118  # a block of x whose largest is smaller counts as zeros where it is rounded to 8 bits
SMALLEST = 2.0**-149
FEW = 8  # rows of x that each have tuning records of their own
BF16, F32 = torch.bfloat16, torch.float32

ARGUMENTS: Arguments = {
    "x": Blocks(), "weight": PackedBytes("x"), "bias": T("N", like="x", optional=True), "format": Format(),
    "activations": Word("float32", "int8"),
}  # fmt: skip


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, format: str = "Q8_0", activations: str = "float32"
) -> tuple[Tensor, ...]:
    output = x @ dequantize_blocks(weight, format).to(x.dtype).T
    return (output if bias is None else output + bias,)


# ---------------------------------------------------------------- bounds


def _chain(terms: int) -> float:
    """One of K/8 along eight lanes and the tree that joins them, then the bias."""
    return terms / 8 + 10


def _rounded_to_8_bits(x: Tensor, weight: Tensor) -> Tensor:
    """What half a step of each block of x comes to: its largest is 127 steps. The quotient that is rounded is off by
    2^-15 of a step itself. Blocks of next to nothing are zeros."""
    blocks = x.abs().unflatten(-1, (x.shape[-1] // BLOCK, BLOCK))
    largest = blocks.amax(-1)
    lost = torch.where(largest < LEAST_SCALED, largest, largest / 254 * (1 + 2.0**-13))
    sums: Tensor = weight.abs().unflatten(-1, (x.shape[-1] // BLOCK, BLOCK)).sum(-1)
    return lost @ sums.T


def _bound(
    args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype, inner: str = "float32"
) -> tuple[Tensor, ...]:
    x, weight, bias = args["x"], dequantize_blocks(args["weight"], args["format"]).double(), args["bias"]
    magnitude, lost = x.abs() @ weight.abs().T, torch.zeros_like(outputs[0])
    if inner == INT8_BY_BLOCK and x.numel():  # products of scaled codes and what is added to those are summed apart
        sizes = magnitude_of_blocks(args["weight"], args["format"]).double()
        magnitude = x.abs() @ sizes.T + _rounded_to_8_bits(x, sizes)
        lost = _rounded_to_8_bits(x, weight)
    if bias is not None:
        magnitude = magnitude + bias.abs()
    inside = gamma(_chain(x.shape[-1])) * magnitude + (x.shape[-1] + 1) * SMALLEST + lost
    return (rounding(outputs[0], dtype) + (1 + UNIT_ROUNDOFF[dtype]) * inside,)


def _gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype,
    inner: str = "float32",
) -> dict[str, Tensor]:  # fmt: skip
    """Sums over N for x and over M for the bias, one after the other."""
    weight, n = dequantize_blocks(args["weight"], args["format"]).double(), args["weight"].shape[0]
    g = grads[0].abs().reshape(math.prod(args["x"].shape[:-1]), n)
    inside = {
        "x": gamma(n + 1) * (g @ weight.abs()).reshape(args["x"].shape) + n * SMALLEST,
        "bias": gamma(len(g) + 1) * g.sum(0),
    }
    u = UNIT_ROUNDOFF[dtype]
    return {name: rounding(found, dtype) + (1 + u) * inside[name] for name, found in gradients.items()}


# ---------------------------------------------------------------- cost


def _dims(request: Request) -> dict[str, int]:
    weight, found = request.args["weight"], FORMATS[request.args["format"]]
    flows = request.args["grad_output" if request.pass_ == "backward" else "x"]
    return {"M": math.prod(flows.shape[:-1]), "N": weight.shape[0], "K": found.unpacked_size(weight.shape[1])}


def _cost(request: Request) -> Cost:
    m, n, k = _dims(request).values()
    weight = request.args["weight"]
    if request.pass_ == "backward":
        size = request.args["grad_output"].dtype.itemsize
        return Cost((2.0 * k + 1.0) * m * n, 0.0, m * n * size + weight.nbytes, (m * k + n) * size)
    size, bias = request.args["x"].dtype.itemsize, n if request.args.get("bias") is not None else 0
    return Cost(2.0 * m * n * k + m * bias, 0.0, (m * k + bias) * size + weight.nbytes, m * n * size)


def _bucket(request: Request) -> dict[str, Any]:
    m = _dims(request)["M"]
    words = {"format": request.args["format"], "activations": request.args.get("activations", "")}
    return words | ({"M": m} if m <= FEW else {})


# ---------------------------------------------------------------- cases


def _make(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], n: int, format: str, activations: str = "float32",
    kind: str = "normal", blocks: str = "normal", bias: bool = True,
) -> dict[str, Any]:  # fmt: skip
    k = shape[-1]
    weight = draw_packed(generator, (n, k), format, blocks, max(k, 1) ** -0.5)
    made = {"x": draw(kind, generator, dtype, *shape), "weight": weight}
    return {
        **made, "bias": normal(generator, dtype, n) if bias else None, "format": format, "activations": activations,
    }  # fmt: skip


def _case(name: str, shape: tuple[int, ...], n: int, format: str, *, layouts: bool = False, **made: Any) -> Case:
    finite = made.get("blocks") != "nan scales" and made.get("kind", "normal") in ("normal", "large_mean", "constant")
    tag = " int8" if made.get("activations") == "int8" else ""
    return Case(
        f"{format}{tag} {name}", lambda g, d: _make(g, d, shape, n, format, **made), layouts=layouts, gradients=finite
    )


# Rows of x: one, as many as are streamed (8) and around that, tiles of four and around them. Columns: around tiles of
# four and panels of twelve.
SHAPES = (
    (1, 1, 32), (1, 7, 64), (1, 50, 96), (1, 64, 4096), (2, 9, 160), (3, 6, 96), (4, 13, 64), (5, 5, 128), (6, 3, 32),
    (7, 4, 96), (8, 17, 256), (9, 5, 64), (12, 25, 32), (17, 12, 96), (33, 14, 1024), (64, 24, 160), (300, 31, 64),
    (5, 300, 64), (0, 3, 32), (3, 0, 32), (3, 5, 0),
)  # fmt: skip
INT8_SHAPES = ((1, 1, 32), (1, 13, 64), (1, 64, 4096), (3, 6, 96), (9, 17, 160), (0, 3, 32), (3, 5, 0))


def _cases(format: str) -> tuple[Case, ...]:
    times = FORMATS[format].block // 32

    def sized(shapes: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
        """As many blocks as of 32 numbers, but no row above 4096."""
        return ((m, n, min(times * k, 4096)) for m, n, k in shapes)

    def int8(name: str, shape: tuple[int, ...], n: int, **more: Any) -> Case:
        return _case(name, shape, n, format, activations="int8", **more)

    few, some, five = 64 * times, 96 * times, 160 * times
    return (
        *(_case(f"M={m} N={n} K={k}", (m, k), n, format, bias=n % 2 == 1, layouts=(m, n) in ((4, 13), (12, 25)))
          for m, n, k in sized(SHAPES)),
        *(_case(kind, (1 + 10 * (i % 2), five), 21, format, kind=kind)
          for i, kind in enumerate(k for k in VALUES if k != "normal")),
        *(_case(f"{blocks} M={m}", (m, some), 17, format, blocks=blocks) for blocks in KINDS[1:] for m in (1, 11)),
        _case("shape [K]", (few,), 19, format),
        _case("shape [2, 3, 4, K]", (2, 3, 4, few), 21, format, layouts=True),
        *(int8(f"M={m} N={n} K={k}", (m, k), n, bias=n % 2 == 1, layouts=n == 13) for m, n, k in sized(INT8_SHAPES)),
        *(int8(kind, (3, five), 21, kind=kind) for kind in VALUES if kind != "normal"),
        *(int8(blocks, (3, five), 21, blocks=blocks) for blocks in KINDS[1:]),
    )  # fmt: skip


BENCHES = (
    (1, 4096, 4096, "float32", (F32, BF16)), (1, 4096, 4096, "int8", (F32,)), (8, 4096, 4096, "float32", (F32,)),
    (128, 1024, 1024, "float32", (F32,)),
)  # fmt: skip


def _bench(format: str, m: int, n: int, k: int, activations: str, dtypes: tuple[torch.dtype, ...]) -> Case:
    tag = " int8" if activations == "int8" else ""
    return Case(
        f"{format}{tag} {m}x{n}x{k}",
        lambda g, d: _make(g, d, (m, k), n, format, activations, bias=False),
        dtypes=dtypes,
    )


BENCH_CASES = tuple(_bench(format, *sizes) for format in BENCH_FORMATS for sizes in BENCHES)

CONTRACT = Contract(
    name="quantized_linear",
    family="quantization",
    formula="output = x dequantize(weight)^T + bias",
    source="torch.nn.functional.linear; ggml's mul_mat of quantized weights, ggml/src/ggml-cpu/quants.c",
    outputs=("output",),
    differentiable=("x", "bias"),
    arithmetic="products",
    check=check_of(ARGUMENTS),
    reference=reference,
    bound=_bound,
    gradient_bound=_gradient_bound,
    cost=_cost,
    dims=_dims,
    bucket=_bucket,
    cases=tuple(case for format in FORMATS for case in _cases(format)),
    bench_cases=BENCH_CASES,
    errors=errors_of(ARGUMENTS),
    permits={INT8_BY_BLOCK: ("activations", "int8")},
    contiguous=("weight",),
)
