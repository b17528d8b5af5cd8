"""Programs of the kinds that public sample sets have: each runs in the emulator without a word, and gives what NumPy
gives. The page of what is emulated names a program for each feature."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelworks.learn.emulator import (
    Argument,
    Emulation,
    NotTranslated,
    Role,
    build_sources,
    fault_sentence,
    run_library,
    thread_orders,
)
from kernelworks.learn.emulator.translation import translate

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).parent / "programs/emulated_programs.cu"
PAGE = ROOT / "docs/reference/cuda-emulation.md"
DECLARATION = "void run(const float* x, float* y, int n, int which)"
TYPES = ("const float*", "float*", "int", "int")
NAMED = re.compile(r"^// (\w+): (.+)$", re.M)
N, ORDERS = 920, 3
X = (np.random.default_rng(5).standard_normal(N) * 2).astype(np.float32)
WIDE = X.astype(np.float64)
INDEX = np.arange(N)
EPSILON = 2.0**-24
Expected = tuple[Any, Any]  # what y must be, and how far off it may be


def exactly(values: Any) -> Expected:
    return values, 0.0


def rounded(values: Any, roundings: int, magnitudes: Any = None) -> Expected:
    """Sums of float32: so many roundings of what they are made of, by magnitude."""
    return values, roundings * EPSILON * (np.abs(values) if magnitudes is None else magnitudes)


def of_warps(values: np.ndarray, reduce: Callable[..., Any], size: int = 32, fill: float = 0.0) -> np.ndarray:
    """A number for each warp, given to all of its lanes."""
    padded = np.full(-(-N // 128) * 128, fill)
    padded[:N] = values
    return np.repeat(reduce(padded.reshape(-1, size), axis=1), size)[:N]


def scanned() -> np.ndarray:
    padded = np.zeros(-(-N // 128) * 128)
    padded[:N] = WIDE
    return padded.reshape(-1, 32).cumsum(1).reshape(-1)[:N]


def votes() -> np.ndarray:
    positive = np.zeros(-(-N // 128) * 128, bool)
    positive[:N] = X > 0
    warps = positive.reshape(-1, 32)
    first = np.where(warps.any(1), warps.argmax(1) + 1, 0)
    each = warps.sum(1) + 100.0 * warps.any(1) + 1000.0 * warps.all(1) + 10000.0 * first
    return np.repeat(each, 32)[:N]


def matches() -> np.ndarray:
    kinds = np.full(-(-N // 128) * 128, -1)
    kinds[:N] = np.abs(X).astype(int)
    warps = kinds.reshape(-1, 32)
    alike = (warps[:, :, None] == warps[:, None, :]).sum(2)
    return (alike + 100.0 * warps.sum(1, keepdims=True)).reshape(-1)[:N]


def bins() -> np.ndarray:
    counts = np.bincount(np.clip((4 * X).astype(int) + 8, 0, 15), minlength=16)
    return counts[INDEX % 16]


def extremes() -> np.ndarray:
    hundreds = (np.float32(100) * X).astype(int)
    bits = (1 << 20) - 1
    return np.array([X.max(), hundreds.min(), hundreds.max(), N % 7, bits, INDEX.sum()])[INDEX % 6]


def tiles() -> Expected:
    sums, sizes = of_warps(WIDE, np.sum, 16), of_warps(np.abs(WIDE), np.sum, 16)
    full = of_warps(np.ones(N), np.min, 16)
    extra = 100.0 * full + 1000.0 * (INDEX % 128 // 16)
    return sums + extra, 6 * EPSILON * (sizes + extra)


def reduced() -> Expected:
    largest = of_warps(WIDE, np.max, fill=-100.0)
    positive = np.zeros(-(-N // 128) * 128)
    positive[:N] = X > 0
    count = positive.reshape(-1, 32).cumsum(1).reshape(-1)[:N]
    return rounded(largest + 10.0 * count, 2)


def functions() -> Expected:
    v = np.abs(WIDE) + 1
    from math import erf

    parts = [
        np.ones(N), np.exp(-v), 1 / np.sqrt(v), v / 3, 2 * v + np.sqrt(v), np.vectorize(erf)(v),
        np.cbrt(v) + np.arctan2(v, 2), np.hypot(v, 1), np.log1p(v), np.mod(v, 1), np.copysign(1, WIDE),
    ]  # fmt: skip
    # v itself is rounded, and fmod hands that error on; each function has some roundings of its own
    return sum(parts), 40 * EPSILON * sum(np.abs(part) + 1 for part in parts)


def integers() -> np.ndarray:
    found = []
    for i in range(N):
        v = 2654435761 * (i + 1) & 0xFFFFFFFF
        value = (32 - (v >> 5).bit_length()) ^ int(f"{v:032b}"[::-1], 2) ^ (2 * v.bit_count()) ^ (77 * i)
        both, other = v | (~v & 0xFFFFFFFF) << 32, 0
        for place, choice in enumerate((5, 1, 7, 3)):
            other |= (both >> 8 * choice & 255) << 8 * place
        value ^= other ^ ((i << 32 | v) << 9 >> 32 & 0xFFFFFFFF) ^ (v * 12345 >> 32)
        signed = [(v >> 8 * k & 255) - 2 * (v >> 8 * k & 128) for k in range(4)]
        dot = 5 + sum(a * b for a, b in zip(signed, (4, 3, 2, 1), strict=True))
        value ^= (64 - v.bit_length()) ^ ((v & -v).bit_length()) ^ (dot & 0xFFFFFFFF)
        found.append((value & 0xFFFFFFFF) % 1000)
    return np.array(found, np.float64)


def halves() -> np.ndarray:
    a, b, one = X.astype(np.float16), np.float16(0.5), np.float16(1)
    total = (a * b + (a + one)) + a * b
    wide = total.astype(np.float64) * float(b) + float(b + one)
    return wide.astype(np.float32).astype(np.float16).astype(np.float64)


def textured() -> Expected:
    image = WIDE.reshape(-1, 40)
    right = np.concatenate((image[:, 1:], image[:, -1:]), 1)
    return rounded((image + right).reshape(-1) / 2, 4, np.abs(image + right).reshape(-1) + np.abs(WIDE))


def product() -> Expected:
    a = WIDE[:900].reshape(30, 30)
    found = np.zeros(N)
    found[:900] = (a @ a).reshape(-1)
    return found, 31 * EPSILON * np.concatenate(((np.abs(a) @ np.abs(a)).reshape(-1), np.zeros(N - 900)))


LEFT, RIGHT = np.concatenate(([0.0], WIDE[:-1])), np.concatenate((WIDE[1:], [0.0]))
SUM, SIZE = np.full(N, WIDE.sum()), np.full(N, np.abs(WIDE).sum())
REVERSED_BLOCKS = np.concatenate((X, np.zeros(-N % 128, np.float32))).reshape(-1, 128)[:, ::-1].reshape(-1)[:N]
NEIGHBOURS = np.concatenate((X, np.zeros(-N % 2, np.float32)))[INDEX ^ 1]
EXPECTED: dict[str, Expected] = {
    "vector_add": rounded(WIDE + WIDE[::-1], 1), "grid_stride": exactly(2 * X), "streams": exactly(2 * X),
    "grid_of_two": exactly(X.reshape(40, -1).T.reshape(-1)), "transpose_tile": exactly(X.reshape(-1, 40).T.reshape(-1)),
    "dynamic_shared": exactly(NEIGHBOURS),
    "constant_memory": rounded(0.25 * LEFT + 0.5 * WIDE + 0.25 * RIGHT, 3, np.abs(LEFT) + np.abs(WIDE) + np.abs(RIGHT)),
    "stencil_halo": rounded(LEFT - 2 * WIDE + RIGHT, 3, np.abs(LEFT) + 2 * np.abs(WIDE) + np.abs(RIGHT)),
    "block_sum": rounded(SUM, 11, SIZE), "last_block": rounded(SUM, 80, SIZE),
    "warp_sum": rounded(of_warps(WIDE, np.sum), 5, of_warps(np.abs(WIDE), np.sum)),
    "warp_scan": rounded(scanned(), 6, of_warps(np.abs(WIDE), np.sum)),
    "warp_votes": exactly(votes()), "warp_match": exactly(matches()), "histogram": exactly(bins()),
    "atomics": rounded(extremes(), 1), "templates": exactly(2 * X),
    "device_functions": rounded(WIDE * np.gcd(INDEX + 12, 12), 1),
    "vector_types": exactly(X.reshape(-1, 4)[:, ::-1].reshape(-1)),
    "half_numbers": exactly(X.astype(np.float16).astype(np.float64)), "half_arithmetic": exactly(halves()),
    "integer_intrinsics": exactly(integers()), "math_functions": functions(),
    "events": rounded(WIDE + WIDE[::-1], 1), "host_memory": rounded(2 * (WIDE + 1), 2, np.abs(WIDE) + 1),
    "managed_memory": exactly(3.0 * INDEX + 1), "pitched_memory": exactly(X.reshape(-1, 40)[:, ::-1].reshape(-1)),
    "stream_ordered_memory": exactly(4 * X), "device_query": rounded(WIDE + WIDE[::-1], 1),
    "error_handling": rounded(WIDE + WIDE[::-1], 1), "block_group": exactly(REVERSED_BLOCKS), "tile_group": tiles(),
    "group_reduce": reduced(), "textures": exactly(X[::-1]), "texture_of_two": textured(),
    "device_assert": exactly(X), "product": product(),
    "bitonic_sort": exactly(np.concatenate((np.sort(X[:256]), np.zeros(N - 256)))),
    "breadth_first": exactly(np.floor(np.log2(INDEX + 1))),
}  # fmt: skip
PARTLY = {"product": 900, "bitonic_sort": 256}  # how many elements these write


@pytest.fixture(scope="module")
def library() -> Path:
    text = FILE.read_text(encoding="utf-8")
    cases = "\n".join(f"case {number}: {name}(x, y, n); break;" for number, name in enumerate(EXPECTED))
    host = f'\nextern "C" {DECLARATION} {{ switch (which) {{\n{cases}\n}} }}\n'
    return build_sources([text + host], FILE.name, DECLARATION, TYPES)


def run(library: Path, name: str) -> Emulation:
    arguments = [
        Argument("x", Role.INPUT, X), Argument("y", Role.OUTPUT, np.zeros(N, np.float32)),
        Argument("n", Role.SCALAR, np.array([N], np.int32)),
        Argument("which", Role.SCALAR, np.array([[*EXPECTED].index(name)], np.int32)),
    ]  # fmt: skip
    return run_library(library, 0, FILE.name, [arguments], [thread_orders(ORDERS)])


@pytest.mark.parametrize("name", EXPECTED)
def test_a_program_runs_and_is_right(library: Path, name: str) -> None:
    seen = run(library, name)
    assert [fault_sentence(fault) for fault in seen.faults] == []
    values, margin = EXPECTED[name]
    assert seen.outputs
    for output in seen.outputs:
        count = PARTLY.get(name, N)
        assert output.missing == N - count
        off = np.abs(output.values.astype(np.float64) - values)[:count]
        assert (off <= np.broadcast_to(margin, (N,))[:count]).all(), (name, off.max(), int(off.argmax()))


def test_every_program_has_its_line() -> None:
    named = dict(NAMED.findall(FILE.read_text(encoding="utf-8")))
    assert named.keys() == EXPECTED.keys() and len(named) >= 30


def test_the_page_names_a_program_for_each_feature() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## What runs")[2].partition("\n## ")[0]
    named = set(
        re.findall(r"`(\w+)`", "".join(line.rpartition("|")[0].rpartition("|")[2] for line in table.splitlines()))
    )
    assert named <= EXPECTED.keys() and len(named) >= 30


REFUSED = {
    "#include <thrust/sort.h>": (1, "thrust/sort.h is not here"),
    "\n#include <curand_kernel.h>": (2, "curand_kernel.h is not here"),
    "__global__ void k() {\n auto all = cooperative_groups::this_grid(); }": (2, "groups of several blocks"),
    "void f() { auto g = cg::coalesced_threads(); }": (1, "tiled_partition<32> is"),
    "texture<float, 2> t;": (1, "texture objects are"),
    "\n\n__device__ void f(cudaSurfaceObject_t s) {}": (3, "surfaces are not emulated"),
    "__device__ float f(cudaTextureObject_t t) { return tex3D<float>(t, 0, 0, 0); }": (1, "of one and two dimensions"),
    "void f() { cudaGraph_t g; cudaGraphCreate(&g, 0); }": (1, "CUDA graphs are not emulated"),
    "void f() { cudaMemcpyPeer(a, 0, b, 1, 4); }": (1, "one GPU is emulated"),
    "using namespace nvcuda;": (1, "tensor cores are not emulated"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_does_not_run_is_said_with_its_line(text: str) -> None:
    line, said = REFUSED[text]
    with pytest.raises(NotTranslated, match=re.escape(said)) as caught:
        translate(text)
    assert caught.value.line == line


WRONG = {  # a body of a kernel of one block of 32 threads, and what is said
    "an assert": ("assert(threadIdx.x < 31);\ny[threadIdx.x] = x[threadIdx.x];", "in line 1 fails (thread 31)"),
    "a launch": ("if (threadIdx.x == 0)\nother<<<1, 1>>>(y);", "launches a kernel from a kernel (thread 0)"),
    "a texel": ("y[threadIdx.x] = tex1Dfetch<float>(seen, int(threadIdx.x));", ""),
    "another's tile": (
        "auto tile = cooperative_groups::tiled_partition<8>(cooperative_groups::this_thread_block());\n"
        "if (threadIdx.x % 8 < 4)\ny[threadIdx.x] = tile.shfl_xor(x[threadIdx.x], 4);\n__syncthreads();\n",
        "waits in a shuffle in line 3 for thread 4",
    ),
}  # fmt: skip


def test_what_is_wrong_with_them_is_seen() -> None:
    parts = ["#include <assert.h>\n#include <cuda_runtime.h>\n__global__ void other(float* y) { y[0] = 1.0f; }\n"]
    cases = []
    for number, (body, _) in enumerate(WRONG.values()):
        head = f"__global__ void kernel_{number}(const float* x, float* y, cudaTextureObject_t seen) {{\n#line 1\n"
        parts.append(f"{head}{body}\n}}\n")
        cases.append(f"case {number}: kernel_{number}<<<1, 32>>>(x, y, seen); break;")
    made = (
        "cudaResourceDesc r = {}; r.resType = cudaResourceTypeLinear; r.res.linear.devPtr = (void*)x;\n"
        "r.res.linear.desc = cudaCreateChannelDesc<float>(); r.res.linear.sizeInBytes = 32 * 4;\n"
        "cudaTextureDesc how = {}; cudaTextureObject_t seen; cudaCreateTextureObject(&seen, &r, &how, nullptr);\n"
    )
    host = f'extern "C" {DECLARATION} {{\n{made}switch (which) {{\n' + "\n".join(cases) + "\n} }\n"
    library = build_sources(["".join(parts) + host], "wrong.cu", DECLARATION, TYPES)
    for number, (name, (_, said)) in enumerate(WRONG.items()):
        arguments = [
            Argument("x", Role.INPUT, X[:32]), Argument("y", Role.OUTPUT, np.zeros(32, np.float32)),
            Argument("n", Role.SCALAR, np.array([32], np.int32)),
            Argument("which", Role.SCALAR, np.array([number], np.int32)),
        ]  # fmt: skip
        seen = run_library(library, 0, "wrong.cu", [arguments], [thread_orders(2)])
        sentences = [fault_sentence(fault) for fault in seen.faults]
        assert any(said in sentence for sentence in sentences) if said else not sentences, (name, sentences)
