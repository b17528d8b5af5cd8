"""What layer_norm promises; what it shares with other norms is in ``templates/norm.py``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from kernelworks.contract import FLOATS, Case
from kernelworks.contract.arguments import Number
from kernelworks.contract.cases import normal
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.passthrough import ExactShapes, Passthrough
from kernelworks.templates.norm import EPS_CONDITION, PARAMETER, ROW, SHAPE, Norm
from kernelworks.templates.rowwise import sized_cases

__all__ = ["AT_ONCE", "CONTRACT", "TEMPLATE"]

EPS = 1e-5


def function(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def operators(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return aten("layer_norm", x, (x.shape[-1],), weight, bias, eps, torch.backends.cudnn.enabled)


def make(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str = "normal") -> dict[str, Any]:
    return TEMPLATE.make(generator, dtype, shape, kind)


def far(name: str, shape: tuple[int, int], mean: float, **own: Any) -> Case:
    """A mean so far from zero that squares of x hold nothing of the variance in float32."""
    return Case(name, lambda g, d: make(g, d, shape) | {"x": normal(g, d, *shape, mean=mean)}, **own)


def large(n: int) -> Case:
    """An output of 9 MiB."""
    return Case(f"large N={n}", lambda g, d: make(g, d, ((9 << 20) // (n * d.itemsize), n)), gradients=False)


TEMPLATE: Norm = Norm(
    op_package=__file__,
    formula="output = (x - mean(x, -1)) / sqrt(mean((x - mean)^2, -1) + eps) * weight + bias",
    source="Ba, Kiros and Hinton, Layer Normalization, 2016 (arXiv:1607.06450)",
    arguments={"x": ROW, "weight": PARAMETER, "bias": PARAMETER, "eps": Number()},
    centred=True,
    function=function,
    aten=operators,
    flop=(8.0, 17.0),
    eps=EPS,
    small=(512, 384, (torch.float32,)),
    cases=(
        *sized_cases(make, ((2, 9001),)),  # more than one piece
        large(1088),  # rows at cache lines
        large(1031),  # rows that start anywhere
        far("mean 1e4", (5, 1031), 1e4),
        far("mean 1e7", (5, 1031), 1e7, dtypes=(torch.float32, torch.bfloat16)),
    ),
    device_cases=(
        *sized_cases(make, ((701, 4608), (1501, 8200), (901, 16384), (70000, 512, (torch.bfloat16,)))),
        *(
            far(
                f"mean {mean:.0e}, {m}x{n}".replace("+0", ""), (m, n), mean,
                dtypes=(torch.float32, torch.bfloat16) if mean == 1e7 else FLOATS,
            )
            for mean, m, n in ((1e4, 300, 4096), (1e7, 1201, 4096), (1e7, 3001, 1280), (1e4, 500, 16384))
        ),
    ),
)  # fmt: skip
AT_ONCE = Passthrough(
    f"layer_norm(x, {SHAPE}, weight, bias, eps)",
    ("x",),
    (EPS_CONDITION,),
    {"layer_norm": torch.layer_norm},
    ("weight", "bias"),
    ExactShapes((), "layer_norm(x, learned, weight, bias, eps)", lambda x, *_: (x.shape[-1],), last=True),
)
CONTRACT = TEMPLATE.contract
