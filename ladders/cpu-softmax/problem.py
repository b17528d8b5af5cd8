"""y[m, n] = exp(x[m, n] - max of x[m]) / sum over n of the same, in float32: each row becomes probabilities.

Each number of x is read once and each of y written once if nothing is done twice. Some rows of x lie far from 0, where
an exponential of x itself would be infinite or 0, and some are wide.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.climb.problem import Problem, Size

UNIT_ROUNDOFF = 2.0**-24
EXPONENTIAL = 4 * UNIT_ROUNDOFF  # of the result: two units in the last place, for a library's exponential and our own
LEAST = 2.0**-125  # below it an exponential may come out as something else that is as small

Given = dict[str, Tensor]


def inputs(size: Size, generator: torch.Generator) -> Given:
    width = 10.0 ** torch.empty(size["M"], 1).uniform_(-1, 1.5, generator=generator)
    place = torch.empty(size["M"], 1).uniform_(-500, 500, generator=generator)
    return {"x": torch.randn(size["M"], size["N"], generator=generator) * width + place}


def bound(exact: Given, reference: Tensor) -> Tensor:
    """The difference x - max is rounded, which an exponential makes a relative error of 2^-24 |x - max|, and has its
    own error. The sum takes both from each term, as a mean with weights y, and N - 1 additions; an inverse and a
    product or a division follow. To first order these add up; gamma_{N+3} in place of N + 3 roundings holds what is
    above."""
    away = exact["x"].amax(1, keepdim=True) - exact["x"]
    own = UNIT_ROUNDOFF * away + EXPONENTIAL
    steps = (exact["x"].shape[1] + 3) * UNIT_ROUNDOFF
    relative = own + (reference * own).sum(1, keepdim=True) + steps / (1 - steps)
    return relative * (1 + relative) * reference + 2 * LEAST


def torch_softmax(given: Given, threads: int) -> Callable[[], Tensor]:
    x = given["x"]
    out = torch.empty_like(x)
    return lambda: torch.softmax(x, 1, out=out)


PROBLEM = Problem(
    title="softmax of rows on the CPU, y[m, n] = exp(x[m, n] - max of x[m]) / its sum over n",
    symbol="softmax",
    signature=(*[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 2, ctypes.c_int64),
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
    reference=lambda exact: torch.softmax(exact["x"], 1),
    bound=bound,
    flop=lambda size: 20.0 * size["M"] * size["N"],  # an exponential is some sixteen
    bytes=lambda size: 8.0 * size["M"] * size["N"],
    arguments=lambda size, given, out, threads: (
        size["M"], size["N"], given["x"].data_ptr(), out.data_ptr(), threads,
    ),
    baselines={"torch": torch_softmax},
    said={"torch": "torch.softmax(x, 1, out=y)"},
    unit="GB/s",
    rows="M",
    lessons="src/kernelworks/simd/exp_lines.hpp",
)  # fmt: skip
