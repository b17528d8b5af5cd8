"""Attention of sequences of many lengths, packed one behind the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from kernelworks.build.kernels import triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.dispatch.signature import Array
from kernelworks.ops.attention.attention import readable
from kernelworks.ops.attention.varlen_attn.contract import CONTRACT, TEMPLATE, Window, check_values, edges, heads_first
from kernelworks.ops.attention.varlen_attn.mutants import MUTANTS
from kernelworks.ops.attention.varlen_attn.torch_kernels import composite, native
from kernelworks.templates.attention.arguments import decline_wide_float32
from kernelworks.templates.attention.op import split_cpp_kernels

__all__ = ["OP", "varlen_attn"]

PACKAGE = Path(__file__).parent
PAIRS = 8  # of a query's and a key's elements that a core takes in a nanosecond


@overload
def varlen_attn(
    query: Array,
    key: Array,
    value: Array,
    cu_seq_q: Array,
    cu_seq_k: Array,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    with_lse: Literal[False] = False,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def varlen_attn(
    query: Array,
    key: Array,
    value: Array,
    cu_seq_q: Array,
    cu_seq_k: Array,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    with_lse: Literal[True],
    out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]: ...
def varlen_attn(
    query: Any,
    key: Any,
    value: Any,
    cu_seq_q: Any,
    cu_seq_k: Any,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    with_lse: bool = False,
    out: Any = None,
    kernel: str | None = None,
) -> Any:
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


# ---------------------------------------------------------------- C++ kernels


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


def _forward(
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


def _backward(
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
        output, lse = _forward(
            forwards, *inputs, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size, enable_gqa, True
        )  # fmt: skip
    kernel, nth = choose_threads(lib.varlen_attn_backward, 2.5 * _work(query, key, cu_seq_q) / PAIRS)
    heads = (readable(heads_first(t)) for t in (grad, *inputs, output))
    kernel(
        *map(heads_first, results), *heads, lse.contiguous(),
        *_options(query, key, cu_seq_q, cu_seq_k, scale, window_size, nth),
    )  # fmt: skip
    return results


def _length(value: Any) -> bool:
    return value.__class__ is int and value >= 0


OP = TEMPLATE.op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, inner="input", guard=decline_wide_float32),
        *split_cpp_kernels(PACKAGE, ("simd.cpp", "backward.cpp"), forward=_forward, backward=_backward, first=1),
    ],
    composite=composite,
    native=native,
    mutants=MUTANTS,
    free={"max_q": _length, "max_k": _length},
)
