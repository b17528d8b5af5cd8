"""Modules of torch.nn whose forward is an op of ours: the same arguments, parameters, state dict and ``repr``.

Each but the gates and ``QuantizedLinear`` is a subclass of torch's, so that ``isinstance``, initialisation, hooks,
parametrizations and pickles work as there. What an op does not serve (float64, autocast, class weights, ``max_norm``,
...), torch's function computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernelworks.nn import functional as calls
from kernelworks.nn.quantized_linear import QuantizedLinear
from kernelworks.ops.lookup.embedding import TORCH_SIGNATURE as EMBEDDING

if TYPE_CHECKING:
    from kernelworks.nn.multihead_attention import MultiheadAttention

__all__ = [
    "GELU", "CrossEntropyLoss", "Embedding", "GeluMul", "LayerNorm", "Linear", "LogSoftmax", "MultiheadAttention",
    "QuantizedLinear", "RMSNorm", "ReLU", "SiluMul", "Softmax", "Softmax2d",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The multi-head module is made when it is first asked for: all of torch's functional.py is compiled for it."""
    if name != "MultiheadAttention":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kernelworks.nn.multihead_attention import MultiheadAttention as made

    return globals().setdefault(name, made)


class Linear(torch.nn.Linear):
    """``torch.nn.Linear`` by ``kernelworks.linear``."""

    def forward(self, input: Tensor) -> Tensor:
        return calls.linear(input, self.weight, self.bias)


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm`` by ``kernelworks.layer_norm``, if the last dimension is normalised with both
    parameters."""

    def forward(self, input: Tensor) -> Tensor:
        return calls.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """``torch.nn.RMSNorm`` by ``kernelworks.rms_norm``, if the last dimension is normalised with a weight."""

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


class Softmax2d(torch.nn.Softmax2d):
    """``torch.nn.Softmax2d`` by ``kernelworks.softmax``, over the channels of [N, C, H, W] or [C, H, W]."""

    def forward(self, input: Tensor) -> Tensor:
        return calls.softmax(input, -3, _stacklevel=5) if input.dim() in (3, 4) else super().forward(input)


class LogSoftmax(torch.nn.LogSoftmax):
    """``torch.nn.LogSoftmax`` by ``kernelworks.log_softmax``."""

    def forward(self, input: Tensor) -> Tensor:
        found: Tensor = calls.FUNCTIONS["log_softmax"](input, self.dim, _stacklevel=5)
        return found


class ReLU(torch.nn.ReLU):
    """``torch.nn.ReLU`` by ``kernelworks.relu``; with ``inplace`` torch's function."""

    def forward(self, input: Tensor) -> Tensor:
        found: Tensor = calls.FUNCTIONS["relu"](input, inplace=self.inplace)
        return found


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
        found: Tensor = calls.FUNCTIONS["cross_entropy"](
            input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip
        return found


class GeluMul(torch.nn.Module):
    """The gate of a GeGLU, ``gelu(gate) * up``, by ``kernelworks.gelu_mul``. It has no parameters.

    Args:
        approximate: ``"none"`` (torch's default) or ``"tanh"``.
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return calls.GATED_FUNCTIONS["gelu"](gate, up, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiluMul(torch.nn.Module):
    """The gate of a gated MLP, ``silu(gate) * up``, by ``kernelworks.silu_mul``. It has no parameters."""

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return calls.GATED_FUNCTIONS["silu"](gate, up)
