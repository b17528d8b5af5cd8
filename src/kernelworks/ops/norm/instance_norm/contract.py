"""What instance_norm promises; what it shares with other norms of channels is in ``templates/channel_norm.py``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract.arguments import Number
from kernelworks.contract.channel_layout import CHANNELS
from kernelworks.contract.numbers import Real
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.channel_norm import ChannelNorm
from kernelworks.templates.channel_rows import ChannelVector, OwnStatistics

__all__ = ["CONTRACT", "TEMPLATE"]


def function(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    use_input_stats: bool, momentum: float, eps: float,
) -> Tensor:  # fmt: skip
    if weight is None and bias is not None:  # torch takes float32's beside 16 bits with a weight
        weight = torch.ones_like(bias)
    return F.instance_norm(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def reference(
    x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> tuple[Any, ...]:  # fmt: skip
    return TEMPLATE.definition(dict(locals()))


TEMPLATE: ChannelNorm = ChannelNorm(
    op_package=__file__,
    formula="output = (x - mean) / sqrt(var + eps) * weight[c] + bias[c], statistics of a channel of a sample",
    source="Ulyanov, Vedaldi and Lempitsky, Instance Normalization, 2016 (arXiv:1607.08022)",
    arguments={
        "x": T("N C ..."), "running_mean": ChannelVector(), "running_var": ChannelVector(beside="running_mean"),
        "weight": ChannelVector(), "bias": ChannelVector(), "use_input_stats": OwnStatistics(rows=CHANNELS),
        "momentum": Real(0.1), "eps": Number(),
    },
    rows=CHANNELS,
    flag="use_input_stats",
    function=function,
    reference=reference,
    preset={"use_input_stats": True, "momentum": 0.1, "eps": 1e-5},
)  # fmt: skip
CONTRACT = TEMPLATE.contract
