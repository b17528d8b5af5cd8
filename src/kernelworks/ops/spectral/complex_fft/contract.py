"""What fft and ifft promise: an entry each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.build.sharing import choose_threads
from kernelworks.contract import Case
from kernelworks.contract.arguments import Dim, Error
from kernelworks.contract.cases import draw
from kernelworks.contract.complex_numbers import as_parts
from kernelworks.contract.row_layout import lines_along
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.spectral.complex_fft.mutants import mutants_of
from kernelworks.ops.spectral.rfft.contract import (
    LENGTH,
    LENGTHS,
    NORM,
    ROWS,
    count_lines,
    decline,
    length_of,
    need_numbers,
    resize_lines,
    with_size,
)
from kernelworks.ops.spectral.rfft.contract import flop as real_flop
from kernelworks.ops.spectral.rfft.plan import IN_LANES, MULTIPLE, NANOSECONDS, plan_of, prime_factors, scale_of
from kernelworks.templates.op_package import OpTable
from kernelworks.templates.transform import TransformEntry, line_cases

__all__ = ["TABLE"]

F32 = (torch.float32,)


def roundings(N: int) -> float:
    """As of a real line of odd length, which is taken for complex numbers: a butterfly of p numbers and its twiddle
    factor, and the scale."""
    return sum(4.25 if p == 2 else p + 5.25 for p in prime_factors(N)) + 2


def launch(kernel: Any, out: Tensor, x: Tensor, dim: int, N: int, scale: float) -> Tensor:
    """Runs one of the C++ functions. The plan of a real line of 2 N numbers is that of N complex ones."""
    where = lines_along(x, dim)
    count = where.outer * where.inner
    if out.numel():
        plan = plan_of(2 * N, where.inner == 1 and (where.outer < MULTIPLE or N > IN_LANES))
        run, threads = choose_threads(kernel, 2 * NANOSECONDS * count * N * max(1, N.bit_length()))
        run(as_parts(out), as_parts(where.tensor), *where[1:], N, scale, 1.0, *plan, threads)
    return out


def _check(**given: Any) -> None:
    need_numbers(given, length_of(given))


def shape_of(args: Mapping[str, Any]) -> tuple[int, ...]:
    return with_size(tuple(args["x"].shape), args["dim"], length_of(args))


def _make(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str = "normal", *, n: int | None = None,
    dim: int = -1, norm: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    real, imaginary = (draw(kind, generator, torch.float32, *shape) for _ in range(2))
    return {"x": torch.complex(real, imaginary), "n": n, "dim": dim, "norm": norm}


def _case(name: str, shape: tuple[int, ...], *, layouts: bool = False, gradients: bool = True, **said: Any) -> Case:
    return Case(
        name, lambda g, d: _make(g, d, shape, **said), dtypes=F32, layouts=layouts, gradients=gradients
    )  # fmt: skip


CASES = (
    _case("cropped", (5, 40), n=24, layouts=True),
    *line_cases(_make, LENGTHS, F32),
    *(_case(f"{m} of {n}", (m, n)) for m, n in ROWS),
    _case("cropped to an odd length", (20, 40), n=15),
    _case("cropped to 1", (3, 40), n=1),
    _case("padded", (5, 20), n=64, layouts=True),
    _case("padded from an odd length, one line", (33,), n=1024),
    _case("padded from nothing", (3, 0), n=8),
    _case("first dimension", (48, 5), dim=0, layouts=True),
    _case("middle dimension", (3, 30, 37), dim=1, layouts=True),
    _case("middle dimension, padded", (2, 9, 20), dim=-2, n=16),
    _case("middle dimension, cropped", (2, 40, 3), dim=1, n=21),
    *(_case(f"{norm}, {n}", (4, n), norm=norm) for norm in ("backward", "ortho", "forward") for n in (24, 35)),
    _case("ortho, one line of 2048", (1, 2048), norm="ortho"),
    _case("ortho, padded", (3, 20), n=32, norm="ortho"),
    _case("forward, cropped", (3, 20), n=15, norm="forward"),
    _case("nan N=2", (5, 2), kind="nan", gradients=False),
)
BENCH = (
    *(_case(f"{m}x{n}", (m, n)) for m, n in ((256, 1024), (4096, 64), (1, 4096), (16, 65536), (1024, 1000), (1, 256))),
    _case("16x512x80 along 1", (16, 512, 80), dim=1),
)

EMPTY: Error = (
    "no numbers", lambda: {"x": torch.ones(3, 0, dtype=torch.complex64), "n": None, "dim": -1, "norm": None},
    ValueError, "x must have numbers along dim -1",
)  # fmt: skip


def _entry(name: str, sign: str, function: Callable[..., Tensor], back: Callable[..., Tensor]) -> TransformEntry:
    """``back`` is the transform with the other sign, which the gradient is."""
    inverse = name == "ifft"

    def scale(x: Tensor, n: int | None, dim: int, norm: str | None) -> float:
        return scale_of(norm, length_of({"x": x, "n": n, "dim": dim}), inverse)

    def definition(x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
        if not count_lines({"x": x, "dim": dim}):  # a library that torch calls takes no fewer lines than one
            return x.reshape(0).reshape(shape_of({"x": x, "n": n, "dim": dim}))
        return function(x, n, dim, norm)

    def transpose(grad: Tensor, x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
        unscaled = back(grad, None, dim, "backward" if inverse else "forward")
        return resize_lines(unscaled * scale(x, n, dim, norm), dim, x.shape[dim])

    def magnitudes(of: Tensor, like: Tensor, dim: int, size: int, factor: float) -> Tensor:
        total = (factor * of.abs().sum(dim, keepdim=True)).expand(with_size(tuple(like.shape), dim, size)).contiguous()
        return torch.complex(total, total)

    def terms(x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
        N = length_of({"x": x, "n": n, "dim": dim})
        used = x.narrow(dim, 0, min(N, x.shape[dim]))
        return magnitudes(used, x, dim, N, scale(x, n, dim, norm))

    def transposed_terms(grad: Tensor, x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
        N = length_of({"x": x, "n": n, "dim": dim})
        return resize_lines(magnitudes(grad, x, dim, N, scale(x, n, dim, norm)), dim, x.shape[dim])

    def forward(kernel: Any, out: Tensor, x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
        return launch(kernel, out, x, dim, length_of({"x": x, "n": n, "dim": dim}), scale(x, n, dim, norm))

    def backward(
        kernel: Any, out: Tensor, grad: Tensor, x: Tensor, n: int | None, dim: int, norm: str | None
    ) -> Tensor:
        return launch(kernel, out, grad, dim, length_of({"x": x, "n": n, "dim": dim}), scale(x, n, dim, norm))

    scales = "1 / N, 1 / sqrt(N) or 1" if inverse else "1, 1 / sqrt(N) or 1 / N"
    return TransformEntry(
        op_package=__file__,
        op_name=name,
        formula=f"output_k = scale * sum over j < N of x_j e^({sign}2 pi i j k / N); x cut or filled with zeros to N; "
        f"scale = {scales} by norm",
        source=f"Cooley and Tukey 1965, Math. Comp. 19; torch.fft.{name}",
        arguments={"x": T("... N", dtypes=(torch.complex64,)), "n": LENGTH, "dim": Dim("x"), "norm": NORM},
        definition=definition,
        transpose=transpose,
        terms=terms,
        transposed_terms=transposed_terms,
        length=length_of,
        lines=count_lines,
        roundings=roundings,
        flop=lambda N: 2 * real_flop(N),
        shape=shape_of,
        dtype=torch.complex64,
        forward=forward,
        backward=backward,
        cases=CASES,
        bench_cases=BENCH,
        check=_check,
        errors=(EMPTY,),
        decline=functools.partial(decline, length_of),
        own_mutants=mutants_of(function),
    )


TABLE = OpTable.of(
    [
        _entry("fft", "-", torch.fft.fft, torch.fft.ifft),
        _entry("ifft", "+", torch.fft.ifft, torch.fft.fft),
    ]
)
