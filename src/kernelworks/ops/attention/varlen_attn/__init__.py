"""Attention of sequences of many lengths, packed one behind the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, overload

from kernelworks.build.kernels import triton_kernel
from kernelworks.dispatch.signature import Array
from kernelworks.ops.attention.varlen_attn import simd
from kernelworks.ops.attention.varlen_attn.contract import CONTRACT, TEMPLATE
from kernelworks.ops.attention.varlen_attn.mutants import MUTANTS
from kernelworks.ops.attention.varlen_attn.torch_kernels import composite, native
from kernelworks.templates.attention.arguments import decline_wide_float32
from kernelworks.templates.attention.op import split_cpp_kernels

__all__ = ["OP", "varlen_attn"]

PACKAGE = Path(__file__).parent


@overload
def varlen_attn(
    query: Array, key: Array, value: Array, cu_seq_q: Array, cu_seq_k: Array, max_q: int, max_k: int, *,
    scale: float | None = None, window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
    with_lse: Literal[False] = False, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def varlen_attn(
    query: Array, key: Array, value: Array, cu_seq_q: Array, cu_seq_k: Array, max_q: int, max_k: int, *,
    scale: float | None = None, window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
    with_lse: Literal[True], out: tuple[Array, Array] | None = None, kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
def varlen_attn(
    query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, *,
    scale: float | None = None, window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
    with_lse: bool = False, out: Any = None, kernel: str | None = None,
) -> Any:  # fmt: skip
    """Attention of sequences that lie one behind the other, each to itself; the matrix of scores is never formed.

    ``output[i] = sum_j p[i, j] value[j]`` with ``p[i, :] = softmax(scale query[i] . key[j])`` over the keys j of query
    i's own sequence that lie in its window. Names and places are those of ``torch.nn.attention.varlen.varlen_attn``.
    A query that sees no key gives 0 (and takes no gradient).

    Args:
        query: [T, H, D], the tokens of all sequences, float32, bfloat16 or float16; D from 1 to 256. Any strides: only
            a last dimension that is not contiguous costs a copy.
        key, value: [Tk, Hkv, D] of query's dtype; H must be a multiple of Hkv, and query head h reads head
            h // (H / Hkv).
        cu_seq_q, cu_seq_k: [N + 1], int32 or int64: sequence n is tokens ``cu_seq_q[n]`` up to ``cu_seq_q[n + 1]``,
            from 0 to T. Sequences may be empty.
        max_q, max_k: the longest sequence's length. Kernels of ours need neither; what they say must hold.
        scale: what scores are multiplied by; 1 / sqrt(D) by default.
        window_size: (left, right): the query at position p of its sequence's keys sees ``p - left <= j <= p + right``;
            -1: no limit. (-1, 0) is causal. The last query of a sequence stands at its last key, p = i + Lk - Lq.
        enable_gqa: must be said where Hkv is less than H.
        with_lse: returns ``(output, lse)``; lse [H, T], float32, is the logarithm of the softmax's denominator (-inf
            where no key is seen). It is not differentiable. torch's ``return_aux=AuxRequest(lse=True)``.
        out: where to write: a contiguous tensor like query, or a pair with a contiguous float32 [H, T].
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        [T, H, D] of query's dtype, contiguous.

    A value that is not finite may show in the output of another query of its own sequence, never of another sequence.

    Error bound: each sequence's as ``attention``'s: u |output| for the last rounding, and sum_j p |value| times 2^-24
    ((D + 4) sum |q||k| scale + 8 max_j of that + 10 Lk/64 + 200), about. Everything is computed in float32.
    Cost: 4 D flop and one exponential per pair of query and key of one sequence; reads query, key, value and writes
    output once.
    Raises: IndexError where cu_seq_q or cu_seq_k do not run from 0 to the number of tokens, or a sequence is longer
    than said; on a GPU, where nothing waits for the answer, tokens of no sequence are then not written. TypeError,
    ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.attention.varlen.varlen_attn; Dao et al. 2022, arXiv:2205.14135; Milakov and Gimelshein 2018,
    arXiv:1805.02867.
    """
    return OP.call(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size, enable_gqa, with_lse, out, kernel
    )  # fmt: skip


def _length(value: Any) -> bool:
    return value.__class__ is int and value >= 0


OP = TEMPLATE.op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, inner="input", guard=decline_wide_float32),
        *split_cpp_kernels(
            PACKAGE, ("simd.cpp", "backward.cpp"), forward=simd.forward, backward=simd.backward, first=1
        ),
    ],
    composite=composite,
    native=native,
    mutants=MUTANTS,
    free={"max_q": _length, "max_k": _length},
)
