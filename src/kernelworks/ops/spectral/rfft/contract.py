"""What rfft promises, and what both real transforms share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Request
from kernelworks.contract.arguments import Dim, Error, Int64, Word
from kernelworks.contract.cases import draw
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.ops.spectral.rfft.plan import IRFFT, MOST, RFFT, launch, prime_factors, scale_of
from kernelworks.templates.transform import Transform, line_cases

__all__ = [
    "LENGTH", "LENGTHS", "NORM", "ROWS", "TEMPLATE", "at_once", "both_ends", "count_lines", "decline",
    "decline_on_gpu", "flop", "frequency_weights", "length_of", "need_numbers", "on_frequencies", "resize_lines",
    "roundings", "shape_of", "with_size",
]  # fmt: skip

F32, C64 = (torch.float32,), torch.complex64
RADICES = (2, 3, 5, 7)
LENGTH = Int64(least=1, optional=True)
NORM = Word("backward", "ortho", "forward", optional=True)
ON_GPU = 4096  # numbers of a line that stays in registers

# Of every radix, products of them, and what is cut or not; among them lengths that ours decline.
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 21, 30, 32, 49, 60, 64, 81, 128, 210, 256, 343, 1000)
# Lines of a power of two; few of them, rows of 512 and more are cut.
ROWS = ((17, 512), (1, 512), (2, 1024), (1, 4096), (35, 4096), (2, 7680), (1, 65536))


# ---------------------------------------------------------------- what follows from the length


def roundings(N: int) -> float:
    """How many times u32 each term of a frequency, or of a sample, may be off before the last rounding.

    A butterfly of p numbers, a prime, does at most p + 1 sums and products of a term; times a twiddle factor, whose own
    error is u: root 5 + 1. (Of p = 2 one sum.) A line of even length is N / 2 complex numbers, whose errors reach a
    frequency through two of theirs, and one more butterfly: 8. The scale is rounded, and multiplies: 2.
    """

    def of(n: int) -> float:
        return sum(4.25 if p == 2 else p + 5.25 for p in prime_factors(n))

    return of(N) + 2 if N % 2 else 2 * of(N // 2) + 10


def flop(N: int) -> float:
    return 2.5 * N * math.log2(N) if N > 1 else 1.0


def count_lines(args: Mapping[str, Any]) -> int:
    shape, dim = args["x"].shape, args["dim"]
    return math.prod(n for d, n in enumerate(shape) if d != dim % len(shape))


def with_size(shape: tuple[int, ...], dim: int, n: int) -> tuple[int, ...]:
    dim %= len(shape)
    return (*shape[:dim], n, *shape[dim + 1 :])


def resize_lines(x: Tensor, dim: int, n: int) -> Tensor:
    """The first n elements along a dimension, zeros where there are none."""
    have = x.shape[dim]
    if have >= n:
        return x.narrow(dim, 0, n)
    return torch.cat((x, x.new_zeros(with_size(tuple(x.shape), dim, n - have))), dim)


def on_frequencies(N: int, of: Tensor) -> Tensor:
    """A vector of N // 2 + 1 numbers: 0 at the ends, which stand for one frequency each, 1 between, for two."""
    k = torch.arange(N // 2 + 1, device=of.device)
    return ((k > 0) & (2 * k < N)).to(torch.float64)


def frequency_weights(N: int, dim: int, of: Tensor, middle: float) -> Tensor:
    """``middle`` for frequencies that stand for two, 1 at the ends; along a dimension of ``of``."""
    weights = torch.where(on_frequencies(N, of) > 0, middle, 1.0)
    return weights.reshape(with_size((1,) * of.dim(), dim, -1))


def both_ends(x: Tensor, dim: int, N: int) -> Tensor:
    """|x| of frequencies, of the ends their real part's alone."""
    middle = on_frequencies(N, x).reshape(with_size((1,) * x.dim(), dim, -1))
    return torch.where(middle > 0, x.abs(), x.real.abs())


def need_numbers(args: Mapping[str, Any], length: int) -> None:
    if length < 1:
        raise ValueError(f"x must have numbers along dim {args['dim']}, or n say how many; got {length}")


def decline(length: Callable[[Mapping[str, Any]], int], request: Request) -> str | None:
    if not request.args:
        return None
    N = length(request.args)
    if N > MOST:
        return f"takes lengths up to {MOST}, got {N}"
    odd = [p for p in prime_factors(N) if p not in RADICES]
    return f"takes lengths whose prime factors are 2, 3, 5 and 7; {N} has {odd[0]}" if odd else None


def decline_on_gpu(length: Callable[[Mapping[str, Any]], int], request: Request) -> str | None:
    if not request.args:
        return None
    N = length(request.args)
    return None if N & (N - 1) == 0 and 2 <= N <= ON_GPU else f"takes powers of two from 2 to {ON_GPU}, got {N}"


def at_once(function: Callable[..., Tensor]) -> Passthrough:
    """How torch's function of the two is called where it is what runs."""
    when = ("(n is None or n.__class__ is int)", "dim.__class__ is int", "(norm is None or norm.__class__ is str)")
    return Passthrough("function(x, n, dim, norm)", ("x",), when, {"function": function})


# ---------------------------------------------------------------- rfft


def length_of(args: Mapping[str, Any]) -> int:
    n: int | None = args["n"]
    return args["x"].shape[args["dim"]] if n is None else n


def _check(**given: Any) -> None:
    need_numbers(given, length_of(given))


def shape_of(args: Mapping[str, Any]) -> tuple[int, ...]:
    return with_size(tuple(args["x"].shape), args["dim"], length_of(args) // 2 + 1)


def _definition(x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    if not count_lines({"x": x, "dim": dim}):  # a library that torch calls takes no fewer lines than one
        return torch.complex(x, x).reshape(0).reshape(shape_of({"x": x, "n": n, "dim": dim}))
    return RFFT(x, n, dim, norm)


def _transpose(grad: Tensor, x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    """``dL/dx_j = scale Re sum_k G_k e^(2 pi i j k / N)``: an inverse transform of halved frequencies."""
    N = length_of({"x": x, "n": n, "dim": dim})
    halved = grad * frequency_weights(N, dim, grad, 0.5).to(grad.real.dtype)
    made = IRFFT(halved, N, dim, "forward") * scale_of(norm, N, False)
    return resize_lines(made, dim, x.shape[dim])


def _terms(x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    N = length_of({"x": x, "n": n, "dim": dim})
    K = N // 2 + 1
    used = min(N, x.shape[dim])
    total = scale_of(norm, N, False) * x.narrow(dim, 0, used).abs().sum(dim, keepdim=True)
    every = total.expand(with_size(tuple(x.shape), dim, K)).contiguous()
    return torch.complex(every, every)  # at the ends too, where the imaginary part is 0 but for roundings


def _transposed_terms(grad: Tensor, x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    N = length_of({"x": x, "n": n, "dim": dim})
    total = scale_of(norm, N, False) * both_ends(grad, dim, N).sum(dim, keepdim=True)
    return resize_lines(total.expand(with_size(tuple(x.shape), dim, N)), dim, x.shape[dim])


def _forward(kernel: Any, out: Tensor, x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    N = length_of({"x": x, "n": n, "dim": dim})
    return launch(kernel, out, x, dim, N, scale_of(norm, N, False), 1.0)


def _backward(kernel: Any, out: Tensor, grad: Tensor, x: Tensor, n: int | None, dim: int, norm: str | None) -> Tensor:
    N = length_of({"x": x, "n": n, "dim": dim})
    return launch(kernel, out, grad, dim, N, scale_of(norm, N, False), 0.5)


def _make(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str = "normal", *, n: int | None = None,
    dim: int = -1, norm: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    return {"x": draw(kind, generator, dtype, *shape), "n": n, "dim": dim, "norm": norm}


def _case(name: str, shape: tuple[int, ...], *, layouts: bool = False, gradients: bool = True, **said: Any) -> Case:
    return Case(
        name, lambda g, d: _make(g, d, shape, **said), dtypes=F32, layouts=layouts, gradients=gradients
    )  # fmt: skip


CASES = (
    *line_cases(_make, LENGTHS, F32),
    *(_case(f"{m} of {n}", (m, n)) for m, n in ROWS),
    _case("cropped", (5, 40), n=24, layouts=True),
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
    # So short that every number but the exact ones hangs on each element.
    *(_case(f"nan N={n}", (5, n), kind="nan", gradients=False) for n in (2, 3)),
)
BENCH = (
    *(_case(f"{m}x{n}", (m, n)) for m, n in ((256, 1024), (4096, 64), (1, 4096), (16, 65536), (1024, 1000), (1, 256))),
    _case("16x512x80 along 1", (16, 512, 80), dim=1),
)
DEVICE = (*(_case(f"{m} of {n}", (m, n)) for m, n in ((4099, 2), (1025, 64), (257, 1024), (67, 4096))),)
DEVICE_BENCH = (*(_case(f"{m}x{n}", (m, n)) for m, n in ((65536, 64), (65536, 256), (16384, 1024), (4096, 4096))),)

EMPTY: Error = (
    "no numbers", lambda: {"x": torch.ones(3, 0), "n": None, "dim": -1, "norm": None}, ValueError,
    "x must have numbers along dim -1",
)  # fmt: skip

TEMPLATE = Transform(
    op_package=__file__,
    formula="output_k = scale * sum over j < N of x_j e^(-2 pi i j k / N), k <= N / 2; x cut or filled with "
    "zeros to N; scale = 1, 1 / sqrt(N) or 1 / N by norm",
    source="Cooley and Tukey 1965, Math. Comp. 19; torch.fft.rfft",
    arguments={"x": T("... N", dtypes=F32), "n": LENGTH, "dim": Dim("x"), "norm": NORM},
    definition=_definition,
    transpose=_transpose,
    terms=_terms,
    transposed_terms=_transposed_terms,
    length=length_of,
    lines=count_lines,
    roundings=roundings,
    flop=flop,
    shape=shape_of,
    dtype=C64,
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
