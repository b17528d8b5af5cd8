"""Attention and kernel smoothers by one contract: means of values, weighted by a kernel of queries and keys.

Attention is the smoother of Nadaraya and Watson (1964) whose kernel is ``exp(q . k / l^2)``. Of keys of one length that
is the Gaussian kernel ``exp(-|q - k|^2 / (2 l^2))``, for what is left of the exponent cancels. ``kernel_attention``
composes it of the ops: ``attention``, or a kernel's product with the values and a column of ones, of which one is
divided by the other. No matrix of weights is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import need_dtype, need_tensor
from kernelworks.dispatch.op import OPS
from kernelworks.ops.attention.attention import attention

__all__ = ["SMOOTHERS", "kernel_attention"]

FLOATING = (torch.float32, torch.bfloat16, torch.float16)
# By name, the op that multiplies with the kernel's matrix. Only kernels that are positive have means.
SMOOTHERS: Mapping[str, str] = {
    "softmax": "attention", "rbf": "kernel_matmul", "laplacian": "laplacian_matmul", "matern12": "matern12_matmul",
    "matern32": "matern32_matmul", "matern52": "matern52_matmul",
}  # fmt: skip


def kernel_attention(
    q: Tensor, k: Tensor, v: Tensor, *, smoother: str = "softmax", length_scale: float | Tensor | None = None
) -> Tensor:
    """Means of values, weighted by a kernel: ``output[i] = sum_j k(q_i, k_j) v[j] / sum_j k(q_i, k_j)``.

    Args:
        q: [B, H, Lq, D] queries, float32, bfloat16 or float16.
        k, v: [B, Hkv, Lk, D] keys and [B, Hkv, Lk, E] values of q's dtype; H a multiple of Hkv, and query head h reads
            head h // (H / Hkv). Of "softmax" E is D.
        smoother: "softmax", whose kernel is ``exp(q . k / l^2)``: ``attention`` with ``scale = 1 / l^2``; "rbf",
            "laplacian", "matern12", "matern32" or "matern52": those of ``kernel_matmul``, ``laplacian_matmul`` and so
            on, functions of ``q - k``.
        length_scale: l, a positive number, or a tensor of one element whose gradient may be asked for. By default
            ``D^(1/4)``: with it "softmax" is torch's ``scaled_dot_product_attention``, and "rbf" the same of keys of
            one length.

    Returns:
        ``output`` [B, H, Lq, E] of q's dtype. A query so far from every key that all its weights are 0 in float32
        gives 0 and takes no gradient, as a query of ``attention`` that sees no key.

    Gradients: of q, k, v and the length scale, by those of the ops; weights are computed again.
    Error bound: the op's for ``v`` over the weights' sum, and as much for the sum of ones.
    Cost: of a query and a key that of the op with E + 1 weights; memory as that of inputs and output.
    Raises: TypeError, ValueError naming the argument.
    Source: Nadaraya, On Estimating Regression, 1964; Watson, Smooth Regression Analysis, 1964; Tsai et al.,
    Transformer Dissection: A Unified Understanding via the Lens of Kernel, 2019.
    """
    _check(q, k, v, smoother, length_scale)
    scale = float(q.shape[3] ** 0.25) if length_scale is None else length_scale
    if smoother == "softmax":
        if isinstance(scale, Tensor):
            return attention((q / scale.reshape(()).square()).to(q.dtype), k, v, scale=1.0)
        return attention(q, k, v, scale=1.0 / float(scale) ** 2)
    return _mean(OPS[SMOOTHERS[smoother]], q, k, v, scale)


def _mean(function: Any, q: Tensor, k: Tensor, v: Tensor, scale: float | Tensor) -> Tensor:
    """Head by head: products with the values and with ones, and their quotient, in float32."""
    (batch, heads, queries, _), (each, width) = q.shape, (q.shape[1] // max(k.shape[1], 1), v.shape[3])
    wide = torch.cat([v.float(), v.new_ones(*v.shape[:3], 1, dtype=torch.float32)], 3)
    unit = scale.float() if isinstance(scale, Tensor) else torch.tensor(scale, dtype=torch.float32, device=q.device)
    made = []
    for b in range(batch):
        for head in range(k.shape[1]):  # the query heads of one key head are so many more rows
            rows = q[b, head * each : (head + 1) * each].reshape(each * queries, -1).float()
            made.append(function(rows, k[b, head].float(), wide[b, head], unit).reshape(each, queries, width + 1))
    if not made:
        return q.new_zeros(batch, heads, queries, width)
    sums = torch.stack(made).reshape(batch, heads, queries, width + 1)
    weight = sums[..., width:]
    mean = sums[..., :width] / torch.where(weight == 0, 1.0, weight)
    return torch.where(weight == 0, 0.0, mean).to(q.dtype)


def _check(q: Any, k: Any, v: Any, smoother: Any, length_scale: Any) -> None:
    for name, value in (("q", q), ("k", k), ("v", v)):
        need_tensor(name, value)
        need_dtype(name, value, FLOATING if name == "q" else (q.dtype,))
        if value.dim() != 4:
            raise ValueError(f"{name} must have 4 dimensions [B, H, L, D], got {list(value.shape)}")
    if smoother not in SMOOTHERS:
        raise ValueError(f"smoother must be one of {', '.join(SMOOTHERS)}; got {smoother!r}")
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(
            f"k and v must be [B, Hkv, Lk, D] beside q's {list(q.shape)}, got {list(k.shape)}, {list(v.shape)}"
        )
    if q.shape[1] and (not k.shape[1] or q.shape[1] % k.shape[1]):
        raise ValueError(f"q's heads must be a multiple of k's, got {q.shape[1]} and {k.shape[1]}")
    if isinstance(length_scale, Tensor):
        if length_scale.numel() != 1 or not length_scale.is_floating_point():
            raise ValueError(f"length_scale must have one floating-point element, got {list(length_scale.shape)}")
    elif length_scale is not None and not 0.0 < float(length_scale) < float("inf"):
        raise ValueError(f"length_scale must be positive and finite, got {length_scale}")
