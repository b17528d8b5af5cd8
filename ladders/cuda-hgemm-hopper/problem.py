"""C[M, N] = A[M, K] B[N, K]^T in bfloat16 with float32 sums: what every rung of this ladder computes.

B is stored as ``torch.nn.Linear`` stores its weight, so that both operands have K, along which is summed, without gaps.
All are row-major. N and K are multiples of 8, so that every row begins at whole 16 bytes; M is anything. Rungs that ask
for more say so in their header.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.climb.problem import Inputs, Problem, Size

UNIT_ROUNDOFF = 2.0**-8  # of bfloat16
CUT = 2.0**-23  # what is lost, as a share of the largest number in an addition, where float32 is cut off, not rounded
PART = 64  # columns of A and B


def inputs(size: Size, generator: torch.Generator) -> Inputs:
    def normal(rows: int) -> Tensor:
        return torch.randn(rows, size["K"], generator=generator, device=generator.device).bfloat16()

    return {"A": normal(size["M"]), "B": normal(size["N"])}


def bound(exact: Inputs, reference: Tensor) -> Tensor:
    """Products of bfloat16 are exact in float32. The matrix units add at least four of them to a sum at once: they
    shift all to the largest exponent and cut off what hangs over, then cut the result; that such a cut loses less than
    2^-23 of the largest number is all that is assumed of them. So K products meet K + K/4 cuts, and none is larger than
    2^-23 of the largest sum on the way. A rung may begin its sum at any multiple of 64 columns and join a few such
    parts: every sum on the way is then the difference of two that begin with the first column. Rounding to bfloat16
    comes last.
    """
    a, b = exact["A"], exact["B"]
    terms = a.shape[1]
    so_far, largest = torch.zeros_like(reference), torch.zeros_like(reference)
    for first in range(0, terms, PART):
        x, y = a[:, first : first + PART], b[:, first : first + PART]
        torch.maximum(largest, so_far.abs() + x.abs() @ y.abs().T, out=largest)
        so_far += x @ y.T
    cuts = (1.25 * terms + 8) * CUT
    return UNIT_ROUNDOFF * reference.abs() + (1 + UNIT_ROUNDOFF) * cuts / (1 - cuts) * 2 * largest


def cublas(given: Inputs, threads: int) -> Callable[[], Tensor]:
    a, b = given["A"], given["B"].t()
    out = a.new_empty(a.shape[0], b.shape[1])
    return lambda: torch.mm(a, b, out=out)


PROBLEM = Problem(
    title="bfloat16 matrix product on a Hopper GPU, C[M, N] = A[M, K] B[N, K]^T, sums in float32",
    symbol="hgemm",
    device="cuda",
    dtype=torch.bfloat16,
    arithmetic="bfloat16",
    size={"M": 4096, "N": 4096, "K": 4096},
    verification_sizes=(
        {"M": 1, "N": 8, "K": 8},
        {"M": 64, "N": 16, "K": 16},
        {"M": 128, "N": 128, "K": 64},
        {"M": 7, "N": 136, "K": 72},
        {"M": 256, "N": 384, "K": 192},
        {"M": 129, "N": 264, "K": 200},
        {"M": 300, "N": 520, "K": 1032},
        {"M": 2176, "N": 2304, "K": 640},
        {"M": 2049, "N": 2312, "K": 520},
        {"M": 2049, "N": 2312, "K": 5000},
        {"M": 2557, "N": 2552, "K": 5000},
    ),
    also=(
        {"M": 8192, "N": 8192, "K": 8192},
        {"M": 4096, "N": 28672, "K": 4096},
        {"M": 8192, "N": 4096, "K": 14336},
        {"M": 2048, "N": 2048, "K": 2048},
        {"M": 16384, "N": 4096, "K": 4096},
    ),
    inputs=inputs,
    shape=lambda size: (size["M"], size["N"]),
    reference=lambda exact: exact["A"] @ exact["B"].T,
    bound=bound,
    flop=lambda size: 2.0 * size["M"] * size["N"] * size["K"],
    bytes=lambda size: 2.0 * (size["M"] * size["K"] + size["N"] * size["K"] + size["M"] * size["N"]),
    baselines={"cuBLAS": cublas},
    said={"cuBLAS": "torch.mm(A, B.t(), out=C)"},
    lessons="src/kernelworks/tile/blocked.cuh",
)
