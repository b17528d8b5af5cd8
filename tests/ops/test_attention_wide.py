"""Hopper's gradients of attention for a head_dim of 256 where there is no GPU: what they take, lay out and launch."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelworks.build import cuda
from kernelworks.contract import Request, TensorSpec
from kernelworks.ops.attention.attention import sm90_backward_wide as wide

ORDER = wide.SOURCE.with_name("sm90_wide_order.cuh")
PROGRAM = """
#define __device__
#include <cstdio>
#include <initializer_list>
#include "%s"
int main() {
    wide::Share s;
    for (int* value : {&s.heads, &s.group, &s.first, &s.pairs, &s.queries, &s.keys, &s.section, &s.shift})
        std::scanf("%%d", value);
    for (int n = 0; n < wide::tiles_of_keys(s) * s.pairs; ++n) {
        wide::KeyTile t = wide::key_tile(s, n);
        std::printf("k %%d %%d %%d %%d\\n", t.pair, t.key, t.first, t.last);
    }
    for (int step = 0; step <= wide::steps_of(s); ++step) std::printf("q %%d %%d\\n", step, wide::seen_tiles(s, step));
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    (folder / "order.cpp").write_text(PROGRAM % ORDER)
    subprocess.run(["g++", "-std=c++20", "-O1", "-o", folder / "order", folder / "order.cpp"], check=True)
    return folder / "order"


@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
@pytest.mark.parametrize(
    "shape", [(5, 0, 5, 1000, 70), (2, 3, 4, 300, 1000), (3, 1, 2, 257, 129), (1, 0, 1, 17, 17), (4, 2, 7, 700, 300)]
)
def test_both_sides_agree_on_what_is_seen(
    program: Path, shape: tuple[int, int, int, int, int], causal: str | None
) -> None:
    """What dq is made of has been written by a tile of keys, all that is seen, and each tile is taken once."""
    section, first, pairs, queries, keys = shape
    shift = wide.FAR if causal is None else keys - queries if causal == "bottom_right" else 0
    text = " ".join(map(str, (1, 1, first, pairs, queries, keys, min(section, pairs), shift)))
    lines = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    said = [(line[0], tuple(map(int, line.split()[1:]))) for line in lines]
    tiles = [what for kind, what in said if kind == "k"]
    wanted = [(pair, key) for pair in range(first, first + pairs) for key in range(0, keys, wide.KEYS)]
    assert sorted(t[:2] for t in tiles) == wanted
    i, j = torch.arange(queries).unsqueeze(1), torch.arange(keys)
    seen = (j <= i + shift).nonzero() // 64
    written = {(step, key // wide.KEYS) for _, key, low, high in tiles for step in range(low, high)}
    read = {(step, tile) for kind, what in said if kind == "q" for step in [what[0]] for tile in range(what[1])}
    assert read == written
    assert set(map(tuple, seen.tolist())) <= written
    lengths = [high - low for pair, _, low, high in tiles if pair == first]
    assert lengths == sorted(lengths, reverse=True)  # the longest come first


def request(shape: tuple[int, int, int, int, int], **changed: Any) -> Request:
    batch, heads, kv_heads, length, dim = shape
    dtype = changed.pop("dtype", torch.bfloat16)

    def spec(count: int) -> TensorSpec:
        return TensorSpec((batch, count, length, dim), dtype, (count * length * dim, length * dim, dim, 1), "cuda")

    named = {"grad_output": spec(heads), "q": spec(heads), "k": spec(kv_heads), "v": spec(kv_heads)}
    named |= {"output": spec(heads), "lse": TensorSpec((batch, heads, length), torch.float32, (0, 0, 0), "cuda")}
    options = {"causal": None, "window": None, "scale": None, "mask": None, "needs": [True] * 3}
    return Request("attention", "backward", named | options | changed)


@pytest.mark.parametrize(
    ("shape", "changed", "reason"),
    [
        ((1, 4, 2, 300, 256), {}, None),
        ((1, 4, 2, 300, 256), {"causal": "bottom_right", "dtype": torch.float16, "scale": -0.5}, None),
        ((1, 4, 2, 300, 128), {}, "head_dim of 256"),
        ((1, 4, 2, 300, 256), {"dtype": torch.float32}, "bfloat16 and float16"),
        ((1, 4, 2, 300, 256), {"causal": "top_left", "window": 5}, "no window"),
        ((1, 4, 2, 300, 256), {"softcap": 5.0}, "no softcap"),
        ((0, 4, 2, 300, 256), {}, "sizes from 1"),
        ((1, 4, 4, 2**17, 256), {}, "GiB"),
    ],
)
def test_guard(shape: tuple[int, int, int, int, int], changed: dict[str, Any], reason: str | None) -> None:
    said = wide.guard(request(shape, **changed))
    assert said is None if reason is None else said is not None and reason in said


def test_shared_memory_is_what_the_source_lays_out(tmp_path: Path) -> None:
    folder, source = wide.SOURCE.parent, tmp_path / "sizes.cu"
    headers = "".join(f'#include "{folder / name}"\n' for name in ("sm90_wide.cuh", "sm90_wide_queries.cuh"))
    sizes = {"BYTES": wide.SHARED, "QUERIES_BYTES": wide.SHARED_QUERIES, "KEYS": wide.KEYS, "STEP": wide.STEP}
    sizes |= {"FAR": wide.FAR, "D": wide.DIM}
    checks = "\n".join(f"static_assert(wide::{name} == {value});" for name, value in sizes.items())
    source.write_text(headers + checks + '\nextern "C" __global__ void none() {}')
    assert cuda.cubin(source)
    assert wide.SHARED <= 227 * 1024


@pytest.mark.parametrize("dtype", wide.DTYPES)
@pytest.mark.parametrize("causal", [None, "bottom_right"])
def test_heads_are_shared_out(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, causal: str | None) -> None:
    """What is kept of pairs stays under its bytes; the shares cover all heads; gradients are shaped as their inputs."""
    launched: list[tuple[str, tuple[int, int, int], tuple[Any, ...]]] = []

    class Recorded:
        def __init__(self, source: Path, name: str, **settings: Any) -> None:
            self.name = name

        def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
            launched.append((self.name, grid, arguments))

    monkeypatch.setattr(wide, "Kernel", Recorded)
    monkeypatch.setattr(wide, "MOST_KEPT_BYTES", 2**20)
    wide._kernels.cache_clear()
    q = torch.empty(2, 1030, 12, 256, dtype=dtype, device="meta").transpose(1, 2)
    k = torch.empty(2, 6, 130, 256, dtype=dtype, device="meta")
    try:
        made = wide.backward(
            q, q, k, k, q, torch.empty(2, 12, 1030, device="meta"), causal, None, None, None, [True] * 3
        )
    finally:
        wide._kernels.cache_clear()
    assert [t.shape for t in made[:3]] == [q.shape, k.shape, k.shape] and not made[3].numel()
    assert launched[0][1] == (24 * 17, 1, 1)
    shares = [arguments[4:12] for name, _, arguments in launched if name.startswith("queries")]
    assert [s[:3] for s in shares] == [(6, 2, first) for first in range(0, 12, 1)]  # 2 heads of 1030 x 136 are 560 kB
    assert all(s[3] == 1 and s[6] == 1 for s in shares)
    assert all(grid == (9 * 2, 1, 1) for name, grid, _ in launched if name.startswith("queries"))
    assert all(grid == (3, 1, 1) for name, grid, _ in launched if name.startswith("keys"))
