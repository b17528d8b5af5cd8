"""What irfft promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case
from kernelworks.contract.arguments import Dim, Error
from kernelworks.contract.cases import draw
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.spectral.rfft.contract import (
    LENGTH,
    LENGTHS,
    NORM,
    ROWS,
    both_ends,
    count_lines,
    decline,
    decline_on_gpu,
    flop,
    frequency_weights,
    need_numbers,
    resize_lines,
    roundings,
    with_size,
)
from kernelworks.ops.spectral.rfft.plan import IRFFT, RFFT, launch, scale_of
from kernelworks.templates.transform import Transform, line_cases

__all__ = ["TEMPLATE", "length_of", "shape_of"]

F32 = (torch.float32,)


def length_of(args: Mapping[str, Any]) -> int:
    n: int | None = args["n"]
    return 2 * (args["x"].shape[args["dim"]] - 1) if n is None else n


def _check(**given: Any) -> None:
    need_numbers(given, length_of(given) if given["x"].shape[given["dim"]] or given["n"] is not None else 0)


def shape_of(args: Mapping[str, Any]) -> tuple[int, ...]:
    return with_size(tuple(args["x"].shape), args["dim"], length_of(args))


def _definition(x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    if not count_lines({"x": x, "dim": dim}):  # a library that torch calls takes no fewer lines than one
        return x.real.reshape(0).reshape(shape_of({"x": x, "n": n, "dim": dim}))
    return IRFFT(x, n, dim, norm)


def _transpose(grad: Tensor, x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    """``dL/dX_k = scale w_k sum_j g_j e^(-2 pi i j k / N)``, w = 1 at the ends and 2 between, where a frequency stands
    for its conjugate too."""
    N = length_of({"x": x, "n": n, "dim": dim})
    weights = (frequency_weights(N, dim, grad, 2.0) * scale_of(norm, N, True)).to(grad.dtype)
    made = RFFT(grad, N, dim) * weights
    return resize_lines(made, dim, x.shape[dim])


def _terms(x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    N = length_of({"x": x, "n": n, "dim": dim})
    used = resize_lines(x, dim, N // 2 + 1)
    total = (both_ends(used, dim, N) * frequency_weights(N, dim, used, 2.0)).sum(dim, keepdim=True)
    return scale_of(norm, N, True) * total.expand(shape_of({"x": x, "n": n, "dim": dim}))


def _transposed_terms(grad: Tensor, x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    N = length_of({"x": x, "n": n, "dim": dim})
    total = scale_of(norm, N, True) * grad.abs().sum(dim, keepdim=True)
    real = total * frequency_weights(N, dim, grad, 2.0)
    return resize_lines(torch.complex(real, real), dim, x.shape[dim])  # at the ends 0 but for roundings


def _forward(kernel: Any, out: Tensor, x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    N = length_of({"x": x, "n": n, "dim": dim})
    return launch(kernel, out, x, dim, N, scale_of(norm, N, True), 1.0)


def _backward(kernel: Any, out: Tensor, grad: Tensor, x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    N = length_of({"x": x, "n": n, "dim": dim})
    return launch(kernel, out, grad, dim, N, scale_of(norm, N, True), 2.0)


def _make(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str = "normal", *, n: int | None = None,
    dim: int = -1, norm: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Frequencies whose ends have imaginary parts, too: they count for nothing."""
    real, imaginary = (draw(kind, generator, torch.float32, *shape) for _ in range(2))
    return {"x": torch.complex(real, imaginary), "n": n, "dim": dim, "norm": norm}


def _of_length(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> dict[str, Any]:
    """``shape`` is the result's."""
    *lines, N = shape
    return _make(generator, dtype, (*lines, N // 2 + 1), kind, n=N)


def _case(name: str, shape: tuple[int, ...], *, layouts: bool = False, gradients: bool = True, **said: Any) -> Case:
    return Case(
        name, lambda g, d: _make(g, d, shape, **said), dtypes=F32, layouts=layouts, gradients=gradients
    )  # fmt: skip


CASES = (
    _case("no n", (3, 13)),
    _case("no n, two frequencies", (3, 2)),
    *line_cases(_of_length, LENGTHS, F32),
    *(_case(f"{m} of {n}", (m, n // 2 + 1), n=n) for m, n in ROWS),
    _case("cropped", (5, 40), n=24, layouts=True),
    _case("cropped to an odd length", (20, 40), n=15),
    _case("cropped to 1", (3, 40), n=1),
    _case("cropped to 2", (3, 40), n=2),
    _case("padded", (5, 20), n=64, layouts=True),
    _case("padded, one line", (33,), n=1024),
    _case("padded from nothing", (3, 0), n=8),
    _case("first dimension", (25, 5), dim=0, layouts=True),
    _case("middle dimension", (3, 16, 37), dim=1, layouts=True),
    _case("middle dimension, padded", (2, 5, 20), dim=-2, n=16),
    _case("middle dimension, cropped", (2, 40, 3), dim=1, n=21),
    *(_case(f"{norm}, {n}", (4, n // 2 + 1), n=n, norm=norm) for norm in ("backward", "ortho", "forward")
      for n in (24, 35)),
    _case("ortho, one line of 2048", (1, 1025), norm="ortho"),
    _case("ortho, padded", (3, 20), n=64, norm="ortho"),
    _case("forward, cropped", (3, 20), n=15, norm="forward"),
    _case("nan N=2", (5, 2), kind="nan", gradients=False),
)  # fmt: skip
SIZES = ((256, 1024), (4096, 64), (1, 4096), (16, 65536), (1024, 1000), (1, 256))
BENCH = (
    *(_case(f"{m}x{n}", (m, n // 2 + 1), n=n) for m, n in SIZES),
    _case("16x512x80 along 1", (16, 257, 80), dim=1),
)
DEVICE = (*(_case(f"{m} of {n}", (m, n // 2 + 1)) for m, n in ((4099, 2), (1025, 64), (257, 1024), (67, 4096))),)
DEVICE_SIZES = ((65536, 64), (65536, 256), (16384, 1024), (4096, 4096))
DEVICE_BENCH = (*(_case(f"{m}x{n}", (m, n // 2 + 1)) for m, n in DEVICE_SIZES),)

EMPTY: Error = (
    "no numbers", lambda: {"x": torch.ones(3, 1, dtype=torch.complex64), "n": None, "dim": -1, "norm": None},
    ValueError, "x must have numbers along dim -1",
)  # fmt: skip

TEMPLATE = Transform(
    op_package=__file__,
    formula="output_j = scale * sum over |k| <= N / 2 of x_k e^(2 pi i j k / N), x_-k = conj(x_k); the first "
    "and an even N's last number without imaginary part; x cut or filled with zeros to N / 2 + 1; scale = 1 / N, "
    "1 / sqrt(N) or 1 by norm",
    source="Cooley and Tukey 1965, Math. Comp. 19; torch.fft.irfft",
    arguments={"x": T("... N", dtypes=(torch.complex64,)), "n": LENGTH, "dim": Dim("x"), "norm": NORM},
    definition=_definition,
    transpose=_transpose,
    terms=_terms,
    transposed_terms=_transposed_terms,
    length=length_of,
    lines=count_lines,
    roundings=roundings,
    flop=flop,
    shape=shape_of,
    dtype=torch.float32,
    forward=_forward,
    backward=_backward,
    cases=CASES,
    bench_cases=BENCH,
    device_cases=DEVICE,
    device_bench_cases=DEVICE_BENCH,
    check=_check,
    errors=(EMPTY,),
    decline=lambda request: decline(length_of, request),
    decline_on_gpu=lambda request: decline_on_gpu(length_of, request),
)
