"""y[m, n] = x[m, n] / sqrt(mean over n of x[m, n]^2 + eps) * w[n] in float32: before every block of a
model.

Each number of x is read once and each of y written once if nothing is done twice, and next to nothing is computed with
them: the bytes are the time. The rows of x differ in size, from ones beside which eps is nothing to ones beside which
it is all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.climb.problem import Problem, Size

UNIT_ROUNDOFF = 2.0**-24
EPS = 2.0**-20  # a number that float32 has, near the 1e-6 of models

Given = dict[str, Tensor]


def inputs(size: Size, generator: torch.Generator) -> Given:
    scale = 10.0 ** torch.empty(size["M"], 1).uniform_(-4, 2, generator=generator)
    return {
        "x": torch.randn(size["M"], size["N"], generator=generator) * scale,
        "w": torch.randn(size["N"], generator=generator),
    }


def reference(exact: Given) -> Tensor:
    mean = exact["x"].square().mean(1, keepdim=True)
    return exact["x"] / (mean + EPS).sqrt() * exact["w"]


def gamma(steps: int) -> float:
    return steps * UNIT_ROUNDOFF / (1 - steps * UNIT_ROUNDOFF)


def bound(exact: Given, reference: Tensor) -> Tensor:
    """A square, at most N - 1 additions, the division by N and the addition of eps make N + 2 roundings of a sum of
    positive numbers: a relative gamma_{N+2} (Higham, Accuracy and Stability of Numerical Algorithms, section 3.5), of
    which a root takes half. A rounding each for the root, its reciprocal and the products with it and with w follow;
    what is too small for float32 may be lost on the way (2^-149 times w, and again at the end)."""
    root = (1 - gamma(exact["x"].shape[1] + 2)) ** -0.5
    relative = root * (1 + gamma(4)) - 1
    return relative * reference.abs() + 2.0**-149 * (exact["w"].abs() + 1)


def torch_rms_norm(given: Given, threads: int) -> Callable[[], Tensor]:
    x, w = given["x"], given["w"]
    return lambda: F.rms_norm(x, w.shape, w, EPS)


def torch_operations(given: Given, threads: int) -> Callable[[], Tensor]:
    x, w = given["x"], given["w"]
    return lambda: x * (x.square().mean(1, keepdim=True) + EPS).rsqrt() * w


PROBLEM = Problem(
    title="RMSNorm of rows on the CPU, y[m, n] = x[m, n] / sqrt(mean of x[m]^2 + eps) * w[n]",
    symbol="rms_norm",
    signature=(*[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 3, ctypes.c_float, ctypes.c_int64),
    size={"M": 2048, "N": 4096},
    verification_sizes=(
        {"M": 1, "N": 1},
        {"M": 5, "N": 3},
        {"M": 3, "N": 33},
        {"M": 7, "N": 64},
        {"M": 33, "N": 257},
        {"M": 70, "N": 1000},
    ),
    inputs=inputs,
    shape=lambda size: (size["M"], size["N"]),
    reference=reference,
    bound=bound,
    flop=lambda size: 4.0 * size["M"] * size["N"],
    bytes=lambda size: 4.0 * (2 * size["M"] * size["N"] + size["N"]),
    arguments=lambda size, given, out, threads: (
        size["M"], size["N"], given["x"].data_ptr(), given["w"].data_ptr(), out.data_ptr(), EPS, threads,
    ),
    baselines={"torch": torch_rms_norm, "torch by operations": torch_operations},
    said={
        "torch": "torch.nn.functional.rms_norm",
        "torch by operations": "what a model's own code says: x * (x.square().mean(1, keepdim=True) + eps).rsqrt() * w",
    },
    unit="GB/s",
    rows="M",
    lessons="src/kernelworks/simd/norm.hpp",
)  # fmt: skip
