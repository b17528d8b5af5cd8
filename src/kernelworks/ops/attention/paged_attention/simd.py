"""Launches paged_attention's C++ kernels: attention's for few queries and for many, which look up each key's block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.build.sharing import choose_threads
from kernelworks.ops.attention.attention.simd import FEW, PAIRS
from kernelworks.ops.attention.paged_attention.contract import check_values
from kernelworks.templates.attention.reference import heads_first

__all__ = ["forward", "heads_of_pages"]


def heads_of_pages(cache: Tensor) -> Tensor:
    """[N, Hkv, P, D] with unit stride in the last dimension, without a copy where a cache has it."""
    return (cache if cache.stride(3) == 1 or cache.shape[3] == 1 else cache.contiguous()).transpose(1, 2)


def forward(
    few: Any, many: Any, query: Tensor, key_cache: Tensor, value_cache: Tensor, cu_seq_q: Tensor, seqused_k: Tensor,
    block_table: Tensor, scale: float | None, window: int | None, out: Any = None,
) -> Tensor:  # fmt: skip
    output: Tensor = torch.empty(query.shape, dtype=query.dtype) if out is None else out
    (tokens, heads, dim), sequences, kv_heads = query.shape, seqused_k.shape[0], key_cache.shape[2]
    ends, lengths, table = (t.long().contiguous() for t in (cu_seq_q, seqused_k, block_table))
    longest = int(ends.diff().max()) if sequences else 0
    if tokens and heads and sequences:
        keys = int(lengths.sum()) // sequences
        kernels = few if longest * heads <= FEW * kv_heads else many
        kernel, nth = choose_threads(kernels.paged_attention, query.numel() * max(keys, 1) / PAIRS)
        q = heads_first(query if query.stride(2) == 1 or dim == 1 else query.contiguous())
        if kernel(
            heads_first(output), None, q, heads_of_pages(key_cache), heads_of_pages(value_cache), None,
            dim**-0.5 if scale is None else float(scale), True, 0, window or 0, nth, ends, lengths, table,
        ):  # fmt: skip
            return output
    check_values(query, key_cache, cu_seq_q, seqused_k, block_table)  # says what is wrong, if anything is
    return output.zero_()
