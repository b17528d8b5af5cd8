"""One layer of an LSTM in one direction."""

from __future__ import annotations

from typing import Any

import torch

from kernelworks.dispatch.signature import Array
from kernelworks.dispatch.torch_network import TorchNetwork
from kernelworks.ops.recurrent.lstm.contract import CONTRACT, TEMPLATE
from kernelworks.ops.recurrent.lstm.mutants import MUTANTS

__all__ = ["OP", "lstm"]


def lstm(
    x: Array, weight_ih: Array, weight_hh: Array, bias_ih: Array | None = None, bias_hh: Array | None = None,
    h_0: Array | None = None, c_0: Array | None = None, reverse: bool = False, *, out: Any = None,
    kernel: str | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """One layer of an LSTM in one direction, over all steps of a sequence or the next ones.

    ``i, f, g, o = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh``, ``c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)`` and
    ``h_t = sigmoid(o) tanh(c_t)``: weights are those of ``nn.LSTM`` and ``nn.LSTMCell``, in their order. A network of
    several layers or of both directions is several calls; ``kernelworks.nn.swap`` makes them of an ``nn.LSTM``.

    Args:
        x: [T, B, I], float32, bfloat16 or float16, any strides.
        weight_ih: [4 H, I], the rows of i, f, g and o.
        weight_hh: [4 H, H].
        bias_ih, bias_hh: [4 H], or None.
        h_0, c_0: [B, H], the states before the first step; None for zeros.
        reverse: from the last step to the first; each output stands where its input does.
        out: where to write: contiguous tensors like the three results.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``(output, h_n, c_n)``: [T, B, H], and the states behind the last step, [B, H], of x's dtype. They are the next
        call's h_0 and c_0: in float32 two calls on the halves of a sequence are one on all of it, within its bound.

    Error bound: u |output| and what the cell's expression makes of float32's roundings, carried along the sequence by
    the gates and by |W_hh| (README.md). A GPU's kernel rounds the output of each step before the next one reads it.
    Gradients are torch's own.
    Cost: 2 T B 4 H (I + H + 1) flop and 5 T B H exponentials; reads its arguments once and writes its results once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Hochreiter and Schmidhuber 1997; Gers, Schmidhuber and Cummins 2000.
    """
    made: tuple[Array, Array, Array] = OP.call(
        x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, reverse, out, kernel
    )
    return made


OP = TEMPLATE.op(CONTRACT, MUTANTS)
TORCH_NETWORK = TorchNetwork(OP, torch.lstm, torch.nn.LSTM)
