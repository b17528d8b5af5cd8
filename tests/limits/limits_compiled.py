"""What ``backend="kernelworks"`` does otherwise than torch, each with a call that shows it; the table is in
``limits.py``."""

from __future__ import annotations

import math

import torch
from limit import Limit, heads

import kernelworks as kw

__all__ = ["COMPILED"]


def sees_nothing() -> str:
    """The gradient of the values, by the op and by a softmax, of rows that all see something."""
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    mask[..., 2, :] = False
    q, k, v = (each.clone().requires_grad_() for each in heads())
    scores = (q @ k.transpose(-2, -1)).masked_fill(~mask, -math.inf)
    said = []
    for made in (kw.attention(q, k, v, mask=mask, scale=1.0), scores.softmax(-1) @ v):
        (gradient,) = torch.autograd.grad(made[:, :, :2].sum(), v)
        said.append("a number" if bool(gradient.isfinite().all()) else "NaN")
    return f"{said[0]} beside torch's {said[1]}"


COMPILED = [
    Limit(
        "Attention that a program spells out gives NaN where a query sees nothing, as its softmax does; the gradient "
        "of the values is that of the other queries, where torch's is NaN for all of them.",
        sees_nothing,
        says="a number beside torch's NaN",
    )
]
