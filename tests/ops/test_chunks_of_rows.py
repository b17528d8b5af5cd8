"""How many rows linear_cross_entropy takes at a time on a GPU: as many as its memory can spare."""

from __future__ import annotations

import pytest
import torch

from kernelworks.ops.reduction.linear_cross_entropy import triton as rows_of
from kernelworks.ops.reduction.linear_cross_entropy.contract import CHUNK

H200, H100, SMALL = (150_000_000_000, 132), (85_000_000_000, 132), (8_000_000_000, 48)


def chunk(monkeypatch: pytest.MonkeyPatch, device: tuple[int, int], m: int, n: int, k: int, dtype: torch.dtype) -> int:
    monkeypatch.setattr(rows_of, "_device", lambda _: device)
    x, weight = (torch.empty(lines, k, dtype=dtype, device="meta") for lines in (m, n))
    return rows_of._chunk(m, x, weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("device", [H200, H100, SMALL, (0, 1)])
@pytest.mark.parametrize(("m", "n", "k"), [(16384, 128256, 2048), (1200, 32003, 256), (32768, 50257, 768), (700, 9, 8)])
def test_logits_take_what_memory_can_spare(
    monkeypatch: pytest.MonkeyPatch, device: tuple[int, int], m: int, n: int, k: int, dtype: torch.dtype
) -> None:
    rows = chunk(monkeypatch, device, m, n, k, dtype)
    spare = max(0.32 * (m + n) * k * dtype.itemsize, 1 << 26, min(device[0] / 64, m * n * dtype.itemsize / 4))
    most = spare / (n * dtype.itemsize)
    assert min(m, CHUNK) <= rows <= m  # the bound counts on no more roundings of the weight's gradient
    assert rows in (m, CHUNK) or most / 2 - 1 <= rows <= most


def test_a_training_step_keeps_all_multiprocessors_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chunk(monkeypatch, H200, 16384, 128256, 2048, torch.bfloat16) == 4096  # 256 tiles: twice 128 of 132
    assert chunk(monkeypatch, H200, 11000, 128256, 2048, torch.bfloat16) == 2048  # 168 tiles take two


def test_few_rows_are_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [chunk(monkeypatch, SMALL, m, 1000, 64, torch.bfloat16) for m in (0, 1, 4096)] == [1, 1, 4096]
