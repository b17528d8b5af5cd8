"""One layer of a GRU in one direction."""

from __future__ import annotations

from typing import Any

import torch

from kernelworks.dispatch.signature import Array
from kernelworks.dispatch.torch_network import TorchNetwork
from kernelworks.ops.recurrent.gru.contract import CONTRACT, TEMPLATE
from kernelworks.ops.recurrent.gru.mutants import MUTANTS

__all__ = ["OP", "gru"]


def gru(
    x: Array, weight_ih: Array, weight_hh: Array, bias_ih: Array | None = None, bias_hh: Array | None = None,
    h_0: Array | None = None, reverse: bool = False, *, out: Any = None, kernel: str | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """One layer of a GRU in one direction, over all steps of a sequence or the next ones.

    ``r, z = sigmoid(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh)``, ``n = tanh(W_in x_t + b_in + r (W_hn h_{t-1} + b_hn))``
    and ``h_t = (1 - z) n + z h_{t-1}``: weights are those of ``nn.GRU`` and ``nn.GRUCell``, in their order. A network
    of several layers or of both directions is several calls; ``kernelworks.nn.swap`` makes them of an ``nn.GRU``.

    Args:
        x: [T, B, I], float32, bfloat16 or float16, any strides.
        weight_ih: [3 H, I], the rows of r, z and n.
        weight_hh: [3 H, H].
        bias_ih, bias_hh: [3 H], or None.
        h_0: [B, H], the state before the first step; None for zeros.
        reverse: from the last step to the first; each output stands where its input does.
        out: where to write: contiguous tensors like the two results.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``(output, h_n)``: [T, B, H], and the state behind the last step, [B, H], of x's dtype: the next call's h_0.

    Error bound: u |output| and what the cell's expression makes of float32's roundings, carried along the sequence by
    the gates and by |W_hh| (README.md). A GPU's kernel rounds the output of each step before the next one reads it.
    Gradients are torch's own.
    Cost: 2 T B 3 H (I + H + 1) flop and 3 T B H exponentials; reads its arguments once and writes its results once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Cho et al. 2014, arXiv:1406.1078.
    """
    made: tuple[Array, Array] = OP.call(x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, reverse, out, kernel)
    return made


OP = TEMPLATE.op(CONTRACT, MUTANTS)
TORCH_NETWORK = TorchNetwork(OP, torch.gru, torch.nn.GRU)
