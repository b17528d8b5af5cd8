"""What lstm promises: a state that gates keep, write and read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.templates.recurrent import Recurrent, Values

__all__ = ["CONTRACT", "TEMPLATE", "cell"]


def cell(x: Values, h: Values, states: Values) -> Values:
    """The states behind a step, of each gate's product with the input and with the state."""
    i, f, g, o = (a + b for a, b in zip(x, h, strict=True))
    c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def reference(
    x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor | None = None, bias_hh: Tensor | None = None,
    h_0: Tensor | None = None, c_0: Tensor | None = None, reverse: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    made: tuple[Tensor, ...] = TEMPLATE.run((x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, reverse))
    return made


TEMPLATE: Any = Recurrent(
    op_package=__file__,
    formula="i, f, g, o = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh, c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g), "
    "h_t = sigmoid(o) tanh(c_t)",
    source="Hochreiter and Schmidhuber 1997, Long Short-Term Memory; Gers et al. 2000 (the forget gate)",
    gates=("i", "f", "g", "o"),
    states=("h", "c"),
    cell=cell,
    reference=reference,
    function=torch.lstm,
    elementary=5.0,
)
CONTRACT = TEMPLATE.contract
