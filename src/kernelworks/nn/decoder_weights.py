"""What a decoder layer holds beside its parts, by name: its parameters and the epsilons of its norms."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["LINEAR_PATHS", "NORM_PATHS", "HEAD_NORM_PATHS", "Epsilons", "LayerWeights"]

LINEAR_PATHS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj",
)  # fmt: skip
NORM_PATHS = ("input_layernorm", "post_attention_layernorm")
HEAD_NORM_PATHS = ("self_attn.q_norm", "self_attn.k_norm")


class LayerWeights(NamedTuple):
    """The parameters of a layer: weight and bias of each of ``LINEAR_PATHS``, then the weights of the norms."""

    q: Tensor
    q_bias: Tensor | None
    k: Tensor
    k_bias: Tensor | None
    v: Tensor
    v_bias: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    gate: Tensor
    gate_bias: Tensor | None
    up: Tensor
    up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    input_norm: Tensor
    post_attention_norm: Tensor
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


class Epsilons(NamedTuple):
    """One of each norm; None for norms of heads that a layer does not have."""

    input_norm: float
    post_attention_norm: float
    q_norm: float | None = None
    k_norm: float | None = None
