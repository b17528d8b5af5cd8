"""attention_fp8 as torch has it: tensors in more bits, then its attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import in_float64, into
from kernelworks.ops.attention.attention.torch_kernels import composite as attention_in_torch
from kernelworks.ops.attention.attention.torch_kernels import native as attention_of_torch
from kernelworks.ops.attention.attention_fp8.contract import CONTRACT, DTYPES, per_head, reference

__all__ = ["by_reference", "by_torch", "composite", "dequantize", "laid_out", "native", "result_like"]


def result_like(q: Tensor, out_dtype: str) -> Tensor:
    """An output [B, H, L, D], laid out as [B, L, H, D]."""
    heads, length, dim = q.shape[1:]
    strides = (length * heads * dim, dim, heads * dim, 1)
    return torch.empty_strided(q.shape, strides, dtype=DTYPES[out_dtype], device=q.device)


def dequantize(tensors: Sequence[Tensor], descales: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """q, k and v in ``dtype``, each element rounded once behind a product in float32."""
    groups = tensors[1].shape[1]
    pairs = zip(tensors, descales, strict=True)
    return [(t.float() * per_head(descale, t.shape[1], groups)).to(dtype) for t, descale in pairs]


def _inner(q: Tensor) -> torch.dtype:
    """What torch's attention is given: bfloat16, which holds every number of 8 bits; float32 on a CPU, which loses
    nothing by it."""
    return torch.float32 if q.device.type == "cpu" else torch.bfloat16


def laid_out(q: Tensor, result: Tensor, out_dtype: str) -> Tensor:
    output = result_like(q, out_dtype)
    return result if result.stride() == output.stride() and result.dtype == output.dtype else output.copy_(result)


def composite(
    q: Tensor, k: Tensor, v: Tensor, q_descale: Tensor, k_descale: Tensor, v_descale: Tensor,
    causal: str | None = None, scale: float | None = None, out_dtype: str = "bfloat16",
) -> Any:  # fmt: skip
    """What a transform can look into."""
    wide_q, wide_k, wide_v = dequantize((q, k, v), (q_descale, k_descale, v_descale), _inner(q))
    return attention_in_torch(wide_q, wide_k, wide_v, causal, None, scale).to(DTYPES[out_dtype])


def native(
    q: Tensor, k: Tensor, v: Tensor, q_descale: Tensor, k_descale: Tensor, v_descale: Tensor, causal: str | None,
    scale: float | None, out_dtype: str,
) -> Any:  # fmt: skip
    """torch's function, whichever kernel it takes."""
    wide_q, wide_k, wide_v = dequantize((q, k, v), (q_descale, k_descale, v_descale), _inner(q))
    result = attention_of_torch(wide_q, wide_k, wide_v, causal, None, scale, None, False, None, None)
    return result.to(DTYPES[out_dtype])


def by_torch(q: Tensor, *rest: Any, out: Any = None) -> Any:
    result = native(q, *rest)
    return laid_out(q, result, rest[-1]) if out is None else into(result, out)


def by_reference(q: Tensor, *rest: Any, out: Any = None) -> Any:
    result = in_float64(reference, CONTRACT.results_in_order)(q, *rest)
    return laid_out(q, result, rest[-1]) if out is None else into(result, out)
