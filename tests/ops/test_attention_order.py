"""Which tiles of queries the blocks of sm90's forward take: sm90_order.cuh, compiled for the CPU."""

from __future__ import annotations

import heapq
import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from op_kernels import thorough_if_certified

from kernelworks import ops  # noqa: F401  fills OPS
from kernelworks.build import cuda
from kernelworks.dispatch.meta_arguments import on_meta
from kernelworks.dispatch.op import OPS
from kernelworks.ops.attention.attention import sm90, sm90_backward

OP_PACKAGE = Path(sm90.__file__).parent
# Every tile in the order of numbers: "t first blocks h b", and the numbers that blocks take: "n", or drawn "d".
PROGRAM = r"""
#include <cstdio>
#include <algorithm>
using std::max, std::min;
#define __device__
#define __forceinline__ inline
struct { int x; } gridDim, blockIdx;
int atomicAdd(int* at, int more) { int was = *at; *at += more; return was; }
#include "sm90_order.cuh"
#include "sm90_steps.cuh"
template <int M, int N, int S> struct Cut { static constexpr int BM = M, BN = N, SIGHT = S; };
template <class C> void say(const Order& o) {
    for (int n = 0; n < o.tiles * o.heads; ++n) {
        Tile t = tile_of<C>(o, n);
        printf("t %d %d %d %d %d\n", t.first, end_of<C>(o, t.first), t.blocks, t.h, t.b);
    }
    if (tile_of<C>(o, o.tiles * o.heads).blocks) puts("t -1 -1 -1 -1 -1");
}
template <int M, int N> void of_sight(const Order& o, int sight) {
    sight == WHOLE ? say<Cut<M, N, WHOLE>>(o) : sight == CAUSAL ? say<Cut<M, N, CAUSAL>>(o) : say<Cut<M, N, WINDOW>>(o);
}
struct Few { int pairs, queries, keys, section, shift, window; };
template <bool WINDOW> void steps(const Few& p) {
    for (int n = 0; n < (p.keys + KEYS - 1) / KEYS * p.pairs; ++n) {
        Work w = Work::of<WINDOW>(p, n);
        printf("w %d %d", w.pair, w.key);
        int tile = w.begin;
        for (int left = w.last - w.first; left; --left) printf(" %d", tile), w.next(tile);
        puts("");
    }
}
int main() {
    int kind, keys, sight, blocks;
    while (scanf("%d", &kind) == 1) {
        if (kind == 0) {
            Few p;
            scanf("%d %d %d %d %d %d %d", &sight, &p.pairs, &p.queries, &p.keys, &p.section, &p.shift, &p.window);
            sight ? steps<true>(p) : steps<false>(p);
            continue;
        }
        Order o{};
        scanf("%d %d %d %d %d %d %d", &keys, &sight, &blocks, &o.H, &o.Lk, &o.shift, &o.window);
        scanf("%d %d %d", &o.tiles, &o.heads, &o.band);
        keys == 64 ? of_sight<128, 64>(o, sight) : of_sight<128, 128>(o, sight);
        gridDim.x = blocks;
        for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
            for (int turn = 0, n; (n = number_of(o, turn)) < o.tiles * o.heads; ++turn) printf("n %d\n", n);
        int drawn = 0;  // the last block draws all that is left
        o.drawn = &drawn;
        for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) printf("d %d\n", number_of(o, 0));
        for (int n; (n = number_of(o, 1)) < o.tiles * o.heads;) printf("d %d\n", n);
    }
}
"""
# batch, heads, key-value heads, queries, keys
SHAPES = [(4, 16, 16, 4096, 4096), (1, 16, 16, 16384, 16384), (2, 32, 8, 8192, 8192), (1, 72, 9, 200, 8192),
          (3, 5, 1, 1000, 70), (2, 3, 3, 129, 4000), (1, 1, 1, 17, 17)]  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler is not None, "the kernels in C++ need a compiler too"
    folder = tmp_path_factory.mktemp("order")
    (folder / "order.cpp").write_text(PROGRAM)
    sources = [f"-I{OP_PACKAGE}", str(folder / "order.cpp"), "-o", str(folder / "run")]
    command = [compiler, "-std=c++20", "-O1", "-w", *sources]
    subprocess.run(command, check=True)
    return folder / "run"


SIGHTS = [(None, None), ("top_left", None), ("bottom_right", None), ("top_left", 100), ("bottom_right", 1000),
          ("top_left", 1), ("bottom_right", 128)]  # fmt: skip


def planned(shape: tuple[int, int, int, int, int], causal: str | None, window: int | None, dim: int) -> sm90._Plan:
    batch, heads, kv_heads, queries, keys = shape
    q = torch.empty(batch, heads, queries, dim, dtype=torch.bfloat16, device="meta")
    k = torch.empty(batch, kv_heads, keys, dim, dtype=torch.bfloat16, device="meta")
    return sm90._Plan(q, k, causal, window, None)


def said_by(program: Path, plan: sm90._Plan) -> list[tuple[str, tuple[int, ...]]]:
    sight = int(plan.kernel.name[-1])
    # The program has blocks of 64 and of 128 keys.
    text = " ".join(map(str, (1, 64 if plan.keys == 64 else 128, sight, plan.blocks, *plan.numbers[:7])))
    lines = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.split("\n")
    return [(line[0], tuple(map(int, line.split()[1:]))) for line in lines if line]


def positions(shape: tuple[int, int, int, int, int], causal: str | None) -> tuple[int, int, int]:
    """Queries, keys, and the key that the first query stands at."""
    queries, keys = shape[3:]
    return queries, keys, keys - queries if causal == "bottom_right" else 0


@pytest.mark.parametrize(("causal", "window"), SIGHTS)
@pytest.mark.parametrize(("shape", "dim"), [*((s, 128) for s in SHAPES), *((s, 256) for s in SHAPES[3:])])
def test_every_tile_once(
    program: Path, shape: tuple[int, int, int, int, int], dim: int, causal: str | None, window: int | None
) -> None:
    plan = planned(shape, causal, window, dim)
    said, (queries, keys, shift) = said_by(program, plan), positions(shape, causal)
    tiles = [t for kind, t in said if kind == "t"]
    wanted = {(first, h, b) for first in range(0, queries, 128) for h in range(shape[1]) for b in range(shape[0])}
    assert len(tiles) == len(wanted)
    assert {(first, h, b) for first, _, _, h, b in tiles} == wanted
    size = 64 if plan.keys == 64 else 128
    for first, end, blocks, *_ in tiles:
        high = keys if causal is None else min(max(first + 128 + shift, 0), keys)  # behind the last key that is seen
        low = 0 if window is None else max(first + shift - window + 1, 0)
        assert end == max(1, -(-high // size))
        assert end - blocks == min(low // size, end - 1)
    assert sorted(n for kind, (n, *_) in said if kind == "n") == list(range(len(tiles)))
    assert sorted(n for kind, (n, *_) in said if kind == "d") == list(range(len(tiles)))


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_all_end_together(program: Path, shape: tuple[int, int, int, int, int]) -> None:
    """Drawn, tiles of causal attention keep all blocks at work to within 1%, though heads come in bands."""
    plan = planned(shape, "top_left", None, 128)
    assert plan.draws
    ends = [0] * plan.blocks
    for kind, what in said_by(program, plan):
        if kind == "t":
            heapq.heapreplace(ends, ends[0] + what[2])
    assert max(ends) * len(ends) < 1.01 * sum(ends)


@pytest.mark.parametrize(("causal", "window"), SIGHTS)
@pytest.mark.parametrize("shape", [(1, 5, 1, 1000, 70), (1, 2, 2, 300, 1000), (1, 3, 3, 257, 129), (1, 1, 1, 17, 17)])
def test_every_step_of_the_gradients_once(
    program: Path, shape: tuple[int, int, int, int, int], causal: str | None, window: int | None
) -> None:
    """Each tile of 128 keys meets all steps of 64 queries that see some of it, and no others."""
    pairs, (queries, keys, shift) = shape[2], positions(shape, causal)
    far = sm90_backward.FAR
    given = (0, int(window is not None), pairs, queries, keys, min(2, pairs), far if causal is None else shift)
    text = " ".join(map(str, (*given, window or far)))
    lines = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    works = [tuple(map(int, line.split()[1:])) for line in lines]
    assert sorted(w[:2] for w in works) == [(pair, key) for pair in range(pairs) for key in range(0, keys, 128)]
    i, j = torch.arange(queries).unsqueeze(1), torch.arange(keys)
    seen = torch.ones(queries, keys, dtype=torch.bool) if causal is None else j <= i + shift
    if window is not None:
        seen &= j > i + shift - window
    for _, key, *steps in works:
        rows = seen[:, key : key + 128].any(1).nonzero().flatten() // 64
        wanted = sorted(set(rows.tolist()))
        assert len(steps) == len(set(steps)) and set(wanted) <= set(steps)
        if window is not None or not wanted:
            assert sorted(steps) == wanted


@thorough_if_certified("attention", "sm90")
def test_every_kernel_is_named_and_reached() -> None:
    """The table names kernels that the source has; some case of the verification runs each of them."""
    op, reached = OPS["attention"], set()
    names = op.passes["forward"].names
    for case in (*op.contract.cases, *op.contract.device_cases):
        for dtype in sm90.DTYPES:
            made = case.make(torch.Generator().manual_seed(0), dtype)
            args = [on_meta(made.get(name)) for name in names]
            if made["softcap"] is None and sm90.guard(op.request("forward", args)) is None:
                reached.add(sm90._Plan(args[0], args[1], args[3], args[4], args[5]).kernel.name)
    assert reached == set(cuda.resources(sm90.SOURCE))


@pytest.mark.parametrize("dim", sm90.DIMS)
@pytest.mark.parametrize("keys", [300, 4096])
def test_shared_memory_suffices(dim: int, keys: int) -> None:
    """What a block has less than the 227 KB that there are is for barriers and tiles."""
    for sight, groups in itertools.product(range(3), (2, 3, 4) if dim == 64 else (2,)):
        kernel, queries, block, together = sm90._kernel(dim, torch.bfloat16, sight, groups, *sm90._lengths(keys))
        assert kernel.shared <= 226 * 1024 and together in (64, queries) and block % 16 == 0


def test_cuts_by_length() -> None:
    """128 keys with one place, or 176 where these fill their last block well; with two places where there are few."""
    two, one, broad = "128_2_2_2", "128_2_3_1", "176_2_2_1"
    whole = {70: two, 1024: two, 1025: broad, 1152: one, 1370: broad, 2048: one, 2112: broad, 2113: one, 3072: one,
             4096: one, 4225: broad, 4608: one, 8192: broad, 16384: broad}  # fmt: skip
    causal = {300: two, 2048: two, 3968: two, 3969: one, 4096: one, 16384: one}
    for sight, wanted in (None, whole), ("top_left", causal), ("window", dict.fromkeys(causal, two)):
        for keys, cut in wanted.items():
            plan = planned((1, 2, 2, 5000, keys), sight and "top_left", 100 if sight == "window" else None, 128)
            assert plan.kernel.name.removeprefix("forward_bfloat16_128_")[:-2] == cut
            assert (plan.keys, plan.box) == (int(cut[:3]), 128 if cut == two else 64)


def test_sinks_reach_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 16-bit numbers that lie side by side, whatever they were."""
    given: list[Any] = []
    monkeypatch.setattr(cuda.Kernel, "__call__", lambda self, grid, *args: given.append(args[3]))
    q = torch.empty(1, 4, 300, 64, dtype=torch.bfloat16, device="meta")
    for sinks in (None, q[0, :, 0, 0].contiguous(), q[0, :, 0, 0]):
        OPS["attention"].kernel("sm90").load("forward")(q, q, q, None, None, None, None, True, None, sinks)
        assert given[-1] is None if sinks is None else given[-1].stride() == (1,) and given[-1].dtype == q.dtype


def test_as_few_rounds_as_may_be() -> None:
    """What was quickest on an H200, by (heads, queries)."""
    quickest = {(768, 128): 2, (768, 256): 4, (1024, 197): 4, (192, 512): 4, (96, 512): 2, (384, 384): 3,
                (96, 768): 3, (96, 1500): 3, (64, 4096): 3, (20, 4096): 2}  # fmt: skip
    found = {key: sm90._groups(64, sm90.WHOLE, key[1], key[0], 132) for key in quickest}
    assert found == quickest
    # Under causal: as long as all work at once, and no longer than the longest tile.
    causal = {(32, 2048): 4, (64, 4096): 3, (16, 1024): 2, (8, 100): 2}
    assert {key: sm90._groups(64, sm90.CAUSAL, key[1], key[0], 132) for key in causal} == causal


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"mask": torch.ones(1, 1, 1, 300, dtype=torch.bool)}, "mask"),
        ({"causal": "top_left", "window": 5}, None),
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
