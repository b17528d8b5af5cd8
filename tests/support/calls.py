"""A call of every op: what is passed, and what a user would have called in its place. One table for many tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import kernelworks as kw

L, D, CLASSES = 5, 16, 8


@dataclass(frozen=True)
class Called:
    """``ours(*tensors)`` and ``theirs(*tensors)`` of float tensors of these shapes; both return one tensor."""

    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    out: bool = True  # whether the call has an out= of one tensor

    def tensors(self, seed: int = 0) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(*shape, generator=generator) for shape in self.shapes]


IDS = torch.tensor([1, 3, 3, 0, 2])
COS, SIN = torch.linspace(-1, 1, L * D).reshape(L, D).cos(), torch.linspace(-1, 1, L * D).reshape(L, D).sin()


def _math(*tensors: Tensor, **options: Any) -> Tensor:
    """torch's attention by its formula: none of its kernels has a second derivative."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(*tensors, **options)


def _turned(x: Tensor) -> Tensor:
    return x * COS + torch.cat((-x[..., D // 2 :], x[..., : D // 2]), -1) * SIN


CALLS: dict[str, Called] = {
    "gelu": Called(
        lambda x, **k: kw.gelu(x, approximate="tanh", **k), lambda x: F.gelu(x, approximate="tanh"), ((L, D),)
    ),
    "gelu_erf": Called(kw.gelu, F.gelu, ((L, D),)),
    "relu": Called(kw.relu, F.relu, ((L, D),)),
    "gelu_mul": Called(kw.gelu_mul, lambda a, b: F.gelu(a) * b, ((L, D), (L, D))),
    "log_softmax": Called(kw.log_softmax, lambda x, **k: F.log_softmax(x, -1, **k), ((L, D),)),
    "sum": Called(lambda x, **k: kw.sum(x, dim=-1, **k), lambda x: x.sum(-1), ((L, D),)),
    "silu_mul": Called(kw.silu_mul, lambda a, b: a * torch.sigmoid(a) * b, ((L, D), (L, D))),
    "attention": Called(
        lambda q, k, v, **o: kw.attention(q, k, v, causal="top_left", **o),
        lambda q, k, v: _math(q, k, v, is_causal=True),
        ((1, 2, L, D), (1, 2, L, D), (1, 2, L, D)),
    ),
    "attention_window": Called(
        lambda q, k, **o: kw.attention(q, k, k, causal="bottom_right", window=3, **o),
        lambda q, k: _math(q, k, k, attn_mask=torch.ones(L, L).tril().triu(-2).bool(), enable_gqa=True),
        ((1, 4, L, D), (1, 2, L, D)),
    ),
    "linear": Called(kw.linear, F.linear, ((L, D), (CLASSES, D), (CLASSES,))),
    "linear_no_bias": Called(kw.linear, F.linear, ((L, D), (CLASSES, D))),
    "embedding": Called(lambda w, **k: kw.embedding(IDS, w, **k), lambda w: F.embedding(IDS, w), ((CLASSES, D),)),
    "layer_norm": Called(
        lambda x, w, b, **k: kw.layer_norm(x, w, b, eps=1e-5, **k), lambda x, w, b: F.layer_norm(x, (D,), w, b, 1e-5),
        ((L, D), (D,), (D,)),
    ),
    "rms_norm": Called(
        lambda x, w, **k: kw.rms_norm(x, w, eps=1e-6, **k), lambda x, w: F.rms_norm(x, (D,), w, 1e-6), ((L, D), (D,))
    ),
    "rms_norm_residual": Called(
        lambda x, w, r: torch.cat(kw.rms_norm(x, w, eps=1e-6, residual=r)),
        lambda x, w, r: torch.cat((F.rms_norm(x + r, (D,), w, 1e-6), x + r)), ((L, D), (D,), (L, D)), out=False,
    ),
    "rope": Called(
        lambda q, k: torch.cat(kw.rope(q, k, COS, SIN), 1), lambda q, k: torch.cat((_turned(q), _turned(k)), 1),
        ((1, 2, L, D), (1, 1, L, D)), out=False,
    ),
    "cross_entropy": Called(
        lambda x, **k: kw.cross_entropy(x, IDS, **k), lambda x: F.cross_entropy(x, IDS), ((L, CLASSES),)
    ),
    "linear_cross_entropy": Called(
        lambda x, w, **k: kw.linear_cross_entropy(x, w, IDS, **k), lambda x, w: F.cross_entropy(x @ w.T, IDS),
        ((L, D), (CLASSES, D)),
    ),
    "softmax": Called(kw.softmax, lambda x: F.softmax(x, -1), ((L, D),)),
    "softmax_first": Called(lambda x, **k: kw.softmax(x, dim=0, **k), lambda x: F.softmax(x, 0), ((L, D),)),
}  # fmt: skip
