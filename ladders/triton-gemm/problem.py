"""C[M, N] = A[M, K] B[K, N] in float16 with float32 sums: what every rung of this ladder computes, in Triton.

All are row-major. N and K are multiples of 8, so that every row begins at whole 16 bytes; M is anything. Triton's
interpreter multiplies float16 as a GPU does, so each rung is also run without one, on the small sizes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.climb.problem import Inputs, Problem, Size

UNIT_ROUNDOFF = 2.0**-11  # of float16
SMALLEST = 2.0**-25  # half of the smallest float16
CUT = 2.0**-23  # what is lost, as a share of the largest number in an addition, where float32 is cut off, not rounded
PART = 64  # columns of A


def inputs(size: Size, generator: torch.Generator) -> Inputs:
    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator, device=generator.device).half()

    return {"A": normal(size["M"], size["K"]), "B": normal(size["K"], size["N"])}


def bound(exact: Inputs, reference: Tensor) -> Tensor:
    """Products of float16 are exact in float32. The matrix units add at least four of them to a sum at once: they
    shift all to the largest exponent, cut off what hangs over, and cut the result; that a cut loses less than 2^-23 of
    the largest number is all that is assumed of them. So K products meet K + K/4 cuts, and none is more than 2^-23 of
    the largest sum on the way, which is one of the first columns' and what is added to it. Rounding to float16 comes
    last, below its normal numbers by half of the smallest.
    """
    a, b = exact["A"], exact["B"]
    terms = a.shape[1]
    so_far, largest = torch.zeros_like(reference), torch.zeros_like(reference)
    for first in range(0, terms, PART):
        x, y = a[:, first : first + PART], b[first : first + PART]
        torch.maximum(largest, so_far.abs() + x.abs() @ y.abs(), out=largest)
        so_far += x @ y
    cuts = (1.25 * terms + 8) * CUT
    return UNIT_ROUNDOFF * reference.abs() + (1 + UNIT_ROUNDOFF) * cuts / (1 - cuts) * largest + SMALLEST


def cublas(given: Inputs, threads: int) -> Callable[[], Tensor]:
    a, b = given["A"], given["B"]
    out = a.new_empty(a.shape[0], b.shape[1])
    return lambda: torch.mm(a, b, out=out)


PROBLEM = Problem(
    title="float16 matrix product in Triton on a Hopper GPU, C[M, N] = A[M, K] B[K, N], sums in float32",
    symbol="gemm",
    device="cuda",
    language="triton",
    dtype=torch.float16,
    arithmetic="float16",
    size={"M": 4096, "N": 4096, "K": 4096},
    verification_sizes=(
        {"M": 1, "N": 8, "K": 8},
        {"M": 7, "N": 136, "K": 72},
        {"M": 130, "N": 264, "K": 8},
        {"M": 130, "N": 16, "K": 200},
        {"M": 300, "N": 520, "K": 1032},
        {"M": 2049, "N": 2312, "K": 520},
    ),
    also=({"M": 8192, "N": 8192, "K": 8192}, {"M": 2048, "N": 2048, "K": 2048}),
    inputs=inputs,
    shape=lambda size: (size["M"], size["N"]),
    reference=lambda exact: exact["A"] @ exact["B"],
    bound=bound,
    flop=lambda size: 2.0 * size["M"] * size["N"] * size["K"],
    bytes=lambda size: 2.0 * (size["M"] * size["K"] + size["N"] * size["K"] + size["M"] * size["N"]),
    baselines={"cuBLAS": cublas},
    said={"cuBLAS": "torch.mm(A, B, out=C)"},
    lessons="src/kernelworks/tile/blocked.cuh",
)
