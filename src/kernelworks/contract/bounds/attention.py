"""Attention of half precision, as its kernels compute it.

Torch's formula widens everything between operands and answer to float32. A kernel may do that too, but for one thing:
what it hands to a product in units for products of the program's dtype is rounded to that dtype. Those are the weights
on their way to the values, and in a backward the weights and the gradient of the scores. And where a backward has not
kept all weights, what is common to a row's gradients comes from the answer, which was rounded too: the sum of
weights times their gradients is that of the answer times its own. So that is what the formula has here: without it no
fused kernel could keep to the bound.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["as_kernels"]

HALVES = (torch.float16, torch.bfloat16)


class _Weighted(torch.autograd.Function):
    """Softmax of scores, and the sum of values that it weighs."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        weights = torch.ops.aten._safe_softmax(scores, -1)
        handed = (weights if keep is None else weights * keep).to(value.dtype)
        answer: Tensor = (handed.float() @ value.float()).to(value.dtype)
        ctx.save_for_backward(weights, handed, value, answer, keep)
        return answer

    @staticmethod
    def backward(ctx: Any, *flows: Any) -> Any:
        weights, handed, value, answer, keep = ctx.saved_tensors
        flow = flows[0].float()
        of_weights = flow @ value.float().mT
        of_weights = of_weights if keep is None else of_weights * keep
        shared = (flow * answer.float()).sum(-1, keepdim=True)
        of_scores = (weights * (of_weights - shared)).to(value.dtype).float()
        return of_scores, (handed.float().mT @ flow).to(value.dtype), None


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """``scaled_dot_product_attention``, for the arguments that it has."""
    each = abs(query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    sign = -1.0 if scale is not None and scale < 0 else 1.0
    scores = (query.float() * (sign * each)) @ (key.float() * each).mT
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask.float()
    keep = F.dropout(torch.ones_like(scores), dropout_p) if dropout_p > 0 else None
    weighted: Any = _Weighted
    answer: Tensor = weighted.apply(scores, value.expand(*scores.shape[:-2], *value.shape[-2:]), keep)
    return answer


_torchs: Any = F.scaled_dot_product_attention


def _or_torchs(*args: Any, **kwargs: Any) -> Tensor:
    given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
    found: Tensor = _attention(**given) if given["query"].dtype in HALVES else _torchs(**given)
    return found


class _Asked(TorchFunctionMode):
    """Whoever has torch's function is answered by this module's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_or_torchs if func is _torchs else func)(*args, **(kwargs or {}))


@contextlib.contextmanager
def as_kernels() -> Iterator[None]:
    """Attention of half precision is this module's: also where a function of torch's own calls it by its name, of which
    a mode is told nothing."""
    holder: Any = F
    before = holder.scaled_dot_product_attention
    holder.scaled_dot_product_attention = _or_torchs
    try:
        with _Asked():
            yield
    finally:
        holder.scaled_dot_product_attention = before
