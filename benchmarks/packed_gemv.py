"""Products with packed weights beside torch's and beside what memory gives: ``python benchmarks/packed_gemv.py``.

One row of x, weights that no cache holds (copies in turn), all arms in every round. Prints the least and the median
time of each, and the bytes of weight that it read a second as a share of what reading memory alone came to in the same
rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

import kernelworks as kw
from kernelworks.build.cpp import library
from kernelworks.machine import machine
from kernelworks.measure.peaks.survey import BANDWIDTH_SOURCE

SIZES = ((4096, 4096), (4096, 14336))
APART = 256 * 2**20  # bytes of weights that are gone through before the first is read again
KERNELS = (
    ("Q8_0", "avx512", "float32"), ("Q8_0", "int8_avx512_vnni", "int8"), ("Q8_0", "avx2", "float32"),
    ("Q8_0", "int8_avx2", "int8"), ("Q4_0", "avx512", "float32"), ("Q4_0", "int8_avx512_vnni", "int8"),
)  # fmt: skip


class Arm:
    """A call on weights in turn."""

    def __init__(self, name: str, call: Callable[[Any], Any], weights: Sequence[Any], nbytes: int) -> None:
        self.name, self.call, self.weights, self.nbytes = name, call, weights, nbytes
        self.seconds: list[float] = []
        for weight in weights:
            call(weight)

    def sample(self) -> None:
        begin = time.perf_counter()
        for weight in self.weights:
            self.call(weight)
        self.seconds.append((time.perf_counter() - begin) / len(self.weights))


def arms(n: int, k: int, only: str) -> list[Arm]:
    x = torch.randn(1, k)
    dense = torch.randn(n, k) * k**-0.5
    made = []

    def copies(weight: torch.Tensor) -> list[torch.Tensor]:
        return [weight.clone() for _ in range(max(2, APART // weight.nbytes))]

    for format, kernel, activations in KERNELS:
        weights = copies(kw.quantize(dense, format, kernel="torch"))

        def ours(w: Any, f: str = format, a: str = activations, r: str = kernel) -> Any:
            return kw.quantized_linear(x, w, format=f, activations=a, kernel=r)

        made.append(Arm(f"{format} {kernel}", ours, weights, weights[0].nbytes))
    made.append(Arm("torch float32", lambda w: F.linear(x, w), copies(dense), dense.nbytes))
    half, x16 = dense.bfloat16(), x.bfloat16()
    made.append(Arm("torch bfloat16", lambda w: F.linear(x16, w), copies(half), half.nbytes))
    whole, scales = (dense * 127 / dense.abs().amax()).to(torch.int8), torch.ones(n, dtype=torch.bfloat16)
    made.append(
        Arm("torch _weight_int8pack_mm bfloat16", lambda w: torch.ops.aten._weight_int8pack_mm(x16, w, scales),
            copies(whole), whole.nbytes)
    )  # fmt: skip
    return [arm for arm in made if only in arm.name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=machine().cores)
    parser.add_argument("--only", default="", help="arms whose name has this in it")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target = "avx512" if "avx512f" in machine().features else "avx2"
    kernels, result = library(BANDWIDTH_SOURCE, target), torch.zeros(2, dtype=torch.float64)
    size = 128 * 2**20
    buffer = torch.empty(args.threads * (size + 8192) + 8192, dtype=torch.uint8)
    kernels.touch(result, buffer, size, args.threads)
    for n, k in SIZES:
        found, rates = arms(n, k, args.only), []
        for _ in range(args.rounds):
            kernels.read(result, buffer, size, 1, args.threads)
            rates.append(size * float(result[1]) / float(result[0]) / 1e9)
            for arm in found:
                arm.sample()
        peak = max(rates)
        print(f"{n}x{k}, {args.threads} threads: memory read at {peak:.1f} GB/s, median {statistics.median(rates):.1f}")
        for arm in found:
            best, middle = min(arm.seconds), statistics.median(arm.seconds)
            rate = arm.nbytes / best / 1e9
            print(
                f"  {arm.name:36} {best * 1e6:8.0f} us (median {middle * 1e6:.0f}), {rate:5.1f} GB/s, {rate / peak:.0%}"
            )


if __name__ == "__main__":
    main()
