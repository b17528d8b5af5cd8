"""Attention over keys and values that lie in pages of a cache: decoding, and prompts in parts."""

from __future__ import annotations

from pathlib import Path

import torch

from kernelworks.build.kernels import triton_kernel
from kernelworks.dispatch.signature import Array, own_result
from kernelworks.ops.attention.paged_attention import simd
from kernelworks.ops.attention.paged_attention.contract import CONTRACT, TEMPLATE, refuse_gradients
from kernelworks.ops.attention.paged_attention.mutants import MUTANTS
from kernelworks.ops.attention.paged_attention.simd import heads_of_pages
from kernelworks.ops.attention.paged_attention.torch_kernels import composite, native
from kernelworks.templates.attention.arguments import decline_wide_float32
from kernelworks.templates.attention.op import split_cpp_kernels

__all__ = ["OP", "heads_of_pages", "paged_attention"]

PACKAGE = Path(__file__).parent


@own_result
def paged_attention(
    query: Array, key_cache: Array, value_cache: Array, cu_seq_q: Array, seqused_k: Array, block_table: Array, *,
    scale: float | None = None, window: int | None = None, out: Array | None = None, kernel: str | None = None,
) -> Array:  # fmt: skip
    """Attention of sequences whose keys and values lie in pages of a cache; the matrix of scores is never formed.

    ``output[i] = sum_j p[i, j] value[j]`` with ``p[i, :] = softmax(scale query[i] . key[j])`` over the keys j of query
    i's own sequence, up to its own place. Key j of sequence s is ``key_cache[block_table[s, j // P], j % P]``. One op
    is both: decoding (one query a sequence) and a prompt, whole or in parts. Argument names are those of
    ``torch.nn.attention.varlen.varlen_attn``; the caches lie as FlashAttention and vLLM have them.

    Args:
        query: [T, H, D], the new tokens of all sequences, float32, bfloat16 or float16; D from 1 to 256.
        key_cache, value_cache: [N, P, Hkv, D] of query's dtype, N blocks of P slots; H must be a multiple of Hkv, and
            query head h reads head h // (H / Hkv). Any strides: only a last dimension that is not contiguous costs a
            copy. A slot that holds no key of a sequence is never read: it may be NaN.
        cu_seq_q: [S + 1], int32 or int64: the queries of sequence s are tokens ``cu_seq_q[s]`` up to
            ``cu_seq_q[s + 1]``, from 0 to T. Sequences may be without queries.
        seqused_k: [S], int32 or int64: how many keys sequence s has, those of its new tokens included. The last query
            stands at the last key: query i of Lq sees the keys ``j <= i + Lk - Lq``. One that sees none gives 0.
        block_table: [S, M], int32 or int64: the blocks of each sequence. What lies behind its keys is not looked at.
        scale: what scores are multiplied by; 1 / sqrt(D) by default.
        window: how many keys a query looks back on, its own included.
        out: where to write: a contiguous tensor like query.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        [T, H, D] of query's dtype, contiguous.

    There is no gradient: what requires grad is refused while gradients are recorded. ``cache_append`` fills the pages.

    Error bound: each sequence's as ``attention``'s: u |output| for the last rounding, and sum_j p |value| times 2^-24
    ((D + 4) sum |q||k| scale + 8 max_j of that + 10 Lk/64 + 200), about. Everything is computed in float32.
    Cost: 4 D flop and one exponential per pair of query and key; reads the keys and values of each sequence once and
    writes output once.
    Raises: IndexError where cu_seq_q does not run from 0 to T, a sequence has more keys than its table holds, or a
    block that holds a key is none of the cache; on a GPU, where nothing waits for the answer, such keys are not seen.
    TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Kwon et al. 2023, arXiv:2309.06180; Dao 2023, arXiv:2307.08691.
    """
    if torch.is_grad_enabled():
        refuse_gradients({"query": query, "key_cache": key_cache, "value_cache": value_cache})
    output: Array = OP.call(
        query, key_cache, value_cache, cu_seq_q, seqused_k, block_table, scale, window, out, kernel
    )  # fmt: skip
    return output


OP = TEMPLATE.op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, inner="input", guard=decline_wide_float32, passes=("forward",)),
        *split_cpp_kernels(PACKAGE, ("decode.cpp", "simd.cpp"), forward=simd.forward, first=2),
    ],
    composite=composite,
    native=native,
    mutants=MUTANTS,
)
