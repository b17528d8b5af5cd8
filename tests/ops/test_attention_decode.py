"""Hopper's attention for few queries where there is no GPU: what it takes, how it shares out keys, what it launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from op_kernels import thorough_if_certified

from kernelworks.build import cuda
from kernelworks.contract import Request, TensorSpec
from kernelworks.dispatch.op import OPS
from kernelworks.ops.attention.attention import sm90_decode as decode

HEADER = decode.SOURCE.with_suffix(".cuh")


def request(shape: tuple[int, int, int, int, int, int], **changed: Any) -> Request:
    batch, heads, kv_heads, queries, keys, dim = shape
    dtype, stride = changed.pop("dtype", torch.bfloat16), changed.pop("stride", dim)

    def spec(count: int, length: int) -> TensorSpec:
        strides = (count * length * stride, length * stride, stride, 1)
        return TensorSpec((batch, count, length, dim), dtype, strides, "cuda")

    named = {"q": spec(heads, queries), "k": spec(kv_heads, keys), "v": spec(kv_heads, keys)}
    options = {"causal": None, "window": None, "scale": None, "mask": None, "with_lse": False}
    return Request("attention", "forward", named | options | changed)


@pytest.mark.parametrize(
    ("shape", "changed", "reason"),
    [
        ((1, 32, 8, 1, 8192, 128), {}, None),
        ((2, 8, 2, 4, 90, 64), {"causal": "bottom_right", "window": 7, "dtype": torch.float16, "scale": -0.5}, None),
        ((1, 16, 1, 1, 1, 256), {"with_lse": True}, None),
        ((1, 17, 1, 1, 9, 128), {}, "at most 16 queries"),
        ((1, 4, 1, 5, 9, 128), {}, "at most 16 queries"),
        ((1, 4, 1, 1, 9, 96), {}, "head_dim of 64, 128 or 256"),
        ((1, 4, 1, 1, 9, 128), {"dtype": torch.float32}, "bfloat16 and float16"),
        ((1, 4, 1, 1, 0, 128), {}, "sizes from 1"),
        ((0, 4, 1, 1, 9, 128), {}, "sizes from 1"),
        ((1, 4, 1, 1, 9, 128), {"stride": 132}, "multiples of 8"),
        ((1, 4, 1, 1, 9, 128), {"mask": TensorSpec((1, 1, 1, 9), torch.bool, (9, 9, 9, 1), "cuda")}, "no mask"),
    ],
)
def test_guard(shape: tuple[int, int, int, int, int, int], changed: dict[str, Any], reason: str | None) -> None:
    said = decode.guard(request(shape, **changed))
    assert said is None if reason is None else said is not None and reason in said


@pytest.mark.parametrize("what", ["softcap", "sinks"])
def test_scores_are_plain(what: str) -> None:
    kernel = OPS["attention"].kernel("sm90_decode")
    asked = request((1, 32, 8, 1, 8192, 128), **{what: 5.0})
    assert (kernel.guard(asked) or "").startswith(("takes no", "runs on"))


CUTS = [(how, dim, warps) for how in ("whole", "apart", "cluster") for dim, warps in decode.WARPS.items()]


def test_shared_memory_is_what_the_source_lays_out(tmp_path: Path) -> None:
    source, lines = tmp_path / "sizes.cu", [f'#include "{HEADER}"']
    for how, dim, warps in CUTS:
        cut = f"few::Cut<{dim}, {warps}, {decode.STAGES[dim]}, few::{how.upper()}>"
        lines.append(f"static_assert({cut}::BYTES == {decode._bytes(dim, warps, how)});")
        assert decode._bytes(dim, warps, how) <= 227 * 1024
    lines.append(f"static_assert(few::ROWS == {decode.ROWS} && few::KEYS == {decode.KEYS});")
    lines.append(f"static_assert(few::Cut<64, 8, 6, few::CLUSTER>::MOST == {decode.CLUSTERED});")
    source.write_text("\n".join(lines) + '\nextern "C" __global__ void none() {}')
    assert cuda.cubin(source)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is launched in a test: name, grid and arguments of each."""
    found: list[tuple[str, tuple[int, int, int], tuple[Any, ...]]] = []

    def kernel(source: Path, name: str, **settings: Any) -> Any:
        return lambda grid, *arguments: found.append((name, grid, arguments))

    monkeypatch.setattr(decode, "Kernel", kernel)
    caches = (decode._kernel, decode._join)
    for cache in caches:
        cache.cache_clear()
    yield found
    for cache in caches:
        cache.cache_clear()


def cuts(pairs: int, keys: int) -> list[decode.KeySplit | None]:
    most = max(1, min(8, keys // 16))
    return [None, *(decode.KeySplit(how, shares, 8) for how in ("apart", "cluster") for shares in {1, 2, most})]


@pytest.mark.parametrize(
    ("causal", "window"), [(None, None), *((c, w) for c in ("top_left", "bottom_right") for w in (None, 1, 40))]
)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 3000), (4, 129), (8, 3), (3, 700)])
def test_shares_hold_every_key_that_is_seen(
    launched: Any, queries: int, keys: int, causal: str | None, window: int | None
) -> None:
    """By the numbers that the kernels are given: each seen key lies in one share, and what a row sees is what the
    contract says."""
    q = torch.empty(2, 4, queries, 128, dtype=torch.bfloat16, device="meta")
    k = torch.empty(2, 2, keys, 128, dtype=torch.bfloat16, device="meta")
    offset = keys - queries if causal == "bottom_right" else 0
    for cut in cuts(4, keys):
        launched.clear()
        decode.forward(q, k, k, causal, window, None, None, True, cut=cut)
        grid, numbers = launched[0][1], launched[0][2][18:]
        heads, group, lq, lk, first, last, length, shares, shift, seen, part, factor = numbers
        assert [row * part >> 8 for row in range(16)] == [row // queries for row in range(16)]
        assert (heads, group, lq, lk) == (4, 2, queries, keys) and grid == (4 * shares, 1, 1)
        assert factor == pytest.approx(128**-0.5 * 1.4426950408889634)
        held = [
            key
            for share in range(shares)
            for key in range(first + share * length, min(first + (share + 1) * length, last))
        ]
        assert held == list(range(first, last)) and first % 16 == 0 and length % 16 == 0
        for i in range(queries):
            rows = {j for j in range(keys) if causal is None or j <= i + offset}
            rows -= {j for j in rows if window is not None and j <= i + offset - window}
            position = i + shift
            assert rows == {j for j in held if position - seen < j <= position}
        assert [name for name, _, _ in launched[1:]] == (["join_bfloat16_128"] if launched[0][0][:5] == "apart" else [])


@pytest.mark.parametrize("dim", decode.STAGES)
@pytest.mark.parametrize("pairs", [1, 2, 8, 33, 66, 100, 128, 500])
@pytest.mark.parametrize("keys", [1, 100, 3000, 131072])
def test_cuts_fill_the_gpu(dim: int, pairs: int, keys: int) -> None:
    cut = decode._cut(dim, pairs, keys, 132)
    assert cut.shares == 1 if cut.how == "whole" else 2 <= cut.shares <= 8 if cut.how == "cluster" else cut.shares > 1
    assert (cut.shares - 1) * decode.KEYS < max(keys, 1)  # no share is without a key
    assert (cut.how, dim, cut.warps) in CUTS
    # A block for each multiprocessor where there is much to read, else for half of them, but for what one share more of
    # each head would pass, or where keys run out.
    steps = -(-keys // (decode.KEYS * cut.warps))
    few, most = pairs * keys * dim < 2**25, 132 // pairs
    if few and most > 3:
        most //= 2
    most = max(1, min(steps, most))
    assert cut.shares == (1 << most.bit_length() - 1 if cut.how == "cluster" else most)
    assert cut.how == ("whole" if most < 2 else "cluster" if most <= (8 if few else 2) else "apart")


@thorough_if_certified("attention", "sm90_decode")
def test_every_cut_is_compiled_and_none_spills() -> None:
    compiled = cuda.resources(decode.SOURCE)
    assert {f"{how}_{dtype}_{dim}_{warps}" for how, dim, warps in CUTS for dtype in ("bfloat16", "float16")} <= set(
        compiled
    )
    for name, taken in compiled.items():
        assert not taken["local"] and not taken["stack"], (name, taken)
