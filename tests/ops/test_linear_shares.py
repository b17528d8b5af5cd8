"""Which steps of which tiles a cluster of sm90's blocked product takes: shares.cuh, compiled for the CPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kernelworks.build.cuda import TILE
from kernelworks.ops.linear.linear import sm90

# Clusters in turn: for every piece a line "p tile begin end cluster ...", for every sum it adds "a tile cluster".
PROGRAM = r"""
#include <algorithm>
#include <cstdio>
#define __device__
#define __forceinline__ inline
using std::max; using std::min;
struct { int x; } gridDim, blockIdx;
#include "shares.cuh"
int main() {
    int M, N, K, clusters, streamed;
    while (scanf("%d %d %d %d %d", &M, &N, &K, &clusters, &streamed) == 5) {
        gridDim.x = clusters * CLUSTER;
        for (int c = 0; c < clusters; ++c) {
            blockIdx.x = c * CLUSTER;
            Shares shares(M, N, K, streamed);
            Piece p;
            for (int i = 0; shares.piece(i, p); ++i) {
                int m = 0, n = 0;
                shares.place(p.tile, 0, m, n);
                printf("p %d %d %d %d %d %d %d\n", p.tile, p.begin, p.end, c, m, n, i);
                if (p.begin > 0 && p.end == shares.steps)
                    shares.earlier(p, [&](int other) { printf("a %d %d\n", p.tile, other); });
            }
        }
        puts("end");
    }
}
"""
SHAPES = [(8192, 8192, 8192), (4096, 28672, 4096), (8192, 4096, 14336), (16384, 4096, 4096), (4096, 4096, 4096),
          (2560, 2560, 2048), (2300, 2824, 2056), (17, 204800, 1024), (300, 520, 72), (5000, 6152, 3000),
          (1024, 2048, 16384), (264, 520, 5000), (1032, 776, 4104), (300, 264, 8200), (256, 256, 65536),
          (2048, 1536, 4160)]  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler is not None, "the kernels in C++ need a compiler too"
    folder = tmp_path_factory.mktemp("shares")
    (folder / "shares.cpp").write_text(PROGRAM)
    command = [compiler, "-std=c++20", "-O1", "-w", f"-I{TILE}", str(folder / "shares.cpp"), "-o", str(folder / "run")]
    subprocess.run(command, check=True)
    return folder / "run"


@pytest.mark.parametrize("most", [66, 57, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_step_once(program: Path, shape: tuple[int, int, int], most: int) -> None:
    m, n, k = shape
    tiles, steps = -(-m // 256) * -(-n // 256), -(-k // 64)
    clusters = min(tiles, most)
    cuts = {(clusters, 0), (clusters, sm90._streamed(tiles, clusters, steps))}
    if tiles < most and (sharing := sm90._sharers(tiles, most, steps)):
        cuts.add((sharing, tiles))
    for clusters, streamed in cuts:
        text = f"{m} {n} {k} {clusters} {streamed}\n"
        lines = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.split("\n")
        pieces = [tuple(map(int, line.split()[1:])) for line in lines if line.startswith("p")]
        added = [tuple(map(int, line.split()[1:])) for line in lines if line.startswith("a")]
        covered: dict[int, list[tuple[int, int]]] = {}
        for tile, begin, end, *_ in pieces:
            covered.setdefault(tile, []).append((begin, end))
        assert sorted(covered) == list(range(tiles))
        for parts in covered.values():
            ends = [0, *(end for _, end in sorted(parts))]
            assert [begin for begin, _ in sorted(parts)] == ends[:-1]
            assert ends[-1] == steps
        # Sums are handed over once and taken once, by a later cluster; each cluster has one place for them.
        handed = sorted((tile, c) for tile, _, end, c, *_ in pieces if end < steps)
        assert handed == sorted(added)
        assert len({c for _, c in handed}) == len(handed)
        ends_at = {tile: c for tile, _, end, c, *_ in pieces if end == steps}
        assert all(c < ends_at[tile] for tile, c in added)
        places = {(row, column) for *_, row, column, _ in pieces}
        assert places == {(row, column) for row in range(0, m, 256) for column in range(0, n, 256)}


def test_shares_end_together() -> None:
    """Worth it where a sixteenth turn is half empty, not where a fourth one is nearly full."""
    assert sm90._streamed(1024, 66, 128) == 34
    assert sm90._streamed(16 * 112, 66, 64) == 76
    assert sm90._streamed(256, 66, 64) == 0
    assert sm90._streamed(64, 64, 32) == 0


def test_few_tiles_are_shared_where_that_ends_sooner() -> None:
    """Two clusters a tile take half its steps and ten; more than four would mostly add up."""
    assert sm90._sharers(32, 66, 256) == 64
    assert sm90._sharers(64, 66, 256) == 0
    assert sm90._sharers(48, 66, 256) == 66
    assert sm90._sharers(20, 66, 65) == 60
    assert sm90._sharers(4, 66, 129) == 16
    assert sm90._sharers(1, 66, 20) == 0
