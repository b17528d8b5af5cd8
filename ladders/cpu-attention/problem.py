"""O[Lq, D] = softmax(Q K^T / sqrt(D)) V in float32 for one head: what a model does to read a long prompt.

Q is [Lq, D], K and V are [Lk, D], all row-major and contiguous. Every query sees every key.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.climb.problem import Problem, Size

UNIT_ROUNDOFF = 2.0**-24
EXPONENTIAL = 4 * UNIT_ROUNDOFF  # of the result: two units in the last place, for a library's exponential and our own
LEAST_TILE = 16  # keys that come between two rescalings, at the least

Given = dict[str, Tensor]


def inputs(size: Size, generator: torch.Generator) -> Given:
    """The queries differ in size, so some rows of scores are flat and some have one key that counts; later keys score
    higher, so that the largest score of a row is met again and again on the way."""
    lq, lk, d = size["Lq"], size["Lk"], size["D"]
    q = torch.randn(lq, d, generator=generator) * 10.0 ** torch.empty(lq, 1).uniform_(-1, 0.5, generator=generator)
    k = torch.randn(lk, d, generator=generator) * torch.linspace(0.5, 1.5, lk).unsqueeze(1)
    return {"Q": q, "K": k, "V": torch.randn(lk, d, generator=generator)}


def probabilities(exact: Given) -> tuple[Tensor, Tensor]:
    scores = exact["Q"] @ exact["K"].T / math.sqrt(exact["Q"].shape[1])
    return scores, torch.softmax(scores, 1)


def bound(exact: Given, reference: Tensor) -> Tensor:
    """A score is off by gamma_{D+2} |q| |k| / sqrt(D) (D products and D - 1 additions, the factor and its rounding);
    its exponential is off by that, by the rounding of the difference from the maximum and by its own error, each
    relative. Numerator and denominator are sums over Lk such terms, so both have gamma_{Lk}, and each of at most Lk /
    16 tiles may multiply them by the exponential of a difference of maxima: 2 units in the last place and a rounding,
    beside those of the differences, which add up to less than the row's range. A division follows. All of it to first
    order, and its square for what is above."""
    lk, d = exact["K"].shape
    scores, p = probabilities(exact)
    steps = (d + 2) * UNIT_ROUNDOFF
    off = steps / (1 - steps) * (exact["Q"].abs() @ exact["K"].abs().T) / math.sqrt(d)
    away = scores.amax(1, keepdim=True) - scores
    spread = away.amax(1, keepdim=True)
    own = off + UNIT_ROUNDOFF * (away + spread) + EXPONENTIAL
    sums = (2 * lk + 3) * UNIT_ROUNDOFF + 2 * (lk / LEAST_TILE + 1) * (EXPONENTIAL + UNIT_ROUNDOFF)
    relative = own + (p * own).sum(1, keepdim=True) + sums / (1 - sums)
    return (p * relative * (1 + relative)) @ exact["V"].abs()


def torch_attention(given: Given, threads: int) -> Callable[[], Tensor]:
    q, k, v = (given[name][None, None] for name in "QKV")
    return lambda: F.scaled_dot_product_attention(q, k, v)[0, 0]


def torch_products(given: Given, threads: int) -> Callable[[], Tensor]:
    q, k, v = given["Q"], given["K"], given["V"]
    scale = 1 / math.sqrt(q.shape[1])
    return lambda: torch.softmax(q @ k.T * scale, 1) @ v


PROBLEM = Problem(
    title="attention of one head on the CPU, O[Lq, D] = softmax(Q K^T / sqrt(D)) V in float32",
    symbol="attention",
    signature=(*[ctypes.c_int64] * 3, *[ctypes.c_void_p] * 4, ctypes.c_int64),
    size={"Lq": 768, "Lk": 2048, "D": 64},
    verification_sizes=(
        {"Lq": 1, "Lk": 1, "D": 16},
        {"Lq": 5, "Lk": 3, "D": 16},
        {"Lq": 7, "Lk": 33, "D": 32},
        {"Lq": 13, "Lk": 128, "D": 64},
        {"Lq": 50, "Lk": 257, "D": 48},
        {"Lq": 101, "Lk": 300, "D": 64},
    ),
    inputs=inputs,
    shape=lambda size: (size["Lq"], size["D"]),
    reference=lambda exact: probabilities(exact)[1] @ exact["V"],
    bound=bound,
    flop=lambda size: 4.0 * size["Lq"] * size["Lk"] * size["D"],
    bytes=lambda size: 4.0 * size["D"] * 2 * (size["Lq"] + size["Lk"]),
    arguments=lambda size, given, out, threads: (
        size["Lq"], size["Lk"], size["D"], given["Q"].data_ptr(), given["K"].data_ptr(), given["V"].data_ptr(),
        out.data_ptr(), threads,
    ),
    baselines={"torch": torch_attention, "torch by products": torch_products},
    said={
        "torch": "scaled_dot_product_attention, which on a CPU goes by tiles too",
        "torch by products": "torch.softmax(Q @ K.T / sqrt(D), 1) @ V, with all scores in memory",
    },
    rows="Lq",
    output="O",
    lessons="src/kernelworks/ops/attention/attention/tile.hpp",
)  # fmt: skip
