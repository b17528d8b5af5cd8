"""What batch_norm promises; what it shares with other norms of channels is in ``templates/channel_norm.py``."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract.arguments import Number
from kernelworks.contract.channel_layout import BATCH
from kernelworks.contract.numbers import Real
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.channel_norm import ChannelNorm
from kernelworks.templates.channel_rows import ChannelVector, OwnStatistics

__all__ = ["CONTRACT", "TEMPLATE"]


def function(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> Tensor:  # fmt: skip
    return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)


def reference(
    x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> tuple[Any, ...]:  # fmt: skip
    return TEMPLATE.definition(dict(locals()))


TEMPLATE: ChannelNorm = ChannelNorm(
    op_package=__file__,
    formula="output = (x - mean) / sqrt(var + eps) * weight[c] + bias[c], statistics of a channel, or the running ones",
    source="Ioffe and Szegedy, Batch Normalization, ICML 2015 (arXiv:1502.03167)",
    arguments={
        "x": T("N C ..."), "running_mean": ChannelVector(), "running_var": ChannelVector(beside="running_mean"),
        "weight": ChannelVector(), "bias": ChannelVector(), "training": OwnStatistics(rows=BATCH),
        "momentum": Real(0.1), "eps": Number(),
    },
    rows=BATCH,
    flag="training",
    function=function,
    reference=reference,
    preset={"training": True, "momentum": 0.1, "eps": 1e-5},
)  # fmt: skip
CONTRACT = TEMPLATE.contract
