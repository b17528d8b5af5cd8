"""A ladder to begin with: a sum of squares of rows, two rungs, a problem with everything that a proof needs."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["FILES", "start"]

PROBLEM = '''"""y[m] = sum over n of x[m, n]^2 in float32: replace this by what your ladder computes."""

from __future__ import annotations

import ctypes

import torch

from kernelworks.climb.problem import Problem

UNIT_ROUNDOFF = 2.0**-24


def bound(exact, reference):
    """N products and N - 1 additions in any order: gamma_N times the sum of the absolute terms."""
    steps = exact["x"].shape[1] * UNIT_ROUNDOFF
    return steps / (1 - steps) * exact["x"].square().sum(1)


def torch_default(given, threads):
    return lambda: given["x"].square().sum(1)


PROBLEM = Problem(
    title="sum of squares of each row, y[m] = sum over n of x[m, n]^2",
    symbol="kernel",
    signature=(ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64),
    size={"M": 256, "N": 4096},
    proof_sizes=({"M": 1, "N": 1}, {"M": 3, "N": 7}, {"M": 17, "N": 129}),
    inputs=lambda size, generator: {"x": torch.randn(size["M"], size["N"], generator=generator)},
    shape=lambda size: (size["M"],),
    reference=lambda exact: exact["x"].square().sum(1),
    bound=bound,
    flop=lambda size: 2.0 * size["M"] * size["N"],
    bytes=lambda size: 4.0 * (size["M"] * size["N"] + size["M"]),
    arguments=lambda size, given, out, threads: (
        size["M"], size["N"], given["x"].data_ptr(), out.data_ptr(), threads,
    ),
    peers={"torch": torch_default},
    rows="M",
)
'''

NAIVE = """// title: Naive
// target: avx2
// threads: 1
// loads: L1 4
// hypothesis: The formula as it is written. Every addition waits for the one before it, 4 cycles, so this waits on
//   latency and neither on the multipliers nor on memory.
// next: One chain of additions. Use several.
#include <cstdint>

extern "C" [[gnu::visibility("default")]] void kernel(int64_t M, int64_t N, const float* x, float* y, int64_t) {
    for (int64_t m = 0; m < M; ++m) {
        float sum = 0;
        for (int64_t n = 0; n < N; ++n) sum += x[m * N + n] * x[m * N + n];
        y[m] = sum;
    }
}
"""

CHAINS = """// title: Four chains
// target: avx2
// threads: 1
// loads: L1 4
// hypothesis: Four sums that do not wait for each other hide the latency of four cycles.
// predicts: 4
// next: Scalar instructions. Use vectors.
#include <cstdint>

extern "C" [[gnu::visibility("default")]] void kernel(int64_t M, int64_t N, const float* x, float* y, int64_t) {
    for (int64_t m = 0; m < M; ++m) {
        float sum[4] = {};
        for (int64_t n = 0; n < N; n += 4)
            for (int64_t i = 0; i < 4 && n + i < N; ++i) sum[i] += x[m * N + n + i] * x[m * N + n + i];
        y[m] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}
"""

FILES = {"problem.py": PROBLEM, "01_naive.cpp": NAIVE, "02_four_chains.cpp": CHAINS}


def start(name: str, root: Path = Path("ladders")) -> Path:
    """Writes the template to ``ladders/<name>/`` of the working folder. Raises ValueError where that cannot be."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name) or name in ("new", "tile"):
        raise ValueError(
            f"a ladder's name is lower-case letters, digits and hyphens, and not new or tile; got {name!r}"
        )
    folder = root / name
    if folder.exists():
        raise ValueError(f"{folder} is there already")
    folder.mkdir(parents=True)
    for file, text in FILES.items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder
