"""What group_norm promises; what it shares with other norms of channels is in ``templates/channel_norm.py``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract.arguments import Number
from kernelworks.contract.channel_layout import GROUPS
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.aten import aten
from kernelworks.templates.channel_norm import ChannelNorm
from kernelworks.templates.channel_rows import ChannelCount, ChannelVector

__all__ = ["CONTRACT", "TEMPLATE"]


def function(x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    if weight is None and bias is not None:  # torch's backward fails without
        weight = torch.ones_like(bias)
    return F.group_norm(x, num_groups, weight, bias, eps)


def operators(x: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    return aten("group_norm", x, num_groups, weight, bias, eps, torch.backends.cudnn.enabled)


def reference(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Any, ...]:
    return TEMPLATE.definition({"x": x, "num_groups": num_groups, "weight": weight, "bias": bias, "eps": eps})


TEMPLATE: ChannelNorm = ChannelNorm(
    op_package=__file__,
    formula="output = (x - mean) / sqrt(var + eps) * weight[c] + bias[c], statistics of a group of channels",
    source="Wu and He, Group Normalization, ECCV 2018 (arXiv:1803.08494)",
    arguments={
        "x": T("N C ..."), "num_groups": ChannelCount(), "weight": ChannelVector(), "bias": ChannelVector(),
        "eps": Number(),
    },
    rows=GROUPS,
    function=function,
    aten=operators,
    reference=reference,
)  # fmt: skip
CONTRACT = TEMPLATE.contract
