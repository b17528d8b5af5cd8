"""block_sparse_attention as torch has it: its attention with a mask of pairs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import in_float64, into
from kernelworks.ops.attention.attention.torch_kernels import as_new_output
from kernelworks.ops.attention.attention.torch_kernels import composite as attention_in_torch
from kernelworks.ops.attention.attention.torch_kernels import native as attention_of_torch
from kernelworks.ops.attention.block_sparse_attention.contract import CONTRACT, causal_of, expand_mask, reference

__all__ = ["by_reference", "by_torch", "composite", "native", "torch_backward"]


def composite(
    query: Tensor, key: Tensor, value: Tensor, block_mask: Tensor, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False, with_lse: bool = False,
) -> Any:  # fmt: skip
    """What a transform can look into. It forms all scores."""
    mask = expand_mask(block_mask, query.shape[2], key.shape[2])
    return attention_in_torch(query, key, value, causal_of(is_causal), None, scale, mask, with_lse)


def native(
    query: Tensor, key: Tensor, value: Tensor, block_mask: Tensor, is_causal: bool, scale: float | None,
    enable_gqa: bool, with_lse: bool,
) -> Any:  # fmt: skip
    """torch's function with a mask, whichever kernel it takes."""
    mask = expand_mask(block_mask, query.shape[2], key.shape[2])
    return attention_of_torch(query, key, value, causal_of(is_causal), None, scale, mask, with_lse, None, None)


def _handed_out(query: Tensor, result: Any, out: Any) -> Any:
    if out is not None:
        return into(result, out)
    if isinstance(result, tuple):
        return as_new_output(query, result[0]), *result[1:]
    return as_new_output(query, result)


def by_torch(query: Tensor, *rest: Any, out: Any = None) -> Any:
    return _handed_out(query, native(query, *rest), out)


def by_reference(query: Tensor, *rest: Any, out: Any = None) -> Any:
    return _handed_out(query, in_float64(reference, CONTRACT.results_in_order)(query, *rest), out)


def torch_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, block_mask: Tensor,
    is_causal: bool, scale: float | None, enable_gqa: bool, needs: list[bool], out: Any = None, exact: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    options = (block_mask, is_causal, scale, enable_gqa, False)
    with torch.enable_grad():
        q, k, v = ((t.detach().double() if exact else t.detach()).requires_grad_() for t in (query, key, value))
        result = reference(q, k, v, *options)[0] if exact else native(q, k, v, *options)
        found = torch.autograd.grad(result, (q, k, v), grad.to(result.dtype), allow_unused=True, materialize_grads=True)
    gradients = tuple(f.to(t.dtype).contiguous() for f, t in zip(found, (query, key, value), strict=True))
    return gradients if out is None else tuple(into(gradients, tuple(out)))
