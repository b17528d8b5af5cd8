"""Modules of torch.nn whose forward is an op of ours: the same arguments, parameters, state dict and ``repr``.

Each but the gates and ``QuantizedLinear`` is a subclass of torch's, so that ``isinstance``, initialisation, hooks,
parametrizations and pickles work as there. What an op does not serve (float64, autocast, class weights, ``max_norm``,
...), torch's function computes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.nn import functional as calls
from kernelworks.nn.originals import shipped_forward
from kernelworks.nn.quantized_linear import QuantizedLinear
from kernelworks.nn.rebind import Rebinder
from kernelworks.ops.lookup.embedding import TORCH_SIGNATURE as EMBEDDING

__all__ = [
    "GELU", "CrossEntropyLoss", "Embedding", "GeluMul", "LayerNorm", "Linear", "LogSoftmax", "MultiheadAttention",
    "QuantizedLinear", "RMSNorm", "ReLU", "SiluMul", "Softmax", "Softmax2d",
]  # fmt: skip


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


def _multi_head() -> Callable[..., Any]:
    """Torch's forward of its module, whose function calls ours in place of torch's. If either was replaced, or this
    version of torch writes them otherwise, the forward that there is."""
    shipped = shipped_forward(torch.nn.MultiheadAttention)
    rebound = Rebinder().rebind(F.multi_head_attention_forward)
    if rebound is None or not isinstance(shipped, FunctionType):
        return torch.nn.MultiheadAttention.forward
    functional = ModuleType(F.__name__)
    vars(functional).update(vars(F), multi_head_attention_forward=rebound.function)
    return FunctionType(shipped.__code__, shipped.__globals__ | {"F": functional}, "forward", shipped.__defaults__)


_MULTI_HEAD = _multi_head()


class MultiheadAttention(torch.nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` by ``kernelworks.linear`` and ``attention``, or ``softmax`` if the weights are
    asked for (``need_weights``, torch's default: without it they are never stored). In inference torch has the whole
    module in one function of its own, which runs where torch would take it.
    """

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        found: tuple[Tensor, Tensor | None] = _MULTI_HEAD(
            self, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )
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
