"""The functions of torch.nn.functional that kernelworks has an op for, with torch's own signatures.

Each calls the op where it can say what was asked for, and torch's function otherwise: another device, float64,
autocast, mixed dtypes, a keyword that the op does not have. So what a swapped model accepts, and the errors it raises
on bad input that torch would refuse, stay torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract import FLOATS
from kernelworks.ops.activation.gelu import gelu as gelu_op
from kernelworks.ops.activation.silu_mul import silu_mul as silu_mul_op
from kernelworks.ops.attention.attention import attention as attention_op
from kernelworks.ops.linear.linear import linear as linear_op
from kernelworks.ops.norm.layer_norm import layer_norm as layer_norm_op
from kernelworks.ops.norm.rms_norm import rms_norm as rms_norm_op
from kernelworks.ops.position.rope import rope as rope_op
from kernelworks.ops.reduction.cross_entropy import cross_entropy as cross_entropy_op
from kernelworks.ops.reduction.softmax import softmax as softmax_op

__all__ = [
    "FUNCTIONS", "attends", "cross_entropy", "expressible", "gelu", "layer_norm", "linear", "rms_norm", "rotary",
    "scaled_dot_product_attention", "silu_mul", "softmax",
]  # fmt: skip

WIDEST_HEAD = 256  # of the attention op

_SUPPORTED = frozenset(FLOATS)
_autocast = torch.is_autocast_enabled


def expressible(x: Tensor, *others: Tensor | None) -> bool:
    """Whether kernelworks has rows for these tensors: CPU, all of one of the three dtypes, and no autocast."""
    dtype = x.dtype
    if dtype not in _SUPPORTED or not x.is_cpu or _autocast("cpu"):
        return False
    for other in others:
        if other is None or other.dtype is dtype:
            continue
        return False
    return True


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``."""
    if expressible(input, weight, bias) and weight.dim() == 2:
        return linear_op(input, weight, bias)  # type: ignore[no-any-return]
    return F.linear(input, weight, bias)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """``F.rms_norm``. Without ``eps`` torch takes the dtype's own; that is defined here for float32 only."""
    if len(normalized_shape) == 1 and weight is not None and expressible(input, weight):
        if eps is not None:
            return rms_norm_op(input, weight, eps=eps)  # type: ignore[no-any-return]
        if input.dtype is torch.float32:
            return rms_norm_op(input, weight, eps=torch.finfo(torch.float32).eps)  # type: ignore[no-any-return]
    return F.rms_norm(input, normalized_shape, weight, eps)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``F.layer_norm``."""
    if len(normalized_shape) == 1 and weight is not None and bias is not None and expressible(input, weight, bias):
        return layer_norm_op(input, weight, bias, eps=eps)  # type: ignore[no-any-return]
    return F.layer_norm(input, normalized_shape, weight, bias, eps)


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """``F.gelu``."""
    if approximate in ("none", "tanh") and expressible(input):
        return gelu_op(input, approximate=approximate)  # type: ignore[no-any-return]
    return F.gelu(input, approximate=approximate)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """``F.silu(gate) * up``."""
    if gate.shape == up.shape and expressible(gate, up):
        return silu_mul_op(gate, up)  # type: ignore[no-any-return]
    return F.silu(gate) * up


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """``F.softmax``."""
    if dim is not None and input.dim() > 0 and (dtype is None or dtype is input.dtype) and expressible(input):
        return softmax_op(input, dim=dim)  # type: ignore[no-any-return]
    return F.softmax(input, dim, _stacklevel, dtype)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """``F.cross_entropy``: the mean over rows of logits with integer classes goes to kernelworks."""
    plain = weight is None and size_average is None and reduce is None and reduction == "mean" and not label_smoothing
    if plain and input.dim() == 2 and target.dtype is torch.int64 and target.dim() == 1 and expressible(input):
        return cross_entropy_op(input, target, ignore_index=ignore_index)  # type: ignore[no-any-return]
    return F.cross_entropy(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``F.scaled_dot_product_attention``. Its causal mask starts at the upper left, which the op calls top_left."""
    if (
        not dropout_p
        and attends(query, key, value, attn_mask, grouped=enable_gqa)
        and (attn_mask is None or not is_causal)
    ):
        causal = "top_left" if is_causal else None
        output: Tensor = attention_op(query, key, value, causal=causal, scale=scale, mask=attn_mask)
        return output
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def attends(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, grouped: bool) -> bool:
    """Whether the attention op takes these: [B, H, Lq, D] with [B, Hkv, Lk, D] twice, nothing broadcast, and a mask
    of truth values, if any, that broadcasts to [B, H, Lq, Lk]."""
    if not (query.dim() == key.dim() == value.dim() == 4 and expressible(query, key, value)):
        return False
    if key.shape != value.shape or query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        return False
    if not 1 <= query.shape[3] <= WIDEST_HEAD:
        return False
    if mask is not None:
        if mask.dtype is not torch.bool or mask.dim() != 4:
            return False
        wanted = (*query.shape[:3], key.shape[2])
        for size, want in zip(mask.shape, wanted, strict=True):
            if size != want and size != 1:
                return False
    heads, kv_heads = query.shape[1], key.shape[1]
    return heads == kv_heads or (grouped and kv_heads > 0 and heads % kv_heads == 0)


def rotary(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1, *, otherwise: Callable[..., Any]
) -> tuple[Tensor, Tensor]:
    """Llama's ``apply_rotary_pos_emb``: q and k [B, H, L, D], cos and sin [B, L, D] of two equal halves."""
    if unsqueeze_dim == 1 and q.dim() == k.dim() == 4 and cos.dim() == 3 and expressible(q, k, cos, sin):
        return rope_op(q, k, cos, sin)  # type: ignore[no-any-return]
    result: tuple[Tensor, Tensor] = otherwise(q, k, cos, sin, unsqueeze_dim)
    return result


# What stands in for torch.nn.functional's functions in a rebound forward, by their name there.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cross_entropy": cross_entropy,
    "gelu": gelu,
    "layer_norm": layer_norm,
    "linear": linear,
    "rms_norm": rms_norm,
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "softmax": softmax,
}
