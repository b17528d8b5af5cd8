"""A ladder to begin with, on the CPU or on a GPU: sums of rows, two rungs, a problem with all that a verification
needs."""

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
    verification_sizes=({"M": 1, "N": 1}, {"M": 3, "N": 7}, {"M": 17, "N": 129}),
    inputs=lambda size, generator: {"x": torch.randn(size["M"], size["N"], generator=generator)},
    shape=lambda size: (size["M"],),
    reference=lambda exact: exact["x"].square().sum(1),
    bound=bound,
    flop=lambda size: 2.0 * size["M"] * size["N"],
    bytes=lambda size: 4.0 * (size["M"] * size["N"] + size["M"]),
    arguments=lambda size, given, out, threads: (
        size["M"], size["N"], given["x"].data_ptr(), out.data_ptr(), threads,
    ),
    baselines={"torch": torch_default},
    rows="M",
)
'''

NAIVE = """// title: Naive
// target: avx2
// threads: 1
// loads: L1 4
// hypothesis: The formula as it is written. Every addition waits for the one before it, 4 cycles, so this is
//   bound by the latency of an addition, neither by the multipliers nor by memory.
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

CHAINS = """// title: Four independent accumulators
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

CUDA_PROBLEM = '''"""y[m] = sum over n of x[m, n] in float32 on a GPU: replace this by what your ladder computes."""

from __future__ import annotations

import torch

from kernelworks.climb.problem import Problem

UNIT_ROUNDOFF = 2.0**-24


def bound(exact, reference):
    """N - 1 additions in any order: gamma_N times the sum of the absolute terms."""
    steps = exact["x"].shape[1] * UNIT_ROUNDOFF
    return steps / (1 - steps) * exact["x"].abs().sum(1)


def torch_default(given, threads):
    out = given["x"].new_empty(given["x"].shape[0])
    return lambda: torch.sum(given["x"], 1, out=out)


PROBLEM = Problem(
    title="sum of each row on a GPU, y[m] = sum over n of x[m, n]",
    device="cuda",
    symbol="kernel",  # extern "C" __global__ void kernel(const float* x, float* y, long long M, long long N)
    output="y",
    unit="GB/s",  # it does next to nothing with what it reads
    size={"M": 16384, "N": 8192},
    verification_sizes=({"M": 1, "N": 1}, {"M": 3, "N": 7}, {"M": 17, "N": 129}, {"M": 300, "N": 1000}),
    inputs=lambda size, generator: {
        "x": torch.randn(size["M"], size["N"], generator=generator, device=generator.device)
    },
    shape=lambda size: (size["M"],),
    reference=lambda exact: exact["x"].sum(1),
    bound=bound,
    flop=lambda size: 1.0 * size["M"] * size["N"],
    bytes=lambda size: 4.0 * (size["M"] * size["N"] + size["M"]),
    baselines={"torch": torch_default},
    said={"torch": "torch.sum(x, 1, out=y)"},
)
'''

CUDA_NAIVE = """// title: One thread per row
// launch: threads 256, tile 256 x 1, grid tiles
// hypothesis: The formula as it is written. The 32 threads of a warp read from 32 rows at once, 4 bytes out of every
//   sector of 32, and what they leave may be gone from the cache when they come back for it. So this is bound by
//   memory, and moves most of it for nothing.
// next: Neighbouring threads should read neighbouring numbers.
extern "C" __global__ void kernel(const float* x, float* y, long long M, long long N) {
    long long m = blockIdx.x * 256ll + threadIdx.x;
    if (m >= M) return;
    float sum = 0;
    for (long long n = 0; n < N; ++n) sum += x[m * N + n];
    y[m] = sum;
}
"""

CUDA_WARP = """// title: One warp per row
// launch: threads 256, tile 8 x 1, grid tiles
// hypothesis: A warp reads 128 neighbouring bytes at a time and uses all of them. Eight times less is moved for the
//   same sums, and there are 32 times as many threads to wait for it.
// predicts: 8
// next: Each load is 4 bytes a thread. Wider ones would keep more of memory in flight.
extern "C" __global__ void kernel(const float* x, float* y, long long M, long long N) {
    long long m = blockIdx.x * 8ll + threadIdx.x / 32;
    if (m >= M) return;
    float sum = 0;
    for (long long n = threadIdx.x % 32; n < N; n += 32) sum += x[m * N + n];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 == 0) y[m] = sum;
}
"""

FILES = {
    "cpu": {"problem.py": PROBLEM, "01_naive.cpp": NAIVE, "02_four_chains.cpp": CHAINS},
    "cuda": {"problem.py": CUDA_PROBLEM, "01_naive.cu": CUDA_NAIVE, "02_warp_a_row.cu": CUDA_WARP},
}


def start(name: str, root: Path = Path("ladders"), device: str = "cpu") -> Path:
    """Writes the template of a device to ``ladders/<name>/`` of the working folder. Raises ValueError if that
    cannot be."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name) or name in ("new", "tile"):
        raise ValueError(
            f"a ladder's name is lower-case letters, digits and hyphens, and not new or tile; got {name!r}"
        )
    if device not in FILES:
        raise ValueError(f"a ladder's device is {' or '.join(FILES)}, got {device!r}")
    folder = root / name
    if folder.exists():
        raise ValueError(f"{folder} is there already")
    folder.mkdir(parents=True)
    for file, text in FILES[device].items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder
