"""What cosine_similarity promises: the cosine of the angle between two vectors, each a line along a dimension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Cost, Request
from kernelworks.contract.arguments import Arguments, Dim, check_of, errors_of
from kernelworks.contract.cases import LENGTHS, SMOOTH, VALUES, draw, normal
from kernelworks.contract.numbers import Real
from kernelworks.contract.reduced_dims import count_of, kept_shape
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.reduction_stages.entry import U64, rounded_bound
from kernelworks.templates.running_error import to_float32

__all__ = ["ARGUMENTS", "CONTRACT", "reference"]

BF16, F32 = torch.bfloat16, torch.float32
ARGUMENTS: Arguments = {
    "x": T("..."), "y": T("...", like="x"), "dim": Dim("x", scalar=True), "eps": Real(1e-8, least=0.0),
}  # fmt: skip
BROADCAST = "y of a dimension more"  # the public function takes it, and hands on one shape
DEFAULTS = {"dim": 1, "eps": 1e-8}


def reference(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> tuple[Tensor, ...]:
    return (F.cosine_similarity(x, y, dim, to_float32(eps)),)


# ---------------------------------------------------------------- bounds


def _norms(args: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both norms, and what they are divided by, with a dimension of 1."""
    dims, eps = (args["dim"],) if args["x"].dim() else (), to_float32(args["eps"])
    one, other = (torch.linalg.vector_norm(args[n], 2, dims or None, keepdim=True) for n in ("x", "y"))
    return one, other, one.clamp_min(eps), other.clamp_min(eps)


def _sizes(args: dict[str, Any]) -> tuple[Tensor, int]:
    """The sum of the magnitudes of all products of a line, and how many there are."""
    products = (args["x"] * args["y"]).abs()
    return products.sum(args["dim"], keepdim=True) if products.dim() else products, count_of(
        tuple(products.shape), args["dim"]
    )


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """n products, their sum, and two norms of which each is as far off as half of n additions."""
    products, n = _sizes(args)
    _, _, one, other = _norms(args)
    error = (2 * n + 12) * U64 * products / (one * other)
    return (rounded_bound(outputs[0], dtype) + error.reshape(outputs[0].shape),)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Of both terms the magnitudes, for they cancel where the two vectors are parallel."""
    products, n = _sizes(args)
    norm1, norm2, one, other = _norms(args)
    flow = grads[0].abs().reshape(kept_shape(tuple(args["x"].shape), args["dim"]))

    def of(own: str, their: str, norm: Tensor, mine: Tensor, yours: Tensor) -> Tensor:
        along = torch.where(norm > 0, args[own].abs() * products / (yours * mine.square() * norm), 0.0)
        inside: Tensor = (4 * n + 24) * U64 * flow * (args[their].abs() / (one * other) + along)
        return rounded_bound(gradients[own], dtype) + inside

    bounds = {"x": ("x", "y", norm1, one, other), "y": ("y", "x", norm2, other, one)}
    return {name: of(*bounds[name]) for name in gradients}


# ---------------------------------------------------------------- cost


def dims(request: Request) -> dict[str, int]:
    """Lines, their elements, and how many lines lie side by side."""
    shape, dim = request.args["x"].shape, request.args["dim"]
    n, inner = count_of(shape, dim), 1
    for size in shape[dim % len(shape) + 1 :] if shape else ():
        inner *= size
    return {"M": request.args["x"].numel // max(n, 1), "N": n, "inner": inner}


def cost(request: Request) -> Cost:
    x = request.args["x"]
    lines = x.numel // max(count_of(x.shape, request.args["dim"]), 1) * x.dtype.itemsize
    if request.pass_ == "backward":
        return Cost(12.0 * x.numel, 0.0, 2 * x.nbytes + lines, 2 * x.nbytes)
    return Cost(6.0 * x.numel, 0.0, 2 * x.nbytes, lines)


# ---------------------------------------------------------------- cases


def _case(
    shape: tuple[int, ...], dim: int, kind: str = "normal", *, eps: float = 1e-8, how: str = "", **more: Any
) -> Case:
    """``how`` the second vector lies to the first."""
    name = f"{kind}, " * (kind != "normal") + f"dim {dim} of {list(shape)}" + f", {how}" * bool(how)

    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        x = draw(kind, generator, dtype, *shape)
        y = normal(generator, dtype, *shape)
        if how == "nearly parallel":
            y = (x + 2.0**-6 * y).to(dtype)
        elif how == "opposite":
            y = -2.0 * x
        elif how == "both of the kind":
            y = draw(kind, generator, dtype, *shape)
        elif how == "x is shorter than eps":
            x = (x * 2.0**-8).to(dtype)
        elif how == "some lines are 0":
            x[::2] = 0.0
        return {"x": x, "y": y, "dim": dim, "eps": eps}

    return Case(name + f", eps {eps:g}" * (eps != 1e-8), make, **more)


# shape, dimension, whether layouts are tried
PLACES: tuple[tuple[tuple[int, ...], int, bool], ...] = (
    ((5, 7), 0, False), ((3, 17, 5), 1, True), ((2, 1, 33), 1, False), ((300, 70), 0, True), ((65,), 0, False),
    ((7, 130, 2, 3), -3, False), ((2, 3, 4, 40), -1, True), ((0, 5), 0, False), ((4, 0, 3), 1, False),
    ((0, 64), 1, False),
    ((2, 9001), 1, False), ((66, 1050), 0, False), ((), 0, False), ((1027, 48), 1, False),
)  # fmt: skip


def _cases() -> Iterator[Case]:
    for n in LENGTHS:
        yield _case((3, n), 1, layouts=n in (17, 128))
    for shape, dim, layouts in PLACES:
        yield _case(shape, dim, layouts=layouts)
    for kind in VALUES:
        gradients = kind in (*SMOOTH, "zeros")
        yield _case((5, 33), -1, kind, gradients=gradients)
        yield _case((40, 19), 0, kind, how="both of the kind", gradients=gradients and kind != "zeros")
    for shape, dim in (((6, 129), 1), ((37, 20), 0)):
        for how in ("nearly parallel", "opposite", "some lines are 0"):
            yield _case(shape, dim, how=how)
        yield _case(shape, dim, eps=3.0, how="x is shorter than eps")
        yield _case(shape, dim, eps=100.0)
    yield _case((5, 33), -1, "zeros", eps=0.0, gradients=False)
    for shape, dim in (((2, 150_001), -1), ((20_003, 5), 0)):  # too few lines and too long for one thread each
        yield _case(shape, dim, dtypes=(F32, BF16))


BENCH = (((4096, 768), 1, F32), ((4096, 768), 1, BF16), ((64, 256, 256), 1, F32))
CONTRACT = Contract(
    name="cosine_similarity", family="reduction", formula="output = x.y / (max(|x|, eps) max(|y|, eps)) along dim",
    source="torch.nn.functional.cosine_similarity", outputs=("output",), differentiable=("x", "y"),
    check=check_of(ARGUMENTS, DEFAULTS), reference=reference, bound=bound, gradient_bound=gradient_bound, cost=cost,
    dims=dims, cases=tuple(_cases()),
    bench_cases=tuple(_case(s, d, dtypes=(t,)) for s, d, t in BENCH),
    device_cases=tuple(_case(s, d) for s, d in (((5003, 200), 1), ((3, 1_000_003), 1), ((64, 300, 129), 1))),
    device_bench_cases=tuple(_case(s, d, dtypes=(BF16,)) for s, d in (((16384, 4096), 1), ((64, 512, 4096), 1))),
    errors=tuple(e for e in errors_of(ARGUMENTS) if e[0] != BROADCAST),
)  # fmt: skip
