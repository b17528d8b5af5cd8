"""paged_attention as a user of torch writes it: each sequence's keys are gathered, then torch's attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.contract.tensors import MEMORY, tensor_kind
from kernelworks.ops.attention.paged_attention.contract import TEMPLATE, check_values
from kernelworks.templates.attention.reference import heads_first, tokens_first
from kernelworks.templates.attention.torch_kernels import composite as dense_in_torch

__all__ = ["composite", "native"]


def native(*args: Any) -> Any:
    """A loop over the sequences."""
    contents = all(tensor_kind(t) == MEMORY for t in args[3:6])
    if contents and args[0].device.type == "cpu":
        check_values(*args[:2], *args[3:6])  # a negative block would be one from the end
    return TEMPLATE.native(*args) if contents else composite(*args)


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
    return tokens_first(dense_in_torch(q, k, v, None, None, scale, mask[None, None]))
