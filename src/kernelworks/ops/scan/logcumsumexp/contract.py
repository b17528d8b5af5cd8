"""What logcumsumexp promises; what it shares with other scans is in ``templates/scan.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case, Cost, Request, rounding
from kernelworks.contract.cases import normal
from kernelworks.templates.scan import Scan

__all__ = ["CONTRACT", "TEMPLATE"]

F32, U32, U64 = torch.float32, UNIT_ROUNDOFF[torch.float32], UNIT_ROUNDOFF[torch.float64]
INF, NAN = torch.inf, torch.nan


def _largest(x: Tensor, dim: int) -> Tensor:
    """Along each line the largest finite magnitude up to each element."""
    sizes = torch.where(x.isfinite(), x.abs(), 0.0)
    return sizes.cummax(dim).values if x.dim() else sizes


def _length(x: Tensor, dim: int) -> int:
    return x.shape[dim] if x.dim() else 1


def _off(value: Tensor, more: Tensor, dtype: torch.dtype) -> Tensor:
    off = rounding(value, dtype) + more
    return off if dtype == F32 else off + U32 * value.abs() + 2.0**-150


def _step_error(x: Tensor, dim: int) -> Tensor:
    """How far a step of float64 may be off: the exponential, the logarithm and the sum, each of what may stand 16 from
    the largest number near it (a tile on a GPU)."""
    n = _length(x, dim)
    return U64 * (40.0 + torch.tensor(float(max(n, 1))).log() + _largest(x, dim))


def _bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """A step for each element up to this one, here and in the reference: none of them makes an error larger."""
    x, dim = args["x"].double(), args["dim"]
    count = torch.ones_like(x).cumsum(dim)
    return (_off(outputs[0], 2.0 * count * _step_error(x, dim), dtype),)


def _gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Terms are the gradient of magnitudes. Each has met, along its line, a slope and a sum a step, whose exponents are
    off by the errors of the steps before."""
    dim = args["dim"]
    with torch.enable_grad():
        x = args["x"].detach().double().requires_grad_()
        (terms,) = torch.autograd.grad(torch.logcumsumexp(x, dim), x, grads[0].abs())
    steps = _length(x, dim) * (_step_error(x.detach(), dim).amax() if x.numel() else 0.0)
    return {"x": _off(gradients["x"], 4.0 * steps * terms.nan_to_num(0.0) + 2.0**-149, dtype)}


# ---------------------------------------------------------------- cases

# Lines with what a running maximum and its exponentials go wrong at. Of -inf the gradient is torch's: 0, and NaN before
# the first number.
LINES: dict[str, tuple[float, ...]] = {
    "-inf first": (-INF, -INF, 1.0, 2.0, -3.0), "-inf between": (1.0, -INF, -INF, 2.0, -INF, 0.5),
    "-inf alone": (-INF,) * 5, "far apart": (-1e4, 0.0, 1e4, -1e4, 1e4, 9.0), "equal": (3.0,) * 19,
    "falling": (300.0, 200.0, 100.0, 0.0, -100.0), "to 0": (-0.6931471805599453, -0.6931471805599453, -40.0, -40.0),
}  # fmt: skip
POISONED_LINES: dict[str, tuple[float, ...]] = {
    "inf": (1.0, INF, 2.0, -INF, INF),
    "both infinities first": (-INF, INF, 0.0),
    "nan": (1.0, 2.0, NAN, INF, -INF, 3.0),
}


def _repeated(values: tuple[float, ...], down: bool, generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """The line in ordinary neighbours, at every place of a vector."""
    n = 19 + len(values)
    x = normal(generator, dtype, 18, n, scale=2.0, mean=-1.0)
    for row in range(18):
        x[row, row : row + len(values)] = torch.tensor(values).to(dtype)
    x[0, len(values) :] = -0.5
    return {"x": x.T.contiguous(), "dim": 0} if down else {"x": x, "dim": -1}


def _own_cases() -> Iterator[Case]:
    for down in (False, True):
        where = " down columns" * down
        for name, values in (LINES | POISONED_LINES).items():
            yield Case(
                f"{name}{where}",
                lambda g, d, v=values, c=down: _repeated(v, c, g, d),
                gradients=name in LINES,
            )
    yield Case("rising over many", lambda g, d: {"x": torch.arange(3000).mul(0.25).to(d).repeat(2, 1), "dim": 1})


def _cost(request: Request) -> Cost:
    """An exponential and a logarithm a step; of a gradient also those of two slopes."""
    x = request.args["x"]
    if request.pass_ == "backward":
        return Cost(10.0 * x.numel, 4.0 * x.numel, request.args["grad_output"].nbytes + x.nbytes, x.nbytes)
    return Cost(4.0 * x.numel, 2.0 * x.numel, x.nbytes, x.nbytes)


TEMPLATE = Scan(
    op_package=__file__,
    formula="output[i] = log(e^x[0] + ... + e^x[i]), along dim",
    source="Blelloch, Prefix Sums and Their Applications, CMU-CS-90-190, 1990; torch.logcumsumexp",
    function=torch.logcumsumexp,
    aten="logcumsumexp",
    join=torch.logaddexp,
    none=-INF,
    reads_x=True,
)
CONTRACT = replace(
    TEMPLATE.contract, bound=_bound, gradient_bound=_gradient_bound, cost=_cost,
    cases=(*TEMPLATE.contract.cases, *_own_cases()),
)  # fmt: skip
