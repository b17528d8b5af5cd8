"""Attention over keys and values that lie in pages of a cache: decoding, and prompts in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, python_kernel, triton_kernel, with_libraries
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import Kernel, Request
from kernelworks.contract.arguments import schema_of
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array, own_result
from kernelworks.ops.attention.attention import FEW, PAIRS
from kernelworks.ops.attention.paged_attention.contract import ARGUMENTS, CONTRACT, check_values, refuse_gradients
from kernelworks.ops.attention.paged_attention.mutants import MUTANTS
from kernelworks.ops.attention.paged_attention.torch_kernels import by_reference, by_torch, composite, native
from kernelworks.templates.attention.reference import heads_first

__all__ = ["OP", "paged_attention"]

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


def heads_of_pages(cache: Tensor) -> Tensor:
    """[N, Hkv, P, D] with unit stride in the last dimension, without a copy where a cache has it."""
    return (cache if cache.stride(3) == 1 or cache.shape[3] == 1 else cache.contiguous()).transpose(1, 2)


def _forward(
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


def _cpp_kernels() -> list[Kernel]:
    """The C++ kernels. The wide ones are two libraries, so that a first call does not compile what it does not need."""
    wide = ("decode.cpp", "simd.cpp")
    op_kernels = []
    for target, names in {"avx512": wide, "avx2": wide, "scalar": ("scalar.cpp", "scalar.cpp")}.items():
        sources = [PACKAGE / name for name in names]
        (op_kernel,) = cpp_kernels(PACKAGE, forward=_forward, targets={target: names[1]})
        op_kernels.append(with_libraries(op_kernel, sources, forward=_forward, backward=_forward, first=2))
    return op_kernels


def _triton_guard(request: Request) -> str | None:
    query = request.args["query"]
    if query.dtype == torch.float32 and query.shape[2] > 128:
        return "float32 tiles of more than 128 numbers a row do not fit the registers"
    return None


OP = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, inner="input", guard=_triton_guard, passes=("forward",)),
        *_cpp_kernels(),
        python_kernel("torch", by_torch),
        python_kernel("reference", by_reference),
    ],
    op_package=__file__,
    forward=Pass(
        f"paged_attention({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
        lambda query, *others: query.new_empty(query.shape),
    ),
    composite=composite,
    native=native,
    mutants=MUTANTS,
)
