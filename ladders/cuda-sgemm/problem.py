"""C[M, N] = A[M, K] B[K, N] in float32 on a GPU's ordinary multipliers, all row-major and contiguous: what every rung
of this ladder computes. No tensor cores and no tf32: each product is rounded as float32 says.

M and N are multiples of 128 and K of 32, so that no rung spends lines on edges; those with larger tiles say so in
their header.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.climb.problem import Inputs, Problem, Size

UNIT_ROUNDOFF = 2.0**-24


def inputs(size: Size, generator: torch.Generator) -> Inputs:
    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator, device=generator.device)

    return {"A": normal(size["M"], size["K"]), "B": normal(size["K"], size["N"])}


def bound(exact: Inputs, reference: Tensor) -> Tensor:
    """However the K terms are grouped, each meets at most K roundings: gamma_K |A| |B| (Higham, Accuracy and
    Stability of Numerical Algorithms, section 3.5). It grows with K and a random error only with its root: tf32, which
    keeps 10 bits and not 23, would be far outside at K = 32 and inside at 4096. So there are short sums among the
    verification sizes."""
    steps = exact["A"].shape[1] * UNIT_ROUNDOFF
    return steps / (1 - steps) * (exact["A"].abs() @ exact["B"].abs())


def cublas(given: Inputs, threads: int) -> Callable[[], Tensor]:
    torch.backends.cuda.matmul.allow_tf32 = False  # the default, said aloud
    a, b = given["A"], given["B"]
    out = a.new_empty(a.shape[0], b.shape[1])
    return lambda: torch.mm(a, b, out=out)


PROBLEM = Problem(
    title="fp32 matrix product on a GPU without tensor cores, C[M, N] = A[M, K] B[K, N]",
    symbol="sgemm",
    device="cuda",
    size={"M": 4096, "N": 4096, "K": 4096},
    verification_sizes=(
        {"M": 128, "N": 128, "K": 32},
        {"M": 128, "N": 256, "K": 64},
        {"M": 256, "N": 128, "K": 96},
        {"M": 256, "N": 256, "K": 512},
        {"M": 384, "N": 640, "K": 160},
        {"M": 640, "N": 384, "K": 224},
        {"M": 512, "N": 1280, "K": 1056},
        {"M": 2304, "N": 2816, "K": 416},
        {"M": 2816, "N": 3328, "K": 192},
        {"M": 2816, "N": 3328, "K": 64},  # 286 tiles of 128 x 256, few steps: of 132 blocks most have none to share
    ),
    also=({"M": 8192, "N": 8192, "K": 8192}, {"M": 2048, "N": 2048, "K": 2048}, {"M": 2048, "N": 8192, "K": 4096}),
    inputs=inputs,
    shape=lambda size: (size["M"], size["N"]),
    reference=lambda exact: exact["A"] @ exact["B"],
    bound=bound,
    flop=lambda size: 2.0 * size["M"] * size["N"] * size["K"],
    bytes=lambda size: 4.0 * (size["M"] * size["K"] + size["K"] * size["N"] + size["M"] * size["N"]),
    lessons="src/kernelworks/tile/shares.cuh",
    baselines={"cuBLAS": cublas},
    said={"cuBLAS": "torch.mm(A, B, out=C) in float32, tf32 off"},
)
