"""Launches attention's C++ kernels: few queries and many of them, and the gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.sharing import choose_threads
from kernelworks.contract.memory_layout import new_output
from kernelworks.templates.attention.reference import shift_of
from kernelworks.templates.attention.torch_kernels import sink_gradient

__all__ = ["FEW", "PAIRS", "backward", "forward", "readable"]

FEW = 8  # rows (queries times heads of a group) that decode.cpp takes at most
PAIRS = 8  # of a query's and a key's elements that a core takes in a nanosecond


def readable(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()


def _options(
    q: Tensor, k: Tensor, causal: str | None, window: int | None, scale: float | None, mask: Tensor | None
) -> tuple[Any, ...]:
    """What follows the tensors in a kernel's arguments."""
    queries, keys = q.shape[2], k.shape[2]
    return (
        None if mask is None else mask.expand(q.shape[0], q.shape[1], queries, keys),
        1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale),
        causal is not None, shift_of(causal, queries, keys), window or 0,
    )  # fmt: skip


def forward(
    few: Any, many: Any, q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None,
    mask: Tensor | None, with_lse: bool, softcap: float | None, sinks: Tensor | None, out: Any = None,
) -> Any:  # fmt: skip
    output, lse = out if with_lse and out is not None else (out, None)
    if output is None:
        output = new_output(q)
        lse = torch.empty(q.shape[:3], dtype=torch.float32) if with_lse else None
    batch, heads, queries, dim = q.shape
    _, kv_heads, keys, _ = k.shape
    if batch and queries and heads:
        # The backward forms the scores again, as `many` does: with a sum that `few` made of scores that it rounds
        # otherwise, every probability would be off by the difference.
        kernels = few if queries * heads <= FEW * kv_heads and not with_lse else many
        kernel, nth = choose_threads(kernels.attention, batch * heads * queries * keys * dim / PAIRS)
        kernel(
            output, lse, readable(q), readable(k), readable(v),
            mask if mask is None else mask.expand(batch, heads, queries, keys),
            dim**-0.5 if scale is None else float(scale),
            causal is not None, keys - queries if causal == "bottom_right" else 0, window or 0, nth,
            float(softcap or 0), None if sinks is None else sinks.float().contiguous(),
        )  # fmt: skip
    return (output, lse) if with_lse else output


def backward(
    few: Any, many: Any, gradients: Any, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor,
    causal: str | None, window: int | None, scale: float | None, mask: Tensor | None, needs: list[bool],
    softcap: float | None, sinks: Tensor | None, out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    results = tuple(torch.empty(t.shape, dtype=t.dtype) for t in (q, k, v)) if out is None else tuple(out[:3])
    if q.numel() == 0:
        for result in results:
            result.zero_()
    else:
        if lse.numel() == 0:  # the forward was not asked for it
            output, lse = forward(few, many, q, k, v, causal, window, scale, mask, True, softcap, sinks)
        inputs = (readable(t) for t in (grad, q, k, v, output))
        took = 2.5 * q.numel() * k.shape[2] / PAIRS
        kernel, nth = choose_threads(gradients.attention_backward, took)
        kernel(*results, *inputs, lse, *_options(q, k, causal, window, scale, mask), nth, float(softcap or 0))
    found = sink_gradient(grad, output, lse, sinks)
    return (*results, found if out is None else out[3].copy_(found))
