"""linear.sm90_middle without a GPU: its table, its kernels and what it takes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from kernelworks.dispatch.op import OPS
from kernelworks.ops.linear.linear import sm90_middle as middle
from kernelworks.ops.linear.linear.contract import DEVICE_SHAPES

CUTS = [middle.TileConfig(**entry["set"]) for entry in middle.CONFIGS.entries if entry["op_kernel"] == "sm90_middle"]
TILES = ("GROUPS", "HEIGHT", "LOADED", "WIDTH", "DEPTH", "STAGES", "DOWN", "ACROSS", "PARTS", "RESIDENT")
SIZES = [
    (17, 5120, 3072), (24, 27648, 5120), (32, 3072, 8192), (33, 4096, 14336), (64, 7168, 5120), (65, 10240, 8192),
    (128, 5120, 27648), (128, 14336, 4096), (200, 8192, 28672), (257, 6144, 4096), (512, 5120, 5120),
]  # fmt: skip


def _constants(cut: middle.TileConfig) -> tuple[int, ...]:
    return tuple(getattr(cut, name) for name in TILES)


def test_the_source_has_the_kernels_of_the_table_and_no_other() -> None:
    lines = re.findall(r"^KW_MIDDLE\((.*)\)", middle.SOURCE.read_text(), re.M)
    assert {tuple(map(int, line.split(","))) for line in lines} == {_constants(cut) for cut in CUTS}


def test_the_proof_reaches_every_kernel() -> None:
    reached = {middle.choose_tile(m, n, k, torch.bfloat16) for m, n, k in DEVICE_SHAPES if n % 8 == 0 and k % 8 == 0}
    assert set(CUTS) <= reached


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: "_".join(map(str, _constants(cut))))
def test_blocks_fit_their_multiprocessor(cut: middle.TileConfig) -> None:
    """By the limits of compute capability 9.0: 227 KB a block, 228 a multiprocessor, 1 of them the system's a block."""
    static = 4 * (cut.WIDTH + 8) + 8 * (2 * cut.STAGES + 2)
    assert cut.shared_bytes + static <= 227 * 1024 and cut.RESIDENT * (cut.shared_bytes + static + 1024) <= 228 * 1024
    assert cut.cluster <= 8 and cut.cluster * cut.RESIDENT * (cut.threads + 31) <= 2048 * cut.cluster


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_tiles_are_at_most_as_many_as_fit(m: int, n: int, k: int) -> None:
    cut = middle.choose_tile(m, n, k, torch.bfloat16)
    assert cut is not None
    blocks = cut.blocks(m, n)
    assert blocks % cut.cluster == 0 and 90 <= blocks <= 132 * cut.RESIDENT
    assert blocks >= cut.PARTS * -(-m // cut.LOADED) * -(-n // cut.WIDTH)  # every tile has its blocks
    assert cut.cluster < 4 or blocks <= 120  # of four blocks no more clusters fit beside each other


def _asked(m: int, n: int, k: int, dtype: torch.dtype = torch.float16, **strides: Any) -> str | None:
    weight = torch.empty(k, n, dtype=dtype).t() if strides else torch.empty(n, k, dtype=dtype)
    return middle.guard(OPS["linear"].request("forward", (torch.empty(m, k, dtype=dtype), weight, None)))


def test_what_it_takes() -> None:
    assert _asked(17, 64, 40) is None
    assert "bfloat16 and float16" in str(_asked(17, 64, 40, torch.float32))
    assert "16 bytes" in str(_asked(17, 60, 40)) and "16 bytes" in str(_asked(17, 64, 36))
    assert "K on end" in str(_asked(17, 64, 40, turned=True))
    for m, n in ((16, 64), (513, 64), (128, 8000)):
        assert "tuning.toml" in str(_asked(m, n, 40))
    with pytest.raises(ValueError, match="no tile for 16 rows"):
        middle.forward(torch.empty(16, 40, dtype=torch.float16), torch.empty(64, 40, dtype=torch.float16), None)
