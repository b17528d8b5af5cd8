"""s = sum over n of x[n] in float32, of 8 million numbers: the least that can be done with memory that is read.

One chain of float32 additions loses too much for so many numbers, so the bound asks for more: no float32 sum of more
than 256 terms, and float64 above that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.climb.problem import Problem, Size

UNIT_ROUNDOFF = 2.0**-24
MOST_TERMS = 256  # of a sum in float32

Given = dict[str, Tensor]


def inputs(size: Size, generator: torch.Generator) -> Given:
    """Random numbers. Of the small sizes that are even, equal ones: their roundings all go one way, and add up. The
    ends are larger than the others, so that nobody may leave them out."""
    if size["N"] % 2 == 0 and size["N"] < 1 << 20:
        x = torch.full((size["N"],), 0.1)
    else:
        x = torch.randn(size["N"], generator=generator)
    x[0] += size["N"] / 64
    x[-1] -= size["N"] / 32
    return {"x": x}


def bound(exact: Given, reference: Tensor) -> Tensor:
    """gamma_256 of the sum of magnitudes for the sums in float32 (Higham, Accuracy and Stability of Numerical
    Algorithms, section 3.5), gamma_N of float64 for the rest, and the last rounding to float32."""
    steps = MOST_TERMS * UNIT_ROUNDOFF
    double = exact["x"].numel() * 2.0**-53
    gamma = steps / (1 - steps) + double / (1 - double)
    return gamma * exact["x"].abs().sum().reshape(1) + UNIT_ROUNDOFF * reference.abs()


def torch_sum(given: Given, threads: int) -> Callable[[], Tensor]:
    x = given["x"]
    out = torch.empty(1)
    return lambda: torch.sum(x, 0, keepdim=True, out=out)


PROBLEM = Problem(
    title="the sum of a vector on the CPU, s = sum of x[n]",
    symbol="sum",
    signature=(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64),
    size={"N": 8_388_608},
    verification_sizes=({"N": 1}, {"N": 3}, {"N": 33}, {"N": 1000}, {"N": 8191}, {"N": 65_537}, {"N": 100_000}),
    inputs=inputs,
    shape=lambda size: (1,),
    reference=lambda exact: exact["x"].sum().reshape(1),
    bound=bound,
    flop=lambda size: 1.0 * size["N"],
    bytes=lambda size: 4.0 * size["N"],
    arguments=lambda size, given, out, threads: (size["N"], given["x"].data_ptr(), out.data_ptr(), threads),
    baselines={"torch": torch_sum},
    said={"torch": "torch.sum(x), in float32"},
    unit="GB/s",
    lessons="src/kernelworks/ops/reduction/sum/simd.cpp",
)  # fmt: skip
