"""paged_attention as a user of torch writes it: each sequence's keys are gathered, then torch's attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import in_float64, into
from kernelworks.contract.tensors import MEMORY, tensor_kind
from kernelworks.ops.attention.paged_attention.contract import CONTRACT, check_values, reference, sequences_of
from kernelworks.templates.attention.reference import heads_first, sees, tokens_first
from kernelworks.templates.attention.torch_kernels import composite as attention_in_torch
from kernelworks.templates.attention.torch_kernels import native as attention_of_torch

__all__ = ["by_reference", "by_torch", "composite", "native"]


def native(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, cu_seq_q: Tensor, seqused_k: Tensor, block_table: Tensor,
    scale: float | None, window: int | None,
) -> Tensor:  # fmt: skip
    """A loop over the sequences."""
    if any(tensor_kind(t) != MEMORY for t in (cu_seq_q, seqused_k, block_table)):
        return composite(query, key_cache, value_cache, cu_seq_q, seqused_k, block_table, scale, window)
    outputs = [query[:0]]
    for at, key, value in sequences_of(key_cache, value_cache, cu_seq_q, seqused_k, block_table):
        one = query[at]
        if not (len(one) and len(key)):
            outputs.append(torch.zeros_like(one))
            continue
        q, k, v = heads_first(one), heads_first(key), heads_first(value)
        causal, back, mask = None if len(one) == 1 and window is None else "bottom_right", window, None
        if causal and scale is not None and scale <= 0:  # torch's causal kernel scales its -inf too
            mask = sees(len(one), len(key), (-1 if window is None else window - 1, 0), q.device)
            causal, back = None, None
        outputs.append(tokens_first(attention_of_torch(q, k, v, causal, back, scale, mask, False, None, None)))
    return torch.cat(outputs)


def composite(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, cu_seq_q: Tensor, seqused_k: Tensor, block_table: Tensor,
    scale: float | None = None, window: int | None = None,
) -> Tensor:  # fmt: skip
    """Attention of all tokens over all sequences' keys with a mask, without a look at any value: what a transform can
    look into. It gathers whole tables and forms all scores."""
    sequences, most = block_table.shape
    page = key_cache.shape[1]
    token = torch.arange(query.shape[0], device=query.device, dtype=cu_seq_q.dtype)
    of_token = torch.searchsorted(cu_seq_q[1:].contiguous(), token, right=True)
    key = torch.arange(most * page, device=query.device)
    held = key < seqused_k.unsqueeze(1)  # [S, M P]
    position = token - cu_seq_q[1:][of_token] + seqused_k[of_token]
    seen = (key <= position.unsqueeze(1)) & held[of_token]  # [T, M P]
    if window is not None:
        seen = seen & (key > position.unsqueeze(1) - window)
    own = of_token.unsqueeze(1) == torch.arange(sequences, device=query.device)
    mask = (own.unsqueeze(2) & seen.unsqueeze(1)).flatten(1)  # [T, S M P]
    blocks = block_table.clamp(0, max(key_cache.shape[0] - 1, 0)).long()
    k, v = (
        torch.where(held[..., None, None], cache[blocks].flatten(1, 2), 0.0).flatten(0, 1)
        for cache in (key_cache, value_cache)
    )
    q, k, v = (heads_first(t) for t in (query, k, v))
    return tokens_first(attention_in_torch(q, k, v, None, None, scale, mask[None, None]))


def _check(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, cu_seq_q: Tensor, seqused_k: Tensor, block_table: Tensor,
    *rest: Any,
) -> None:  # fmt: skip
    if query.device.type == "cpu":
        check_values(query, key_cache, cu_seq_q, seqused_k, block_table)


def by_torch(*args: Any, out: Any = None) -> Any:
    _check(*args)
    return into(native(*args), out)


def by_reference(*args: Any, out: Any = None) -> Any:
    _check(*args)
    return in_float64(reference, CONTRACT.results_in_order)(*args, out=out)
