"""out[h, i] = sum over j <= i of p[i, j] v[h, j], with p[i, :] the softmax of q[h, i] . k[h, j] / sqrt(128) over
those j: causal attention with heads of 128 in bfloat16, what every rung of this ladder computes. q, k, v and out are
[H, L, 128] without gaps, H the heads of all sequences together.

L is a multiple of 128, so that no rung spends lines on edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernelworks.climb.problem import Inputs, Problem, Size
from kernelworks.ops.attention.attention.contract import CONTRACT
from kernelworks.templates.attention.reference import reference

DIM = 128
OPTIONS: dict[str, Any] = {"causal": "top_left", "window": None, "scale": None, "mask": None, "with_lse": False}


def inputs(size: Size, generator: torch.Generator) -> Inputs:
    """Random numbers; in every second head the scores are eight times as large, so that few keys take all the weight,
    and the largest score so far is passed late and by much."""

    def normal() -> Tensor:
        return torch.randn(size["H"], size["L"], DIM, generator=generator, device=generator.device)

    q, k, v = normal(), normal(), normal()
    if size["L"] < 4096:
        q[1::2] *= 8
    return {"q": q.bfloat16(), "k": k.bfloat16(), "v": v.bfloat16()}


def heads(exact: Inputs) -> list[tuple[Tensor, ...]]:
    """One after the other as [1, 1, L, 128]: the matrices of scores of all of them fit no memory."""
    return [tuple(exact[name][h][None, None] for name in ("q", "k", "v")) for h in range(exact["q"].shape[0])]


def bound(exact: Inputs, output: Tensor) -> Tensor:
    """That of kernelworks' attention for matrix units (its README derives it): weights are rounded to bfloat16 before
    they meet the values, sums are float32 and may be cut off where they are not rounded."""
    found = []
    for (q, k, v), own in zip(heads(exact), output, strict=True):
        args = {"q": q, "k": k, "v": v} | OPTIONS
        found.append(CONTRACT.bound(args, (own[None, None],), torch.bfloat16, inner="input")[0][0, 0])
    return torch.stack(found)


def torchs(kind: SDPBackend) -> Callable[[Inputs, int], Callable[[], Tensor]]:
    def make(given: Inputs, threads: int) -> Callable[[], Tensor]:
        q, k, v = (given[name].unsqueeze(0) for name in ("q", "k", "v"))

        def run() -> Tensor:
            with sdpa_kernel(kind):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)[0]

        return run

    return make


PROBLEM = Problem(
    title="causal attention on a Hopper GPU, bfloat16, heads of 128, sums in float32",
    symbol="attention",
    device="cuda",
    dtype=torch.bfloat16,
    arithmetic="bfloat16",
    size={"H": 64, "L": 4096},
    verification_sizes=(
        {"H": 1, "L": 128},
        {"H": 2, "L": 256},
        {"H": 3, "L": 384},
        {"H": 2, "L": 1024},
        {"H": 5, "L": 640},
        {"H": 150, "L": 256},
        {"H": 9, "L": 2176},
    ),
    also=({"H": 16, "L": 16384}, {"H": 64, "L": 8192}, {"H": 32, "L": 2048}),
    inputs=inputs,
    shape=lambda size: (size["H"], size["L"], DIM),
    reference=lambda exact: torch.stack([reference(*own, **OPTIONS)[0][0, 0] for own in heads(exact)]),
    bound=bound,
    flop=lambda size: 2.0 * DIM * size["H"] * size["L"] * (size["L"] + 1),
    bytes=lambda size: 8.0 * DIM * size["H"] * size["L"],
    output="out",
    lessons="src/kernelworks/ops/attention/attention/sm90_forward.cuh",
    baselines={"cuDNN": torchs(SDPBackend.CUDNN_ATTENTION), "FlashAttention 2": torchs(SDPBackend.FLASH_ATTENTION)},
    said={
        "cuDNN": "scaled_dot_product_attention, which takes cuDNN's kernel here by itself",
        "FlashAttention 2": "the same, told to take that one",
    },
)
