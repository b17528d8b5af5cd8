"""Which tiles of queries the blocks of sm90's forward take: sm90_order.cuh, compiled for the CPU."""

from __future__ import annotations

import heapq
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from kernelworks import ops  # noqa: F401  fills OPS
from kernelworks.build import cuda
from kernelworks.op import OPS, on_meta
from kernelworks.ops.attention.attention import sm90

ROOM = Path(sm90.__file__).parent
# Every tile in the order of numbers: "t first blocks h b", and the numbers that blocks take: "n", or drawn "d".
PROGRAM = r"""
#include <cstdio>
#define __device__
#define __forceinline__ inline
struct { int x; } gridDim, blockIdx;
int atomicAdd(int* at, int more) { int was = *at; *at += more; return was; }
#include "sm90_order.cuh"
template <int M, int N, bool C> struct Cut { static constexpr int BM = M, BN = N; static constexpr bool CAUSAL = C; };
template <class C> void say(const Order& o) {
    for (int n = 0; n < o.tiles * o.heads; ++n) {
        Tile t = tile_of<C>(o, n);
        printf("t %d %d %d %d\n", t.first, t.blocks, t.h, t.b);
    }
    if (tile_of<C>(o, o.tiles * o.heads).blocks) puts("t -1 -1 -1 -1");
}
int main() {
    int causal, blocks;
    Order o{};
    while (scanf("%d %d %d %d %d", &causal, &blocks, &o.H, &o.Lk, &o.shift) == 5) {
        scanf("%d %d %d", &o.tiles, &o.heads, &o.band);
        if (causal) say<Cut<128, 128, true>>(o);
        else say<Cut<128, 128, false>>(o);
        gridDim.x = blocks;
        for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
            for (int turn = 0, n; (n = number_of(o, turn)) < o.tiles * o.heads; ++turn) printf("n %d\n", n);
        int drawn = 0;  // the last block draws all that is left
        o.drawn = &drawn;
        for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) printf("d %d\n", number_of(o, 0));
        for (int n; (n = number_of(o, 1)) < o.tiles * o.heads;) printf("d %d\n", n);
        o.drawn = nullptr;
    }
}
"""
# batch, heads, key-value heads, queries, keys
SHAPES = [(4, 16, 16, 4096, 4096), (1, 16, 16, 16384, 16384), (2, 32, 8, 8192, 8192), (1, 72, 9, 200, 8192),
          (3, 5, 1, 1000, 70), (2, 3, 3, 129, 4000), (1, 1, 1, 17, 17)]  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler is not None, "the rows in C++ need a compiler too"
    folder = tmp_path_factory.mktemp("order")
    (folder / "order.cpp").write_text(PROGRAM)
    command = [compiler, "-std=c++20", "-O1", "-w", f"-I{ROOM}", str(folder / "order.cpp"), "-o", str(folder / "run")]
    subprocess.run(command, check=True)
    return folder / "run"


@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_tile_once(program: Path, shape: tuple[int, int, int, int, int], causal: str | None) -> None:
    batch, heads, kv_heads, queries, keys = shape
    q = torch.empty(batch, heads, queries, 128, dtype=torch.bfloat16, device="meta")
    k = torch.empty(batch, kv_heads, keys, 128, dtype=torch.bfloat16, device="meta")
    plan = sm90._Plan(q, k, causal, None)
    text = " ".join(map(str, (int(causal is not None), plan.blocks, *plan.numbers[:6])))
    lines = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.split("\n")
    said = [(line[0], tuple(map(int, line.split()[1:]))) for line in lines if line]
    tiles = [t for kind, t in said if kind == "t"]
    wanted = {(first, h, b) for first in range(0, queries, 128) for h in range(heads) for b in range(batch)}
    assert len(tiles) == len(wanted)
    assert {(first, h, b) for first, _, h, b in tiles} == wanted
    shift = keys - queries if causal == "bottom_right" else 0
    for first, blocks, *_ in tiles:
        seen = keys if causal is None else min(max(first + 128 + shift, 0), keys)
        assert blocks == max(1, -(-seen // 128))
    assert sorted(n for kind, (n, *_) in said if kind == "n") == list(range(len(tiles)))
    assert sorted(n for kind, (n, *_) in said if kind == "d") == list(range(len(tiles)))


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_all_end_together(program: Path, shape: tuple[int, int, int, int, int]) -> None:
    """Drawn, tiles of causal attention keep all blocks at work to within 1%, though heads come in bands."""
    batch, heads, kv_heads, queries, keys = shape
    q = torch.empty(batch, heads, queries, 128, dtype=torch.bfloat16, device="meta")
    k = torch.empty(batch, kv_heads, keys, 128, dtype=torch.bfloat16, device="meta")
    plan = sm90._Plan(q, k, "top_left", None)
    assert plan.draws
    text = " ".join(map(str, (1, plan.blocks, *plan.numbers[:6])))
    lines = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.split("\n")
    ends = [0] * plan.blocks
    for line in lines:
        if line.startswith("t"):
            heapq.heapreplace(ends, ends[0] + int(line.split()[2]))
    assert max(ends) * len(ends) < 1.01 * sum(ends)


def test_every_kernel_is_named_and_reached() -> None:
    """The table names kernels that the source has; some case of the proof runs each of them."""
    op, reached = OPS["attention"], set()
    names = op.passes["forward"].names
    for case in (*op.contract.cases, *op.contract.device_cases):
        for dtype in sm90.DTYPES:
            made = case.make(torch.Generator().manual_seed(0), dtype)
            args = [on_meta(made.get(name)) for name in names]
            if sm90.guard(op.request("forward", args)) is None:
                reached.add(sm90._Plan(args[0], args[1], args[3], args[5]).kernel.name)
    assert reached == set(cuda.resources(sm90.SOURCE))


def test_as_few_rounds_as_may_be() -> None:
    """What was quickest on an H200, by (heads, queries)."""
    quickest = {(768, 128): 2, (768, 256): 4, (1024, 197): 4, (192, 512): 4, (96, 512): 2, (384, 384): 3,
                (96, 768): 3, (96, 1500): 3, (64, 4096): 3, (20, 4096): 2}  # fmt: skip
    found = {key: sm90._groups(64, False, key[1], key[0], 132) for key in quickest}
    assert found == quickest
    # Under causal: as long as all work at once, and no longer than the longest tile.
    causal = {(32, 2048): 4, (64, 4096): 3, (16, 1024): 2, (8, 100): 2}
    assert {key: sm90._groups(64, True, key[1], key[0], 132) for key in causal} == causal


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"mask": torch.ones(1, 1, 1, 300, dtype=torch.bool)}, "mask"),
        ({"causal": "top_left", "window": 5}, "window"),
        ({"scale": -0.5}, "positive"),
        ({"scale": 0.0}, "positive"),
        ({"q": torch.ones(1, 4, 300, 96, dtype=torch.bfloat16)}, "head_dim"),
        ({"q": torch.ones(1, 4, 300, 64)}, "bfloat16"),
        ({"q": torch.ones(1, 4, 3, 64, dtype=torch.bfloat16)}, "more than 16 queries"),
        ({"q": torch.ones(1, 4, 0, 64, dtype=torch.bfloat16)}, "sizes from 1"),
        ({"q": torch.ones(1, 4, 300, 68, dtype=torch.bfloat16)[..., :64]}, "strides"),
        ({"k": torch.ones(1, 1, 300, 64, dtype=torch.bfloat16).expand(1, 4, 300, 64)}, "strides"),
        ({}, None),
        ({"q": torch.ones(1, 300, 4, 64, dtype=torch.bfloat16).transpose(1, 2)}, None),
        ({"k": torch.ones(1, 4, 64, 300, dtype=torch.bfloat16).mT}, None),
    ],
)
def test_guard(changed: dict[str, object], reason: str | None) -> None:
    op = OPS["attention"]
    plain = {name: torch.ones(1, 4, 300, 64, dtype=torch.bfloat16) for name in "qkv"} | changed
    said = sm90.guard(op.request("forward", tuple(plain.get(name) for name in op.passes["forward"].names)))
    assert said is None if reason is None else said is not None and reason in said
