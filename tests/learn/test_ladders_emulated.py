"""Kernels that others rely on, as a measure of the emulator: rungs of the ladders that were verified on a GPU run
without a word, give the right result, and ask memory as their worklogs say.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kernelworks.learn.emulator import (
    Argument,
    Emulation,
    Role,
    build_sources,
    fault_sentence,
    run_library,
    thread_orders,
)

LADDERS = Path(__file__).resolve().parents[2] / "ladders"
PRODUCTS = sorted((LADDERS / "cuda-sgemm").glob("0[1-8]_*.cu"))  # the later ones copy by PTX
SUMS = sorted((LADDERS / "cuda-reduction").glob("0[1-7]_*.cu"))
PRODUCT = "void run(const float* A, const float* B, float* C, int M, int N, int K)"
SUM = "void run(const float* x, float* y, int N, int* scratch)"
M, N, K = 128, 128, 32


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _scalar(name: str, value: int) -> Argument:
    return Argument(name, Role.SCALAR, np.array([value], np.int32))


def _text(path: Path, launch: str, declaration: str) -> str:
    text = path.read_text(encoding="utf-8")
    threads, tile = re.search(r"threads (\d+)", text), re.search(r"tile (\d+) x (\d+)", text)
    assert threads and tile
    if "Scratch" not in text:
        launch = launch.replace("<<<3,", "<<<1,").replace(", (Scratch*)scratch", "")
    filled = launch.format(threads=threads[1], rows=tile[1], columns=tile[2])
    device = text.replace('extern "C" __global__', "__global__")
    return "\n".join((device, f'extern "C" {declaration} {{', filled, "}", ""))


@pytest.fixture(scope="module")
def products() -> list[Emulation]:
    launch = "sgemm<<<dim3(N / {columns}, M / {rows}), {threads}>>>(A, B, C, M, N, K);"
    types = ["const float*", "const float*", "float*", "int", "int", "int"]
    library = build_sources([_text(path, launch, PRODUCT) for path in PRODUCTS], "sgemm.cu", PRODUCT, types)
    arguments = [
        Argument("A", Role.INPUT, _numbers(1, M, K)), Argument("B", Role.INPUT, _numbers(2, K, N)),
        Argument("C", Role.OUTPUT, np.zeros((M, N), np.float32)), _scalar("M", M), _scalar("N", N), _scalar("K", K),
    ]  # fmt: skip
    return [run_library(library, i, "sgemm.cu", [arguments], [thread_orders(2)]) for i in range(len(PRODUCTS))]


def _cost(seen: Emulation, *, shared: bool) -> float:
    """What the loads take, beside the least."""
    loads = [one for one in seen.traffic if one.shared is shared and (shared or one.access == 1)]
    return sum(one.cost for one in loads) / max(1, sum(one.least for one in loads))


def test_rungs_of_the_product_are_right(products: list[Emulation]) -> None:
    a, b = (_numbers(seed, *shape).astype(np.float64) for seed, shape in ((1, (M, K)), (2, (K, N))))
    bound = (K + 1) * 2.0**-24 * (np.abs(a) @ np.abs(b))
    assert len(products) == 8
    for path, seen in zip(PRODUCTS, products, strict=True):
        assert [fault_sentence(fault) for fault in seen.faults] == [], path.name
        assert seen.outputs and all((np.abs(o.values - a @ b) <= bound).all() for o in seen.outputs), path.name


def test_rungs_of_the_product_ask_memory_as_their_worklog_says(products: list[Emulation]) -> None:
    naive, coalesced, _, _, _, wide, padded, _ = products
    assert _cost(naive, shared=False) > 4 and _cost(coalesced, shared=False) == 1
    assert _cost(wide, shared=True) > 1.3 and _cost(padded, shared=True) == 1


def test_rungs_of_the_sum_are_right() -> None:
    launch = "sum<<<3, {threads}>>>(x, y, N, (Scratch*)scratch);"
    types = ["const float*", "float*", "int", "int*"]
    library = build_sources([_text(path, launch, SUM) for path in SUMS], "sum.cu", SUM, types)
    assert len(SUMS) == 7
    for number, path in enumerate(SUMS):
        tile = re.search(r"tile (\d+)", path.read_text(encoding="utf-8"))
        assert tile
        x = _numbers(3, 3 * min(int(tile[1]), 16384))
        arguments = [
            Argument("x", Role.INPUT, x), Argument("y", Role.OUTPUT, np.zeros(1, np.float32)), _scalar("N", x.size),
            Argument("scratch", Role.IN_OUT, np.zeros(4096, np.int32)),
        ]  # fmt: skip
        if "one_block" in path.name:
            arguments[0] = Argument("x", Role.INPUT, x[:3000])
            arguments[2] = _scalar("N", 3000)
        seen = run_library(library, number, "sum.cu", [arguments], [thread_orders(2)])
        assert [fault_sentence(fault) for fault in seen.faults] == [], path.name
        exact = arguments[0].data.astype(np.float64)
        sums = [o.values[0] for o in seen.outputs if o.array == "y"]
        assert sums and max(abs(s - exact.sum()) for s in sums) <= exact.size * 2.0**-24 * np.abs(exact).sum()
