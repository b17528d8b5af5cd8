"""Attention with a mask of blocks: which blocks of 128 queries see which blocks of 128 keys."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, overload

from kernelworks.build.kernels import also_of, cuda_kernel, triton_kernel
from kernelworks.contract import Kernel
from kernelworks.dispatch.signature import Array
from kernelworks.ops.attention.block_sparse_attention.contract import CONTRACT, TEMPLATE
from kernelworks.ops.attention.block_sparse_attention.mutants import MUTANTS
from kernelworks.ops.attention.block_sparse_attention.sm90 import guard as sm90_guard
from kernelworks.ops.attention.block_sparse_attention.sm90_backward import guard as sm90_backward_guard
from kernelworks.templates.attention.arguments import decline_wide_float32

__all__ = ["OP", "block_sparse_attention"]

PACKAGE = Path(__file__).parent


@overload
def block_sparse_attention(
    query: Array, key: Array, value: Array, block_mask: Array, *, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False, with_lse: Literal[False] = False, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def block_sparse_attention(
    query: Array, key: Array, value: Array, block_mask: Array, *, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False, with_lse: Literal[True], out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
def block_sparse_attention(
    query: Any, key: Any, value: Any, block_mask: Any, *, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False, with_lse: bool = False, out: Any = None, kernel: str | None = None,
) -> Any:  # fmt: skip
    """Attention of the blocks that a mask names; on a GPU, blocks that it does not name cost nothing.

    ``output[i] = sum_j p[i, j] value[j]`` with ``p[i, :] = softmax(scale query[i] . key[j])`` over the keys j with
    ``block_mask[..., i // 128, j // 128]``, and with ``is_causal`` of those the keys j <= i. A query that sees no key
    gives 0 (and takes no gradient), where softmax alone would give NaN.

    Args:
        query: [B, H, Lq, D], float32, bfloat16 or float16; D from 1 to 256. Any strides: [B, L, H, D] storage is read
            in place; only a last dimension that is not contiguous costs a copy.
        key, value: [B, Hkv, Lk, D] of query's dtype; H must be a multiple of Hkv, and query head h reads head
            h // (H / Hkv).
        block_mask: bool [1|B, 1|H, ceil(Lq / 128), ceil(Lk / 128)], True where a block of 128 queries sees a block of
            128 keys; the last ones may be short. ``BlockMask.to_dense() > 0`` of FlexAttention's with BLOCK_SIZE 128,
            where its blocks are whole or cut by causal alone: what else is cut within would be taken as whole.
        is_causal: query i sees keys j <= i only: blocks ahead of the diagonal are as if they were not named, those on
            it are cut. The first query stands at the first key, as in ``scaled_dot_product_attention``.
        scale: what scores are multiplied by; 1 / sqrt(D) by default.
        enable_gqa: must be said where Hkv is less than H.
        with_lse: returns ``(output, lse)``; lse [B, H, Lq], float32, is the logarithm of the softmax's denominator
            (-inf where no key is seen). It is not differentiable.
        out: where to write: a tensor like query of any strides, or a pair with a contiguous float32 [B, H, Lq].
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        [B, H, Lq, D] of query's dtype, laid out as [B, Lq, H, D].

    A value that is not finite may show in the output of a query that does not see it.

    Error bound: ``attention``'s with the same mask: u |output| for the last rounding, and sum_j p |value| times 2^-24
    ((D + 4) sum |q||k| scale + 8 max_j of that + 10 Lk/64 + 200), about. Everything is computed in float32.
    Cost: 4 D flop and one exponential per pair of a named block (torch's kernel on a CPU: per pair); reads query, key,
    value and the mask and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.attention.flex_attention (BlockMask); Child et al. 2019, arXiv:1904.10509; Dao et al. 2022,
    arXiv:2205.14135.
    """
    return OP.call(query, key, value, block_mask, is_causal, scale, enable_gqa, with_lse, out, kernel)


@functools.cache
def _triton() -> Kernel:
    return triton_kernel(PACKAGE, inner="input", guard=decline_wide_float32)


def _hopper() -> Kernel:
    """Hopper's forward, over the lists that Triton's kernels make, whose hash is in its own."""
    op_kernel = cuda_kernel(PACKAGE, guard=sm90_guard)
    return also_of(replace(op_kernel, inner="input"), _triton())


def _hopper_backward() -> Kernel:
    """Hopper's gradients after Triton's forward, which its certificate speaks for too."""
    op_kernel = cuda_kernel(
        PACKAGE,
        source="sm90_backward.cu",
        name="sm90_backward",
        guard=sm90_backward_guard,
        passes=("forward", "backward"),
    )
    return also_of(replace(op_kernel, inner="input"), _triton())


OP = TEMPLATE.op(CONTRACT, [_hopper(), _triton(), _hopper_backward()], mutants=MUTANTS)
