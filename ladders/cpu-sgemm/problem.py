"""C[M, N] = A[M, K] B[K, N] in float32, all row-major and contiguous: what every rung of this ladder computes."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernelworks.climb.baselines import openblas, torch_mkldnn, torch_mm
from kernelworks.climb.problem import Problem, Size

UNIT_ROUNDOFF = 2.0**-24


def inputs(size: Size, generator: torch.Generator) -> dict[str, Tensor]:
    return {
        "A": torch.randn(size["M"], size["K"], generator=generator),
        "B": torch.randn(size["K"], size["N"], generator=generator),
    }


def bound(exact: dict[str, Tensor], reference: Tensor) -> Tensor:
    """However the K terms are grouped, each meets at most K roundings: gamma_K |A| |B| (Higham, Accuracy and
    Stability of Numerical Algorithms, section 3.5)."""
    steps = exact["A"].shape[1] * UNIT_ROUNDOFF
    return steps / (1 - steps) * (exact["A"].abs() @ exact["B"].abs())


PROBLEM = Problem(
    title="fp32 matrix product on the CPU, C[M, N] = A[M, K] B[K, N]",
    symbol="sgemm",
    signature=(*[ctypes.c_int64] * 3, *[ctypes.c_void_p] * 3, ctypes.c_int64),
    size={"M": 2048, "N": 2048, "K": 2048},
    verification_sizes=(
        {"M": 1, "N": 1, "K": 1},
        {"M": 7, "N": 5, "K": 3},
        {"M": 33, "N": 65, "K": 129},
        {"M": 64, "N": 64, "K": 64},
        {"M": 131, "N": 515, "K": 300},
        {"M": 30, "N": 70, "K": 770},
    ),
    inputs=inputs,
    shape=lambda size: (size["M"], size["N"]),
    reference=lambda exact: exact["A"] @ exact["B"],
    bound=bound,
    flop=lambda size: 2.0 * size["M"] * size["N"] * size["K"],
    bytes=lambda size: 4.0 * (size["M"] * size["K"] + size["K"] * size["N"] + size["M"] * size["N"]),
    arguments=lambda size, given, out, threads: (
        size["M"], size["N"], size["K"], given["A"].data_ptr(), given["B"].data_ptr(), out.data_ptr(), threads,
    ),
    baselines={"torch": torch_mm, "torch mkldnn": torch_mkldnn, "OpenBLAS": openblas},
    rows="M",
    lessons="src/kernelworks/ops/linear/linear/blocked.hpp",
)  # fmt: skip
