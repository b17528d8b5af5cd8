"""What kernel_matrix promises: K itself, for the kernel functions of a Euclidean distance that sums over pairs have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Word, check_of, errors_of
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.similarity.kernel_matmul.contract import TEMPLATE as RBF
from kernelworks.ops.similarity.matern32_matmul.contract import TEMPLATE as MATERN32
from kernelworks.ops.similarity.matern_table.contract import TABLE
from kernelworks.templates.pairwise import Pairwise
from kernelworks.templates.pairwise_arguments import CASES as PAIRS
from kernelworks.templates.pairwise_arguments import LengthScale, draw_points
from kernelworks.templates.pairwise_mutants import squared_distances

__all__ = ["ARGUMENTS", "CONTRACT", "FUNCTIONS", "composite", "native", "value_of"]

F32 = (torch.float32,)
EVERY = (*F32, torch.bfloat16, torch.float16)
U32, SMALLEST = UNIT_ROUNDOFF[torch.float32], 2.0**-149
MATERN = tuple(TABLE.entries.values())  # of order 1/2 and 5/2

FUNCTIONS: dict[str, Pairwise] = {"rbf": RBF, "matern12": MATERN[0], "matern32": MATERN32, "matern52": MATERN[1]}

# What k and its slope multiply the exponential with, of z = sqrt(s): also its error where it is no normal number.
FACTORS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "rbf": (torch.ones_like, torch.ones_like),
    "matern12": (torch.ones_like, lambda z: torch.where(z > 0, 1 / z, 0.0)),
    "matern32": (lambda z: 1 + 3**0.5 * z, lambda z: torch.full_like(z, 3.0)),
    "matern52": (lambda z: 1 + 5**0.5 * z + 5 * z.square() / 3, lambda z: 5 * (1 + 5**0.5 * z) / 3),
}

ARGUMENTS: Arguments = {
    "x": T("N D", where=("D >= 1",)), "y": T("M D", like="x"), "length_scale": LengthScale("x"),
    "metric": Word(*FUNCTIONS),
}  # fmt: skip


def value_of(x: Tensor, y: Tensor, length_scale: Tensor, metric: str) -> Tensor:
    """K, by the definition."""
    k: Tensor = FUNCTIONS[metric].value(squared_distances(x, y, length_scale))
    return k


def reference(x: Tensor, y: Tensor, length_scale: Tensor, metric: str) -> tuple[Tensor, ...]:
    return (value_of(x, y, length_scale, metric),)


def _wide(*tensors: Tensor) -> list[Tensor]:
    return [t.to(torch.float32) if t.dtype.itemsize < 4 else t for t in tensors]


def composite(x: Tensor, y: Tensor, length_scale: Tensor, metric: str) -> Tensor:
    """In torch's functions, all of which have derivatives of any order."""
    a, b, unit = _wide(x, y, length_scale)
    return value_of(a, b, unit, metric).to(x.dtype)


def native(x: Tensor, y: Tensor, length_scale: Tensor, metric: str) -> Tensor:
    """As torch's users write it."""
    wide = _wide(x, y, length_scale)
    return FUNCTIONS[metric].matrix(wide[0], wide[1], wide[2].reshape(())).to(x.dtype)


# ---------------------------------------------------------------- bounds


def _errors(x: Tensor, y: Tensor, unit: Tensor, metric: str) -> tuple[Tensor, ...]:
    """s, how far k may be off, the slope and how far that may be off: as in sums over pairs, and 2^-149 of the
    exponential times its factor, unless k is 0 of an infinite distance."""
    s, _, off, slope, slope_off = FUNCTIONS[metric]._errors(x, y, unit)
    of_k, of_slope = (SMALLEST * torch.nan_to_num(f(s.sqrt()), 0.0, posinf=0.0) for f in FACTORS[metric])
    return s, off + of_k, slope, slope_off + of_slope


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The error of k that the sums over pairs have, and the rounding to the dtype."""
    off = _errors(args["x"], args["y"], args["length_scale"], args["metric"])[1]
    return (rounding(outputs[0], dtype) + (1 + UNIT_ROUNDOFF[dtype]) * off,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype,
    given: dict[str, Any],
) -> dict[str, Tensor]:  # fmt: skip
    """Of a pair u = flow slope; a point's gradient sums u times a difference over the other points, in any order."""
    x, y, unit = args["x"], args["y"], args["length_scale"].abs().reshape(())
    inverse, flow = 1.0 / unit.square(), grads[0].abs()
    s, _, slope, slope_off = _errors(x, y, unit, args["metric"])
    u = flow * slope
    u_off = flow * slope_off + 2 * U32 * u + SMALLEST * (1 + flow)
    inside: dict[str, Tensor] = {}
    for name, dim, terms in (("x", 1, y.shape[0]), ("y", 0, x.shape[0])):
        columns = []
        for d in range(x.shape[1]):
            apart = (x[:, d, None] - y[None, :, d]).abs() * inverse
            columns.append(((u_off + (terms + 2) * U32 * u) * apart).sum(dim) + terms * SMALLEST / unit)
        inside[name] = torch.stack(columns, 1)
    stretch = (u_off + (y.shape[0] + x.shape[1] + 6) * U32 * u) * s
    inside["length_scale"] = (torch.nan_to_num(stretch, 0.0).sum() / unit).reshape(args["length_scale"].shape)
    bounds = {}
    for name, found in gradients.items():  # each is rounded to its argument's dtype
        own = given[name].dtype
        bounds[name] = rounding(found, own) + (1 + UNIT_ROUNDOFF[own]) * inside[name]
    return bounds


# ---------------------------------------------------------------- cost


def dims(request: Request) -> dict[str, int]:
    x, y = request.args["x"], request.args["y"]
    return {"N": x.shape[0], "M": y.shape[0], "D": x.shape[1]}


def cost(request: Request) -> Cost:
    d = dims(request)
    pairs = d["N"] * d["M"]
    points = request.args["x"].nbytes + request.args["y"].nbytes
    matrix = pairs * request.args["x"].dtype.itemsize
    if request.pass_ == "backward":
        return Cost(pairs * (7.0 * d["D"] + 6.0), float(pairs), points + matrix, points)
    return Cost(pairs * (3.0 * d["D"] + 1.0), float(pairs), points, matrix)


# ---------------------------------------------------------------- cases

Points = dict[str, Any]


def _of_points(make: Callable[..., Points], metric: str) -> Callable[..., Points]:
    def points(generator: Generator, dtype: torch.dtype) -> Points:
        made = make(generator, dtype)
        return {name: made[name] for name in ("x", "y", "length_scale")} | {"metric": metric}

    return points


def _cases() -> Iterator[Case]:
    """Those of sums over pairs, in turn for each function; what bends them for all."""
    words = tuple(FUNCTIONS)
    for i, case in enumerate(PAIRS):
        every = not case.name.startswith("N=")
        for metric in words if every else (words[i % len(words)],):
            make = _of_points(case.make, metric)
            yield replace(case, name=f"{metric}, {case.name}", make=make, pieces=0)


def _sized(sizes: tuple[tuple[int, int, int], ...], dtypes: tuple[torch.dtype, ...] = F32) -> tuple[Case, ...]:
    def make(metric: str, n: int, m: int, d: int) -> Callable[..., Points]:
        return _of_points(lambda g, t: draw_points(g, t, (n, m, d, 1)), metric)

    return tuple(
        Case(f"{metric}, N={n} M={m} D={d}", make(metric, n, m, d), dtypes=dtypes)
        for n, m, d in sizes for metric in ("rbf", "matern52")
    )  # fmt: skip


CONTRACT = Contract(
    name="kernel_matrix", family="similarity",
    formula="output[i, j] = k(|x_i - y_j| / length_scale): exp(-z^2 / 2) with rbf; with matern12, matern32 and "
    "matern52 exp(-z), (1 + z) exp(-z) of z sqrt(3), (1 + z + z^2 / 3) exp(-z) of z sqrt(5)",
    source="Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equations 4.9, 4.17 and 4.18",
    outputs=("output",), differentiable=("x", "y", "length_scale"),
    results={"output": Result("x", shape=lambda args: (args["x"].shape[0], args["y"].shape[0]))},
    check=check_of(ARGUMENTS), reference=reference, bound=bound, gradient_bound=gradient_bound, cost=cost, dims=dims,
    cases=tuple(_cases()), bench_cases=_sized(((1024, 1024, 3), (4096, 4096, 8))),
    device_cases=_sized(((1031, 2053, 3), (513, 777, 16), (257, 300, 64)), EVERY),
    device_bench_cases=_sized(((16_384, 16_384, 3), (32_768, 8192, 64))),
    errors=errors_of(ARGUMENTS),
)  # fmt: skip
