"""What rms_norm promises; what it shares with other norms is in ``templates/norm.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract.arguments import Number
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.passthrough import ExactShapes, Passthrough
from kernelworks.templates.norm import EPS_CONDITION, PARAMETER, ROW, SHAPE, Norm, over_rows, root_mean_square
from kernelworks.templates.rowwise import sized_cases

__all__ = ["AT_ONCE", "CONTRACT", "TEMPLATE"]


def error(z: Tensor, scale: Tensor, n: int) -> Tensor:
    """1/rms: a chain of N/32 sums (four accumulators of eight lanes, the narrowest we have), halved by the square root,
    the tree that joins them, the division, the root; then the sum with the residual, the scale, two products."""
    return (n / 64 + 11) * z.abs() * scale


def gradient_bound(template: Norm, args: dict[str, Any], grads: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """The two terms of grad_x may cancel, so each enters with its magnitude; so do the terms of the mean. The chain is
    that of one accumulator here."""
    x, z, r = template.normalize(args)
    weight = torch.ones(x.shape[-1], dtype=torch.float64) if args["weight"] is None else args["weight"]
    relative, gw = x.shape[-1] / 8 + 16, (grads[0] * weight).abs()
    terms = r * (gw + z.abs() * (gw * z.abs()).mean(-1, keepdim=True))
    grad_x = relative * (terms + (grads[1].abs() if len(grads) == 2 else 0.0))
    return {"x": grad_x, "residual": grad_x, "weight": relative * over_rows((grads[0] * z).abs())}


def function(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None = None) -> Any:
    s = x if residual is None else x + residual
    output = root_mean_square(s, weight, eps)
    return output if residual is None else (output, s)


def operators(x: Any, weight: Any, eps: float, residual: Any) -> Any:
    s = x if residual is None else aten("add.Tensor", x, residual)
    output = aten("rms_norm", s, (x.shape[-1],), weight, eps)
    return output if residual is None else (output, s)


def make(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str = "normal") -> dict[str, Any]:
    return TEMPLATE.make(generator, dtype, shape, kind)


TEMPLATE: Norm = Norm(
    op_package=__file__,
    formula="output = s / sqrt(mean(s^2, -1) + eps) * weight, with s = x + residual",
    source="Zhang and Sennrich, Root Mean Square Layer Normalization, 2019 (arXiv:1910.07467)",
    arguments={
        "x": ROW,
        "weight": PARAMETER,
        "eps": Number(),
        "residual": T("... N", like="x", optional=True),
    },
    centred=False,
    function=function,
    aten=operators,
    error=error,
    gradient_bound=gradient_bound,
    flop=(4.0, 11.0),
    eps=1e-6,
    cases=tuple(sized_cases(make, ((2, 9001),))),  # which programs of a GPU share
    reads={"weight": ("x", "residual")},
)
AT_ONCE = Passthrough(
    f"rms_norm(x, {SHAPE}, weight, eps)",
    ("x",),
    (EPS_CONDITION, "residual is None"),
    {"rms_norm": torch.rms_norm},
    ("weight",),
    ExactShapes((), "rms_norm(x, learned, weight, eps)", lambda x, *_: (x.shape[-1],), last=True),
)
CONTRACT = TEMPLATE.contract
