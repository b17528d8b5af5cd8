"""What gru promises: a state that a gate keeps or replaces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.templates.recurrent import Recurrent, Values

__all__ = ["CONTRACT", "TEMPLATE", "cell"]


def cell(x: Values, h: Values, states: Values) -> Values:
    """The state behind a step, of each gate's product with the input and with the state."""
    r, z = (x[0] + h[0]).sigmoid(), (x[1] + h[1]).sigmoid()
    n = (x[2] + r * h[2]).tanh()
    return ((1.0 - z) * n + z * states[0],)


def reference(
    x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor | None = None, bias_hh: Tensor | None = None,
    h_0: Tensor | None = None, reverse: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    made: tuple[Tensor, ...] = TEMPLATE.run((x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, reverse))
    return made


TEMPLATE: Any = Recurrent(
    op_package=__file__,
    formula="r, z = sigmoid(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), "
    "n = tanh(W_in x_t + b_in + r (W_hn h_{t-1} + b_hn)), h_t = (1 - z) n + z h_{t-1}",
    source="Cho et al. 2014 (arXiv:1406.1078); cuDNN's form, whose reset gate scales the product",
    gates=("r", "z", "n"),
    states=("h",),
    cell=cell,
    reference=reference,
    function=torch.gru,
    elementary=3.0,
)
CONTRACT = TEMPLATE.contract
