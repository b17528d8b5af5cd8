"""What add_layer_norm promises; what it shares with other norms is in ``templates/norm.py``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract.arguments import Arguments, Number
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.templates.norm import EPS_CONDITION, PARAMETER, ROW, SHAPE, Norm

__all__ = ["ARGUMENTS", "AT_ONCE", "CONTRACT", "TEMPLATE"]


def function(x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    s = x + residual
    return F.layer_norm(s, x.shape[-1:], weight, bias, eps), s


def operators(x: Any, residual: Any, weight: Any, bias: Any, eps: float) -> Any:
    s = aten("add.Tensor", x, residual)
    return aten("layer_norm", s, (x.shape[-1],), weight, bias, eps, torch.backends.cudnn.enabled), s


ARGUMENTS: Arguments = {
    "x": ROW,
    "residual": T("... N", like="x"),
    "weight": PARAMETER,
    "bias": PARAMETER,
    "eps": Number(),
}
TEMPLATE = Norm(
    op_package=__file__,
    formula="output = (s - mean(s, -1)) / sqrt(mean((s - mean)^2, -1) + eps) * weight + bias, with s = x + residual",
    source="Ba, Kiros and Hinton, Layer Normalization, 2016 (arXiv:1607.06450)",
    arguments=ARGUMENTS,
    centred=True,
    function=function,
    aten=operators,
    flop=(8.0, 17.0),
    eps=1e-5,
)
AT_ONCE = Passthrough(
    f"(layer_norm((s := add(x, residual)), {SHAPE}, weight, bias, eps), s)",
    ("x", "residual"),
    (EPS_CONDITION, "x.shape == residual.shape"),
    {"layer_norm": torch.layer_norm, "add": torch.add},
    ("weight", "bias"),
)
CONTRACT = TEMPLATE.contract
