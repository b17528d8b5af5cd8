"""Attention of queries, keys and values in 8 bits (e4m3), with scales."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cuda_kernel
from kernelworks.dispatch.signature import Array
from kernelworks.ops.attention.attention_fp8.cases import NAMES
from kernelworks.ops.attention.attention_fp8.contract import CONTRACT, TEMPLATE
from kernelworks.ops.attention.attention_fp8.mutants import MUTANTS
from kernelworks.ops.attention.attention_fp8.sm90 import guard
from kernelworks.ops.attention.attention_fp8.torch_kernels import composite, native

__all__ = ["OP", "attention_fp8"]


def attention_fp8(
    q: Array, k: Array, v: Array, q_descale: Array, k_descale: Array, v_descale: Array, *, causal: str | None = None,
    scale: float | None = None, out_dtype: torch.dtype | str = torch.bfloat16, out: Array | None = None,
    kernel: str | None = None,
) -> Array:  # fmt: skip
    """Scaled dot product attention of tensors in 8 bits; the matrix of scores is never formed.

    ``output[i] = sum_j p[i, j] V[j]`` with ``p[i, :] = softmax(scale Q[i] . K[j])`` over the keys j that query i sees,
    of ``Q = q q_descale``, ``K = k k_descale`` and ``V = v v_descale``. A query that sees no key gives 0.

    Args:
        q: [B, H, Lq, D], float8_e4m3fn; D from 1 to 256. Any strides: [B, L, H, D] storage is read in place; only a
            last dimension that is not contiguous costs a copy.
        k, v: [B, Hkv, Lk, D], float8_e4m3fn; H must be a multiple of Hkv, and query head h reads head h // (H / Hkv).
        q_descale, k_descale, v_descale: float32, above 0: what the stored numbers are multiplied by. [B, Hkv], also 1
            in either, or no dimension for one scale of the whole tensor; q's is of a group of heads.
        causal: ``None``; ``"top_left"``: query i sees keys j <= i; ``"bottom_right"``: keys j <= i + Lk - Lq.
        scale: what scores are multiplied by; 1 / sqrt(D) by default.
        out_dtype: torch.bfloat16, torch.float16 or torch.float32, or its name.
        out: where to write: a contiguous tensor of q's shape and ``out_dtype``.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        [B, H, Lq, D] of ``out_dtype``, laid out as [B, Lq, H, D]. There are no gradients: a tensor that requires one
        raises, but for calls in ``torch.no_grad()``.

    On Hopper the softmax's weights are rounded to 8 bits too. A value that is not finite may show in the output of a
    query that does not see it. A scale that is not above 0 is not looked for.

    Error bound: with torch, float32's on a CPU and bfloat16's on a GPU. On Hopper each weight is off by at most 9% of
    itself, and sums of products by 2% of their magnitude: measured, 3% of the output's norm at most on random inputs,
    beside what the 8 bits of q, k and v have cost already. README.md has the bound exactly.
    Cost: 4 D flop and one exponential per pair of query and key; reads q, k and v and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608, whose names the scales have.
    """
    if torch.is_grad_enabled():
        given: tuple[Any, ...] = (q, k, v, q_descale, k_descale, v_descale)
        for name, value in zip(OP.passes["forward"].names, given, strict=False):
            if isinstance(value, Tensor) and value.requires_grad:
                raise ValueError(
                    f"{name} must not require grad: there is no backward in 8 bits; call it in torch.no_grad()"
                )
    named: Any = NAMES.get(out_dtype, out_dtype) if isinstance(out_dtype, torch.dtype) else out_dtype
    output: Array = OP.call(q, k, v, q_descale, k_descale, v_descale, causal, scale, named, out, kernel)
    return output


OP = TEMPLATE.op(
    CONTRACT,
    [replace(cuda_kernel(Path(__file__).parent, guard=guard), inner="input")],
    composite=composite,
    native=native,
    mutants=MUTANTS,
    torch_inner="input",
)
