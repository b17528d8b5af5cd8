"""What gelu promises."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.contract.arguments import Word
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.pointwise import BF16, F32, Bench, Pointwise, Work

__all__ = ["CONTRACT", "TEMPLATE", "change", "share", "share_error", "slope_error"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149  # of float32: what an exponential in the subnormals may be off by
TWICE_ROOT_TWO_OVER_PI = 2.0 * math.sqrt(2.0 / math.pi)
SATURATION_LIMIT = 20.0  # beyond it both distribution functions are 0 or 1 in float32


def _twice_u(x: Tensor) -> Tensor:
    return TWICE_ROOT_TWO_OVER_PI * (x + 0.044715 * x * x * x)


def share(x: Tensor, approximate: str) -> Tensor:
    """What x is multiplied by, kept from cancelling where it is near 0."""
    return torch.sigmoid(_twice_u(x)) if approximate == "tanh" else 0.5 * torch.special.erfc(-x / math.sqrt(2.0))


def change(x: Tensor, approximate: str) -> Tensor:
    """x times the derivative of the share."""
    if approximate == "tanh":
        slope = TWICE_ROOT_TWO_OVER_PI * (1.0 + 3.0 * 0.044715 * x * x)
        return torch.sigmoid(_twice_u(x)) * torch.sigmoid(-_twice_u(x)) * slope * x
    return x * torch.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def share_error(x: Tensor, approximate: str) -> Tensor:
    """How far the float32 share may be off. README.md derives the two."""
    value = share(x, approximate)
    if approximate == "tanh":
        u2 = _twice_u(x)
        return U32 * (8.0 * value + 4.0 * u2.abs() * value * torch.sigmoid(-u2)) + SMALLEST
    return U32 * (16.0 * value + 2.5 * x * x * share(-x.abs(), approximate)) + SMALLEST


def slope_error(x: Tensor, approximate: str) -> Tensor:
    """How far the float32 derivative may be off. Its two terms cancel near x = -0.75, so each enters with its
    magnitude."""
    if approximate == "tanh":
        relative = 22.0 + 8.0 * _twice_u(x).abs()
        slope = TWICE_ROOT_TWO_OVER_PI * (1.0 + 3.0 * 0.044715 * SATURATION_LIMIT**2)
    else:
        relative, slope = 10.0 + 2.5 * x * x, 1.0
    errors = U32 * (relative * change(x, approximate).abs() + 2.0 * share(x, approximate))
    return share_error(x, approximate) + errors + SMALLEST * slope * x.abs().clamp(max=SATURATION_LIMIT)


TEMPLATE = Pointwise(
    op_package=__file__,
    formula="output = x Phi(x), or x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))",
    source="Hendrycks and Gimpel, Gaussian Error Linear Units, 2016 (arXiv:1606.08415)",
    arguments={"x": T("..."), "approximate": Word("none", "tanh")},
    reference=lambda x, approximate: x * share(x, approximate),
    work={"none": Work(forward=28, backward=36, functions=1), "tanh": Work(forward=20, backward=28, functions=1)},
    elementary="tanh",
    sweeps={"both tails": 16.0, "around 0": 1e-2},
    error=lambda output, x, approximate: x.abs() * share_error(x, approximate) + SMALLEST,
    slopes_error=lambda grad, x, approximate: {"x": grad.abs() * slope_error(x, approximate) + SMALLEST},
    bench=(
        Bench(1024, 4096, F32, "tanh"),
        Bench(2048, 4096, BF16, "tanh"),
        Bench(64, 1536, F32, "tanh"),
        Bench(4096, 1536, F32, "none"),
        Bench(2048, 4096, BF16, "none"),
    ),
    device_bench=(
        Bench(4096, 16384, BF16, "tanh"),
        Bench(4096, 16384, BF16, "none"),
        Bench(16, 1024, BF16, "tanh"),
    ),
)
CONTRACT = TEMPLATE.contract
