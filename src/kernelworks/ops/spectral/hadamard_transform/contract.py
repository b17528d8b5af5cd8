"""What hadamard_transform promises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from kernelworks.build.sharing import choose_threads
from kernelworks.contract import FLOATS, Case, Request
from kernelworks.contract.arguments import Number
from kernelworks.contract.cases import draw
from kernelworks.contract.row_layout import lines_along
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.transform import Transform, line_cases

__all__ = ["TEMPLATE", "padded_length", "transform_lines"]

NANOSECONDS = 0.1  # about what a number takes at each doubling of the length, one thread of a CPU
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 100, 127, 128, 256, 509, 1024, 2048, 4096, 8192)


def padded_length(args: Mapping[str, Any]) -> int:
    """The power of two that a line is filled to."""
    N: int = args["x"].shape[-1]
    return 1 << (N - 1).bit_length()


def transform_lines(x: Tensor, scale: float) -> Tensor:
    """The definition, in float32 at least."""
    N, P, lead = x.shape[-1], padded_length({"x": x}), x.shape[:-1]
    y = F.pad(x if x.dtype == torch.float64 else x.float(), (0, P - N))
    for level in range(P.bit_length() - 1):
        a, b = y.reshape(*lead, P >> (level + 1), 2, 1 << level).unbind(-2)
        y = torch.stack((a + b, a - b), -2).reshape(*lead, P)
    return (y[..., :N] * scale).to(x.dtype)


def _terms(x: Tensor, scale: float) -> Tensor:
    return abs(scale) * x.abs().sum(-1, keepdim=True).expand(x.shape)


def _launch(kernel: Any, out: Tensor, x: Tensor, scale: float) -> Tensor:
    if out.numel():
        where, P = lines_along(x, -1), padded_length({"x": x})
        run, threads = choose_threads(kernel, NANOSECONDS * where.outer * P * P.bit_length())
        run(out, where.tensor, where.outer, where.n, where.outer_stride, P, scale, threads)
    return out


def _decline(most: int, request: Request) -> str | None:
    small = not request.args or padded_length(request.args) <= most
    return None if small else f"takes lines of up to {most} numbers, got {request.args['x'].shape[-1]}"


def _make(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str = "normal", *, scale: float = 1.0
) -> dict[str, Any]:
    values = draw(kind, generator, dtype, *shape)
    shrink = 256 if kind == "huge" and dtype == torch.float16 else 1  # else its sums are no numbers
    return {"x": values / shrink, "scale": scale}


def _case(name: str, shape: tuple[int, ...], *, gradients: bool = True, **said: Any) -> Case:
    return Case(name, lambda g, d: _make(g, d, shape, **said), gradients=gradients)


def _sized(*sizes: tuple[int, int]) -> tuple[Case, ...]:
    return tuple(_case(f"{m}x{n}", (m, n), scale=1 / math.sqrt(n)) for m, n in sizes)


TEMPLATE = Transform(
    op_package=__file__,
    formula="output_i = scale * sum over j of (-1)^popcount(i & j) x_j of the last dimension, filled with zeros to a "
    "power of two; the output is cut",
    source="Hadamard 1893; Dao-AILab/fast-hadamard-transform",
    arguments={"x": T("... N", where=("1 <= N",)), "scale": Number(least=None, finite=True)},
    definition=transform_lines,
    transpose=lambda grad, x, scale: transform_lines(grad, scale),  # the matrix is symmetric, cut where x is filled
    terms=_terms,
    transposed_terms=lambda grad, x, scale: _terms(grad, scale),
    length=padded_length,
    lines=lambda args: math.prod(args["x"].shape[:-1]),
    roundings=lambda P: math.log2(P) + 2,
    flop=lambda P: P * math.log2(P),
    shape=lambda args: tuple(args["x"].shape),
    forward=_launch,
    backward=lambda kernel, out, grad, x, scale: _launch(kernel, out, grad, scale),
    cases=(
        *line_cases(_make, LENGTHS, FLOATS),
        *(_case(f"nan N={n}", (5, n), kind="nan", gradients=False) for n in (8, 100)),
        *(_case(f"scaled by {scale}", (9, 40), scale=scale) for scale in (0.0883883476, -3.0)),
    ),
    bench_cases=_sized((4096, 128), (1024, 4096), (1, 4096), (16, 32768)),
    device_cases=_sized((4099, 2), (1025, 64), (257, 1024), (67, 4096)),
    device_bench_cases=_sized((65536, 128), (8192, 4096)),
    decline=lambda request: _decline(2**20, request),  # a thread's buffer of them stays in its cache
    decline_on_gpu=lambda request: _decline(4096, request),  # they stay in registers
)
