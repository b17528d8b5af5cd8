"""Launches varlen_attn's C++ kernels: attention's tiles, and where the sequences end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.build.sharing import choose_threads
from kernelworks.ops.attention.attention.simd import PAIRS, readable
from kernelworks.ops.attention.varlen_attn.contract import Window, check_values, edges, heads_first

__all__ = ["backward", "forward"]


def _options(
    query: Tensor, key: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, scale: float | None, window_size: Window, nth: int
) -> tuple[Any, ...]:
    """What follows the tensors in a kernel's arguments: of attention's, and where the sequences end."""
    causal, offset, window = edges(window_size, query.shape[0] + key.shape[0])
    factor = query.shape[2] ** -0.5 if scale is None else float(scale)
    return None, factor, causal, offset, window, nth, cu_seq_q.long().contiguous(), cu_seq_k.long().contiguous()


def _work(query: Tensor, key: Tensor, cu_seq_q: Tensor) -> float:
    """Elements of queries and keys that meet, were all sequences of one length."""
    return query.numel() * key.shape[0] / max(cu_seq_q.shape[0] - 1, 1)


def forward(
    lib: Any, query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
    scale: float | None, window_size: Window, enable_gqa: bool, with_lse: bool, out: Any = None,
) -> Any:  # fmt: skip
    check_values(query, key, cu_seq_q, cu_seq_k, max_q, max_k)
    output, lse = out if with_lse and out is not None else (out, None)
    if output is None:
        output = torch.empty(query.shape, dtype=query.dtype)
        lse = torch.empty(query.shape[1], query.shape[0], dtype=torch.float32) if with_lse else None
    if query.numel():
        kernel, nth = choose_threads(lib.varlen_attn, _work(query, key, cu_seq_q) / PAIRS)
        heads = (readable(heads_first(t)) for t in (query, key, value))
        kernel(
            heads_first(output), lse, *heads, *_options(query, key, cu_seq_q, cu_seq_k, scale, window_size, nth)
        )  # fmt: skip
    return (output, lse) if with_lse else output


def backward(
    forwards: Any, lib: Any, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor,
    cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, scale: float | None, window_size: Window,
    enable_gqa: bool, needs: list[bool], out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    check_values(query, key, cu_seq_q, cu_seq_k, max_q, max_k)
    inputs = (query, key, value)
    results = tuple(torch.empty(t.shape, dtype=t.dtype) for t in inputs) if out is None else tuple(out)
    if query.numel() == 0:
        for result in results:
            result.zero_()
        return results
    if lse.numel() == 0:  # the forward was not asked for it
        output, lse = forward(
            forwards, *inputs, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size, enable_gqa, True
        )  # fmt: skip
    kernel, nth = choose_threads(lib.varlen_attn_backward, 2.5 * _work(query, key, cu_seq_q) / PAIRS)
    heads = (readable(heads_first(t)) for t in (grad, *inputs, output))
    kernel(
        *map(heads_first, results), *heads, lse.contiguous(),
        *_options(query, key, cu_seq_q, cu_seq_k, scale, window_size, nth),
    )  # fmt: skip
    return results
