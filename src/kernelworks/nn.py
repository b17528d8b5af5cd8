"""Modules of torch.nn whose forward is an op of ours: the same arguments, parameters, state dict and ``repr``.

Each is a subclass of torch's, so that ``isinstance``, initialisation, hooks, parametrizations and pickles work as
there. What an op does not serve (float64, autocast, class weights, ``max_norm``, ...), torch's function computes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.models import calls
from kernelworks.ops.lookup.embedding import SPELLING as EMBEDDING

__all__ = ["GELU", "CrossEntropyLoss", "Embedding", "LayerNorm", "Linear", "RMSNorm", "SiluMul", "Softmax"]


class Linear(torch.nn.Linear):
    """``torch.nn.Linear`` by ``kernelworks.linear``."""

    def forward(self, input: Tensor) -> Tensor:
        return calls.linear(input, self.weight, self.bias)


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm`` by ``kernelworks.layer_norm``, where the last dimension is normalised with both
    parameters."""

    def forward(self, input: Tensor) -> Tensor:
        return calls.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """``torch.nn.RMSNorm`` by ``kernelworks.rms_norm``, where the last dimension is normalised with a weight."""

    def forward(self, x: Tensor) -> Tensor:
        return calls.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GELU(torch.nn.GELU):
    """``torch.nn.GELU`` by ``kernelworks.gelu``."""

    def forward(self, input: Tensor) -> Tensor:
        return calls.gelu(input, approximate=self.approximate)


class Softmax(torch.nn.Softmax):
    """``torch.nn.Softmax`` by ``kernelworks.softmax``."""

    def forward(self, input: Tensor) -> Tensor:
        return calls.softmax(input, self.dim, _stacklevel=5)


class Embedding(torch.nn.Embedding):
    """``torch.nn.Embedding`` by ``kernelworks.embedding``."""

    def forward(self, input: Tensor) -> Tensor:
        if not calls.expressible(self.weight):
            return super().forward(input)
        found: Tensor = EMBEDDING.as_torch(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )
        return found


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """``torch.nn.CrossEntropyLoss`` by ``kernelworks.cross_entropy``, of rows of logits with integer classes."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return calls.cross_entropy(
            input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip


class SiluMul(torch.nn.Module):
    """The gate of a gated MLP, ``silu(gate) * up``, by ``kernelworks.silu_mul``. It has no parameters."""

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return calls.silu_mul(gate, up)
