"""What prod promises: the product of the elements along dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Cost, Request
from kernelworks.contract.arguments import Arguments, Flag, check_of, errors_of
from kernelworks.contract.cases import LENGTHS, VALUES, draw
from kernelworks.contract.reduced_dims import Dims, count_of, dims_of
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.reduction_stages.entry import U64, rounded_bound

__all__ = ["ARGUMENTS", "CONTRACT", "product", "reference"]

BF16, F32 = torch.bfloat16, torch.float32
ARGUMENTS: Arguments = {"x": T("..."), "dim": Dims("x"), "keepdim": Flag()}
DEFAULTS = {"dim": None, "keepdim": False}


def product(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """torch's, which takes one dimension or all: of several one after the other."""
    dims = dims_of(tuple(x.shape), dim)
    if dims is None:
        made = torch.prod(x)
        return made.reshape((1,) * x.dim()) if keepdim else made
    for d in reversed(dims):
        x = torch.prod(x, d, keepdim)
    return x


def reference(x: Tensor, dim: Any = None, keepdim: bool = False) -> tuple[Tensor, ...]:
    return (product(x, dim, keepdim),)


# ---------------------------------------------------------------- bounds


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """A rounding of float64 for each product."""
    (output,) = outputs
    error = count_of(tuple(args["x"].shape), args["dim"]) * U64 * output.abs()
    return (rounded_bound(output, dtype) + error.nan_to_num(0.0, 0.0, 0.0),)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """A product of the others, by a division, and what flows in."""
    gradient = gradients["x"]
    error = (count_of(tuple(args["x"].shape), args["dim"]) + 3) * U64 * gradient.abs()
    return {"x": rounded_bound(gradient, dtype) + error}


# ---------------------------------------------------------------- cost


def dims(request: Request) -> dict[str, int]:
    """Lines, their elements, and how many lines lie side by side."""
    shape, dim = request.args["x"].shape, request.args["dim"]
    n, found, inner = count_of(shape, dim), dims_of(shape, dim), 1
    for size in shape[found[-1] + 1 :] if found else ():
        inner *= size
    return {"M": request.args["x"].numel // max(n, 1), "N": n, "inner": inner}


def cost(request: Request) -> Cost:
    x = request.args["x"]
    lines = x.numel // max(count_of(x.shape, request.args["dim"]), 1) * x.dtype.itemsize
    if request.pass_ == "backward":
        return Cost(3.0 * x.numel, 0.0, x.nbytes + lines, x.nbytes)
    return Cost(1.0 * x.numel, 0.0, x.nbytes, lines)


# ---------------------------------------------------------------- cases

# What a line holds beside ordinary values, whose products stay within every dtype along lines of any length.
SPECIAL_VALUES = ("", "a zero", "two zeros", "zeros of both signs", "a NaN", "an infinity")


def _drawn(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], n: int, how: str) -> Tensor:
    x = torch.randn(shape, generator=generator)
    x = x.sign() * (x.abs() - 0.8).mul(2.0 / max(n, 1) ** 0.5).exp()  # about e^2 at most for a whole line
    flat = x.view(-1)
    places = {
        "a zero": (0.0,), "two zeros": (0.0, 0.0), "zeros of both signs": (-0.0, 0.0, -0.0, 0.0), "a NaN": (torch.nan,),
        "an infinity": (-torch.inf,),
    }.get(how, ())  # fmt: skip
    for i, value in enumerate(places):  # the last one in the very last element: the vector tail
        if flat.numel():
            flat[(flat.numel() - 1 - 3 * i) % flat.numel()] = value
    return x.to(dtype)


def _case(shape: tuple[int, ...], dim: Any, how: str = "", *, keepdim: bool = False, **more: Any) -> Case:
    n = count_of(shape, dim)
    many = ", many factors" * (n > 100)  # which torch's CPU rounds to 16 bits after each
    name = f"dim {dim} of {list(shape)}" + f", {how}" * bool(how) + ", kept" * keepdim + many
    return Case(name, lambda g, d: {"x": _drawn(g, d, shape, n, how), "dim": dim, "keepdim": keepdim}, **more)


# shape, dimensions, whether layouts are tried
PLACES: tuple[tuple[tuple[int, ...], Any, bool], ...] = (
    ((5, 7), 0, False), ((3, 17, 5), 1, True), ((2, 1, 33), 1, False), ((300, 70), 0, True),
    ((7, 130, 2, 3), -3, False), ((0, 5), 0, False), ((4, 0, 3), 1, False), ((0, 5), None, False), ((0, 64), 1, False),
    ((2, 9001), 1, False), ((2, 600, 3), 1, False), ((66, 1050), 0, False), ((1031,), None, False),
    ((6, 50, 40), None, True), ((), None, False), ((), -1, False), ((65, 1, 1), 0, False), ((1027, 48), 1, False),
    ((3, 4, 5, 6), (1, 2), False), ((3, 4, 5, 6), (0, 2), True), ((9, 4, 35), (-1, 0), False), ((5, 6), (0, 1), False),
    ((5, 6), (), False), ((3, 5), [1], False),
)  # fmt: skip


def _cases() -> Iterator[Case]:
    for n in LENGTHS:
        yield _case((3, n), -1, layouts=n in (17, 128))
    for shape, dim, layouts in PLACES:
        yield _case(shape, dim, layouts=layouts)
    for how in SPECIAL_VALUES:
        for shape, dim in (((4, 33), -1), ((21, 19), 0), ((3, 4, 5), None), ((6, 7, 8), (0, 2)), ((2, 1031), -1)):
            yield _case(shape, dim, how, keepdim=dim != -1, gradients=how not in ("a NaN", "an infinity"))
    for kind in VALUES:  # three elements of which no product leaves float64
        for shape, dim in (((7, 3), -1), ((3, 40), 0)):
            yield Case(
                f"{kind}, dim {dim} of {list(shape)}",
                lambda g, d, kind=kind, shape=shape, dim=dim: {
                    "x": draw(kind, g, d, *shape),
                    "dim": dim,
                    "keepdim": False,
                },
                gradients=kind in ("normal", "large_mean", "tiny", "constant", "zeros"),
            )
    for shape, dim in (((3, 150_001), -1), ((20_003, 5), 0), ((2, 20_007, 7), 1)):  # lines that are cut
        yield _case(shape, dim, dtypes=(F32, BF16))
        yield _case(shape, dim, "a zero", dtypes=(F32,))


BENCH = (((2048, 4096), -1, F32), ((2048, 4096), 0, F32), ((2048, 4096), None, BF16))
DEVICE = (((5003, 200), -1), ((301, 20_011), -1), ((3, 1_000_003), -1), ((64, 300, 129), 1), ((100_003, 130), 0))
CONTRACT = Contract(
    name="prod", family="reduction", formula="output = the product over dim of x", source="torch.prod",
    outputs=("output",), differentiable=("x",), check=check_of(ARGUMENTS, DEFAULTS), reference=reference, bound=bound,
    gradient_bound=gradient_bound, cost=cost, dims=dims, cases=tuple(_cases()),
    bench_cases=tuple(_case(s, d, dtypes=(t,)) for s, d, t in BENCH),
    device_cases=tuple(_case(s, d, how) for s, d in DEVICE for how in ("", "a zero")),
    device_bench_cases=tuple(_case(s, d, dtypes=(BF16,)) for s, d in (((8192, 4096), -1), ((8192, 4096), 0))),
    errors=errors_of(ARGUMENTS),
)  # fmt: skip
