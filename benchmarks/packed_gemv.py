"""Products with packed weights beside torch's and beside what memory gives: ``python benchmarks/packed_gemv.py``.

One row of x, weights that no cache holds (copies in turn), all arms in every round. Prints the time that a tenth of
each one's calls stay below and the median. The bytes of weight that it read a second are a share of what reading memory
alone came to in the same rounds, by the same tenth: measured peaks are taken so.
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
from kernelworks.contract.packed_formats import FORMATS
from kernelworks.machine import machine
from kernelworks.measure.peaks.survey import BANDWIDTH_SOURCE

SIZES = ((4096, 4096), (4096, 14336))
PART = 8 * 2**20  # that each thread reads at a time where nothing but memory is read
APART = 256 * 2**20  # bytes of weights that are gone through before the first is read again
KINDS = (("avx512", "float32"), ("int8_avx512_vnni", "int8"), ("avx2", "float32"), ("int8_avx2", "int8"))


class Arm:
    """A call on weights in turn."""

    def __init__(self, name: str, call: Callable[[Any], Any], weights: Sequence[Any], nbytes: int) -> None:
        self.name, self.call, self.weights, self.nbytes = name, call, weights, nbytes
        self.seconds: list[float] = []
        for weight in weights:
            call(weight)

    def sample(self) -> None:
        for weight in self.weights:
            begin = time.perf_counter()
            self.call(weight)
            self.seconds.append(time.perf_counter() - begin)

    @property
    def best(self) -> float:
        return sorted(self.seconds)[len(self.seconds) // 10]

    @property
    def rate(self) -> float:
        return self.nbytes / self.best / 1e9

    def told(self) -> str:
        return f"{self.best * 1e6:8.0f} us (median {statistics.median(self.seconds) * 1e6:.0f}), {self.rate:5.1f} GB/s"


def call_of(x: torch.Tensor, format: str, kernel: str, activations: str) -> Callable[[Any], Any]:
    return lambda w: kw.quantized_linear(x, w, format=format, activations=activations, kernel=kernel)


def arms(n: int, k: int, only: str) -> list[Arm]:
    x = torch.randn(1, k)
    dense = torch.randn(n, k) * k**-0.5
    made: list[Arm] = []
    has_avx512 = {"avx512f", "avx512_vnni"} <= machine().features

    def copies(weight: torch.Tensor) -> list[torch.Tensor]:
        return [weight.clone() for _ in range(max(2, APART // weight.nbytes))]

    for format in FORMATS:
        kinds = [kind for kind in KINDS if only in f"{format} {kind[0]}" and ("avx512" not in kind[0] or has_avx512)]
        weights = copies(kw.quantize(dense, format, kernel="scalar")) if kinds else []
        made += [Arm(f"{format} {kernel}", call_of(x, format, kernel, activations), weights, weights[0].nbytes)
                 for kernel, activations in kinds]  # fmt: skip
    made.append(Arm("torch float32", lambda w: F.linear(x, w), copies(dense), dense.nbytes))
    half, x16 = dense.bfloat16(), x.bfloat16()
    made.append(Arm("torch bfloat16", lambda w: F.linear(x16, w), copies(half), half.nbytes))
    whole, scales = (dense * 127 / dense.abs().amax()).to(torch.int8), torch.ones(n, dtype=torch.bfloat16)
    made.append(
        Arm("torch _weight_int8pack_mm bfloat16", lambda w: torch.ops.aten._weight_int8pack_mm(x16, w, scales),
            copies(whole), whole.nbytes)
    )  # fmt: skip
    return [arm for arm in made if only in arm.name or arm.name in ("torch float32", "torch bfloat16")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=machine().cores)
    parser.add_argument("--only", default="", help="arms whose name has this in it")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target = "avx512" if "avx512f" in machine().features else "avx2"
    kernels, result = library(BANDWIDTH_SOURCE, target), torch.zeros(2, dtype=torch.float64)
    whole = args.threads * (PART + 8192) + 8192
    parts = [torch.zeros(whole, dtype=torch.uint8) for _ in range(APART // whole)]

    def read(part: torch.Tensor) -> None:
        kernels.read(result, part, PART, 1, args.threads)

    for n, k in SIZES:
        found = [Arm("reading memory alone", read, parts, args.threads * PART), *arms(n, k, args.only)]
        for _ in range(args.rounds):
            for arm in found:
                arm.sample()
        print(f"{n}x{k}, {args.threads} threads: share of the read rate, and times as fast as torch's linear")
        torchs = {name: next((a for a in found if a.name == f"torch {name}"), None) for name in ("bfloat16", "float32")}
        for arm in found:
            beside = [
                f"{other.best / arm.best:5.2f}x {name}"
                for name, other in torchs.items()
                if other and arm is not found[0]
            ]
            print(f"  {arm.name:36} {arm.told()}, {arm.rate / found[0].rate:.0%}  {'  '.join(beside)}")


if __name__ == "__main__":
    main()
