"""What attention is tried on, and what it is measured on."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator

from kernelworks.contract import Case
from kernelworks.contract.cases import normal
from kernelworks.templates.attention.cases import KINDS, ODD_VALUES, WIDTHS, CaseMaker, draw_heads

__all__ = ["BENCH_CASES", "CASES", "DEVICE_BENCH_CASES", "DEVICE_CASES"]


def _make(
    generator: Generator, dtype: torch.dtype, heads: tuple[int, int] = (2, 2), lengths: tuple[int, int] = (5, 5),
    dim: int = 16, batch: int = 1, kind: str = "normal", sinks: float | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """``sinks``: the mean of those that there are."""
    shapes = [(batch, heads[i], lengths[i], dim) for i in (0, 1)]
    named = dict(zip("qkv", draw_heads(kind, generator, dtype, *shapes), strict=True))
    defaults = {"causal": None, "window": None, "scale": None, "mask": None, "with_lse": False, "softcap": None}
    options["sinks"] = None if sinks is None else normal(generator, dtype, heads[0]) + sinks
    return named | defaults | options


OF = CaseMaker(_make)
_case, _table = OF.case, OF.table
SHAPE = "{heads[0]}on{heads[1]} {lengths[0]}x{lengths[1]} {causal}"


def _masked(name: str, shape: tuple[int, int, int, int], hide: tuple[int, ...] = (), **made: Any) -> Case:
    """A random mask of this shape; the queries in ``hide`` see nothing at all."""

    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        args = _make(generator, dtype, **made)
        mask = torch.rand(*shape, generator=generator) < 0.6
        for query in hide:
            mask[:, :, query] = False
        return args | {"mask": mask}

    return Case(name, make, layouts=name == "mask per query")


def _odd(
    name: str, tensor: str, value: float, dim: int = 33, lengths: tuple[int, int] = (19, 70),
    heads: tuple[int, int] = (4, 2), softcap: float | None = None,
) -> Case:  # fmt: skip
    """One NaN or infinity, where every query sees it."""
    made: dict[str, Any] = {
        "heads": heads,
        "lengths": lengths,
        "dim": dim,
        "with_lse": tensor == "v",
        "softcap": softcap,
    }
    length = lengths[0] if tensor == "q" else lengths[1]
    return OF.odd_value(name, tensor, value, lambda args: (0, 1, min(11, length - 1), min(32, dim - 1)), **made)


CASES = (
    # few roundings of many elements: here a right kernel comes nearest to the bound
    *(_case(f"few pairs, D={d}", heads=(64, 64), lengths=(2, d + 1), dim=d, batch=32, with_lse=True) for d in (1, 2)),
    _case("one pair, sinks", heads=(4096, 4096), lengths=(1, 1), dim=1, sinks=0.0),
    # head_dim around the vector widths, for many queries and for one
    *_table("D={dim}", "dim", WIDTHS, heads=(4, 2), lengths=(19, 37)),
    *_table("decode D={dim}", "dim", (1, 7, 16, 31, 96, 128, 129, 256), heads=(4, 1), lengths=(1, 70)),
    # lengths around the tiles of 64 keys and 64 rows
    *_table("Lq={lengths[0]} Lk={lengths[1]} causal", "lengths",
            ((9, 9), (63, 64), (64, 64), (65, 65), (129, 131), (33, 200), (200, 33)), dim=20, causal="top_left"),
    *_table("Lq={lengths[0]} Lk={lengths[1]} bottom right", "lengths",
            ((1, 65), (3, 64), (17, 130), (128, 128), (70, 40)), dim=24, causal="bottom_right", with_lse=True),
    *(_case(f"Lk={m}", heads=(2, 1), lengths=(1, m), dim=40) for m in (0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 509)),
    *(
        _case(f"{h} heads on {hkv}, Lq={n}", heads=(h, hkv), lengths=(n, 45), dim=18, causal="bottom_right")
        for h, hkv, n in ((3, 1, 1), (6, 2, 2), (8, 1, 1), (9, 1, 1), (10, 2, 40), (5, 5, 8))
    ),
    *_table("window {window} {causal}, Lq={lengths[0]} Lk={lengths[1]}", "window causal lengths", (
        (1, "top_left", (20, 20)), (5, "top_left", (70, 70)), (64, "bottom_right", (140, 150)),
        (17, "bottom_right", (1, 90)), (7, "bottom_right", (3, 100)), (4, "top_left", (30, 10)),
        (100, "bottom_right", (20, 30)),
    ), dim=16),
    _masked("mask of padding", (2, 1, 1, 70), heads=(4, 2), lengths=(21, 70), dim=32, batch=2),
    _masked("mask per query", (2, 4, 21, 70), (3,), heads=(4, 2), lengths=(21, 70), dim=32, batch=2),
    _masked("mask and causal", (1, 1, 33, 33), (7, 32), heads=(2, 2), lengths=(33, 33), dim=16, causal="top_left"),
    _masked("mask, decode", (2, 1, 1, 70), heads=(4, 2), lengths=(1, 70), dim=32, batch=2, with_lse=True),
    _masked("mask hides all, decode", (1, 1, 2, 20), (0, 1), heads=(4, 2), lengths=(2, 20), dim=8),
    _case("layouts, prefill", heads=(4, 2), lengths=(23, 29), dim=24, batch=2, causal="top_left", layouts=True),
    _case("layouts, decode", heads=(4, 2), lengths=(1, 29), dim=24, batch=2, layouts=True, with_lse=True),
    _case("scale", lengths=(9, 12), dim=8, scale=0.7),
    _case("scale, decode", lengths=(1, 12), dim=8, scale=-1.5),
    *_table("{kind} Lq={lengths[0]}", "kind lengths", ((kind, (n, 100)) for kind in KINDS for n in (1, 30)),
            heads=(4, 2), dim=40, with_lse=True, gradients=lambda row: row["kind"] == "tiny"),
    *(_odd(f"{value} in {tensor}", tensor, value) for tensor in "qkv" for value in ODD_VALUES),
    # Of few queries, whose weights a kernel may hold as sums of two numbers: 0 or negative ones times infinity
    *(
        _odd(f"few, D={dim}, {value} in {tensor}", tensor, value, dim, (n, 9), (3 * hkv, hkv))
        for dim, n, hkv in ((2, 1, 2), (20, 2, 2))
        for tensor in "qkv"
        for value in ODD_VALUES
    ),
    _case("no queries", lengths=(0, 7)),
    _case("no batch", lengths=(3, 7), batch=0),
    _case("large prefill", heads=(4, 2), lengths=(160, 160), dim=64, causal="top_left"),
    _case("large decode", heads=(4, 2), lengths=(1, 1100), dim=64),
    # Capped: scores far below the cap, about it, and far beyond (a scale of 30 makes scores of about 30 sqrt(D))
    *_table("softcap {softcap}, scale {scale}, D={dim} " + SHAPE,
            "softcap scale dim heads lengths causal with_lse", (
        (50.0, None, 16, (2, 2), (5, 5), None, False), (1.5, None, 5, (2, 1), (4, 6), None, True),
        (0.5, -1.0, 4, (2, 1), (1, 7), "bottom_right", True), (2.0, 30.0, 3, (2, 1), (5, 6), "top_left", False),
        (50.0, 30.0, 33, (4, 2), (19, 37), None, True), (2, 0.0, 8, (2, 2), (6, 9), None, True),
        (30.0, 3.0, 256, (4, 1), (17, 70), "top_left", False), (1e-3, None, 20, (3, 1), (40, 65), "bottom_right", True),
        (1e6, None, 24, (4, 2), (23, 29), "top_left", False), (5.0, None, 64, (4, 2), (1, 300), None, True),
        (20.0, 2.0, 128, (8, 1), (1, 130), "bottom_right", False),
        (4.0, 1.0, 80, (6, 2), (3, 100), "bottom_right", False), (3.0, 1.0, 1, (2, 2), (70, 40), "bottom_right", False),
    )),
    *_table("softcap, window {window} {causal}, Lq={lengths[0]} Lk={lengths[1]}", "window causal lengths", (
        (5, "top_left", (70, 70)), (64, "bottom_right", (140, 150)), (7, "bottom_right", (2, 100)),
    ), heads=(4, 2), dim=17, softcap=3.0),
    _masked("softcap, mask per query", (2, 4, 21, 70), (3,), heads=(4, 2), lengths=(21, 70), dim=32, batch=2,
            softcap=2.0),
    _masked("softcap, mask, decode", (2, 1, 1, 70), heads=(4, 2), lengths=(1, 70), dim=32, batch=2, softcap=1.0),
    _case("softcap, layouts", heads=(4, 2), lengths=(23, 29), dim=24, batch=2, causal="top_left", layouts=True,
          softcap=1.0, with_lse=True),
    *(
        _case(f"softcap, {kind} Lq={n}", heads=(4, 2), lengths=(n, 100), dim=40, kind=kind, with_lse=True, softcap=9.0)
        for kind in ("tiny", "large", "large_mean", "zeros")
        for n in (1, 30)
    ),
    *(_odd(f"softcap, nan in {tensor}", tensor, math.nan, softcap=2.0) for tensor in "qkv"),
    _case("softcap, no keys", lengths=(3, 0), softcap=2.0),
    # Sinks: of little weight, about that of all keys, and of nearly all of it
    *_table(f"sinks {{sinks}}, D={{dim}} {SHAPE} {{window}} {{softcap}}",
            "sinks dim heads lengths causal window softcap", (
        (0.0, 4, (2, 1), (3, 3), None, None, None), (-8.0, 5, (2, 1), (4, 6), "top_left", None, None),
        (3.0, 4, (2, 1), (1, 7), "bottom_right", None, 2.0), (40.0, 16, (4, 2), (19, 37), None, None, None),
        (2.0, 33, (4, 2), (70, 65), "bottom_right", None, None), (1.0, 64, (8, 2), (70, 70), "top_left", 8, None),
        (4.0, 128, (8, 1), (1, 300), None, None, None), (5.0, 24, (6, 2), (3, 140), "bottom_right", 17, None),
        (0.0, 256, (4, 4), (17, 70), None, None, 1.0), (1.0, 40, (4, 2), (3, 0), None, None, None),
    ), with_lse=lambda row: row["lengths"][0] != row["lengths"][1],
       batch=lambda row: 2 if row["lengths"][0] < 9 else 1),
    _case("sinks, layouts", heads=(4, 2), lengths=(23, 29), dim=24, batch=2, causal="top_left", layouts=True,
          sinks=1.0),
    _case("sinks, layouts, decode", heads=(4, 2), lengths=(1, 29), dim=24, batch=2, layouts=True, sinks=1.0),
    _masked("sinks, mask per query", (2, 4, 21, 70), (3,), heads=(4, 2), lengths=(21, 70), dim=32, batch=2, sinks=1.0,
            with_lse=True),
    _masked("sinks, mask hides all, decode", (1, 1, 2, 20), (0, 1), heads=(4, 2), lengths=(2, 20), dim=8, sinks=0.0,
            with_lse=True),
    *(
        _case(f"sinks, {kind} Lq={n}", heads=(4, 2), lengths=(n, 100), dim=40, kind=kind, with_lse=True, sinks=1.0)
        for kind in ("large", "zeros")
        for n in (1, 30)
    ),
)  # fmt: skip

# Enough tiles to fill a GPU, so that its kernels take the cuts they have for large inputs.
DEVICE_CASES = (
    *_table("tiles, {_label}", "_label heads lengths dim batch causal with_lse gradients", (
        ("causal", (32, 8), (400, 400), 128, 2, "top_left", True, True),
        ("D=64 bottom right", (16, 4), (257, 777), 64, 4, "bottom_right", False, True),
        ("whole", (48, 48), (384, 512), 128, 1, None, True, False),
        # One key more than blocks of 176, which goes by 128; such blocks, whole and not; a tile or two a multiprocessor
        ("whole, long", (48, 16), (400, 2113), 128, 1, None, True, False),
        ("whole, blocks of keys", (4, 4), (65, 2112), 128, 1, None, True, False),
    )),
    _case("tiles, whole, long, large", heads=(4, 1), lengths=(130, 2200), dim=128, kind="large", gradients=False),
    _case("tiles, causal, long", heads=(6, 2), lengths=(4100, 4100), dim=128, causal="top_left", gradients=False),
    _case("tiles, whole, gradients", heads=(6, 2), lengths=(333, 450), dim=128, batch=2),
    _case("tiles, D=64 causal, gradients", heads=(8, 8), lengths=(520, 520), dim=64, causal="top_left"),
    _case("tiles, more queries than keys", heads=(24, 24), lengths=(700, 300), dim=128, causal="bottom_right"),
    _case("tiles, window", heads=(48, 16), lengths=(300, 300), dim=128, causal="top_left", window=100),
    _case("tiles, D=64 whole", heads=(33, 11), lengths=(384, 500), dim=64, batch=4, with_lse=True, gradients=False),
    _case("tiles, D=64 one a head", heads=(66, 66), lengths=(250, 260), dim=64, batch=4, gradients=False),
    _case("tiles, D=64 few", heads=(4, 2), lengths=(100, 300), dim=64, causal="bottom_right", scale=0.3, with_lse=True),
    _case("tiles, D=64 causal", heads=(66, 22), lengths=(250, 260), dim=64, batch=4, causal="top_left",
          gradients=False),
    _case("tiles, D=64 long", heads=(16, 4), lengths=(3100, 3100), dim=64, causal="top_left", gradients=False),
    _case("tiles, layouts", heads=(4, 2), lengths=(130, 150), dim=64, batch=2, causal="bottom_right", layouts=True),
    *_table("tiles, {kind}", "kind", KINDS, heads=(4, 2), lengths=(70, 200), dim=64, with_lse=True, gradients=False),
    *(_odd(f"tiles, {value} in {tensor}", tensor, value, 64) for tensor in "qkv" for value in (math.inf, math.nan)),
    *_table("tiles, window {window} {causal}, D={dim}", "window causal dim heads lengths", (
        (130, "top_left", 64, (16, 4), (700, 700)), (600, "bottom_right", 64, (66, 22), (384, 900)),
        (150, "top_left", 128, (8, 2), (600, 200)), (64, "bottom_right", 128, (24, 24), (700, 1000)),
        (190, "top_left", 256, (48, 16), (500, 500)), (90, "bottom_right", 256, (8, 8), (500, 300)),
    ), gradients=lambda row: row["dim"] < 256),
    _case("tiles, D=256 whole", heads=(8, 4), lengths=(333, 450), dim=256, with_lse=True, gradients=False),
    *_table("tiles, D=256 gradients " + SHAPE, "heads lengths causal", (
        ((4, 2), (333, 450), None), ((8, 8), (257, 321), "bottom_right"), ((2, 2), (520, 520), "top_left"),
        ((6, 2), (700, 300), "bottom_right"),
    ), dim=256, batch=lambda row: 2 if row["lengths"][0] < 300 else 1, layouts=lambda row: row["lengths"][0] == 257),
    _case("tiles, D=256 causal", heads=(32, 8), lengths=(400, 700), dim=256, batch=2, causal="bottom_right",
          gradients=False),
    _case("tiles, D=256 large", heads=(40, 40), lengths=(500, 290), dim=256, kind="large", gradients=False),
    _case("tiles, drawn", heads=(72, 9), lengths=(200, 8192), dim=128, causal="bottom_right", gradients=False),
    _case("tiles, scale", heads=(48, 16), lengths=(300, 260), dim=64, scale=-0.2),
    _masked("tiles, mask", (1, 64, 300, 130), (5, 299), heads=(64, 8), lengths=(300, 130), dim=80),
    _case("decode, split", heads=(32, 8), lengths=(1, 8192), dim=128, with_lse=True),
    _case("decode, many pairs", heads=(32, 8), lengths=(1, 512), dim=128, batch=40),
    _case("few queries, split", heads=(8, 2), lengths=(4, 3001), dim=128, causal="bottom_right", window=2500),
    *_table(f"tiles, softcap {{softcap}}, scale {{scale}}, D={{dim}} {SHAPE} {{window}}",
            "softcap scale dim heads lengths causal window gradients", (
        (50.0, None, 64, (16, 4), (257, 777), "bottom_right", None, True),
        (5.0, 0.5, 64, (66, 22), (250, 260), "top_left", None, False),
        (2.0, -1.0, 64, (8, 2), (700, 700), "top_left", 130, True),
        (50.0, 2.0, 128, (32, 8), (400, 400), "top_left", None, True),
        (30.0, None, 128, (48, 48), (384, 512), None, None, False),
        (50.0, 0.0625, 256, (16, 8), (500, 500), "top_left", 190, True),
        (50.0, 1.0, 256, (48, 24), (400, 700), "bottom_right", None, False),
        (50.0, 1.0, 256, (16, 8), (1, 4097), "bottom_right", None, False),
        (3.0, None, 128, (32, 8), (1, 8192), None, None, False),
        (3.0, None, 128, (8, 2), (4, 3001), "bottom_right", 2500, False),
    ), with_lse=lambda row: row["dim"] < 128),
    *_table(f"tiles, sinks {{sinks}}, D={{dim}} {SHAPE} {{window}} {{softcap}}",
            "sinks dim heads lengths causal window softcap gradients", (
        (2.0, 64, (64, 8), (300, 300), "top_left", 128, None, True),
        (2.0, 64, (16, 2), (257, 777), "bottom_right", None, None, True),
        (2.0, 128, (8, 8), (200, 260), None, None, None, True),
        (2.0, 128, (40, 40), (300, 260), "top_left", None, 20.0, False),
        (2.0, 64, (64, 8), (1, 4097), "bottom_right", 128, None, False),
        (2.0, 64, (64, 8), (1, 5000), None, None, None, False),
        (2.0, 128, (8, 2), (4, 1500), "bottom_right", None, None, False),
        # Each way in which Hopper's kernels begin and end tiles, and queries that see a sink alone
        (3.0, 64, (33, 11), (384, 500), None, None, None, False),
        (3.0, 64, (66, 22), (250, 260), "top_left", None, None, False),
        (6.0, 64, (16, 4), (3100, 1100), "top_left", None, None, False),
        (-8.0, 64, (16, 4), (700, 300), "bottom_right", 130, None, False),
        (40.0, 128, (48, 16), (400, 2113), None, None, None, False),
        (2.0, 128, (12, 4), (300, 2200), None, None, None, False),
        (5.0, 128, (12, 4), (300, 4000), "bottom_right", None, None, False),
        (4.0, 128, (24, 24), (700, 300), "bottom_right", None, None, False),
        (4.0, 128, (24, 6), (700, 1000), "bottom_right", 64, None, True),
        (2.0, 256, (48, 16), (400, 450), None, None, None, False),
        (2.0, 256, (16, 8), (520, 300), "bottom_right", None, None, True),
        (-3.0, 256, (16, 8), (500, 500), "top_left", 190, None, False),
    ), with_lse=lambda row: row["dim"] < 128 or row["lengths"][0] > 300, batch=2),
    _masked("tiles, softcap, mask", (1, 64, 300, 130), (5, 299), heads=(64, 8), lengths=(300, 130), dim=80,
            softcap=2.0),
    # At most 16 rows to a key-value head: keys of one step, of one warp, of all warps and one more, of many shares
    *_table(f"few, D={{dim}} {{batch}}x{SHAPE} {{window}}",
            "dim batch heads lengths causal window", (
        (64, 1, (4, 1), (1, 1), None, None), (64, 1, (8, 1), (2, 17), "bottom_right", None),
        (64, 2, (6, 2), (5, 301), "top_left", None), (64, 1, (16, 16), (1, 1000), None, None),
        (64, 1, (5, 1), (3, 2049), "bottom_right", 700), (64, 1, (4, 1), (4, 3000), None, None),
        (64, 40, (8, 8), (1, 130), None, None), (128, 16, (40, 8), (1, 300), None, None),
        (128, 3, (16, 1), (1, 129), None, None), (128, 1, (8, 2), (4, 128), "bottom_right", None),
        (128, 2, (4, 4), (16, 16), "top_left", None), (128, 1, (2, 1), (8, 3), "bottom_right", None),
        (128, 1, (4, 2), (2, 5001), "bottom_right", 1), (128, 1, (4, 2), (7, 600), "top_left", 3),
        (128, 1, (32, 8), (1, 20000), None, None), (128, 1, (16, 2), (2, 4001), "bottom_right", None),
        (128, 1, (4, 1), (3, 6000), "bottom_right", 2500), (256, 1, (8, 1), (1, 65), None, None),
        (256, 1, (4, 1), (4, 64), "bottom_right", 20), (256, 2, (16, 2), (2, 2501), "bottom_right", None),
        (256, 40, (4, 4), (1, 100), None, None),
    ), with_lse=lambda row: row["lengths"][1] % 2 == 1, gradients=False),
    *_table("few, layouts, D={dim}", "dim", (64, 128), heads=(8, 2), lengths=(1, 150), batch=2, layouts=True),
    *_table("few, scale {scale}", "scale", (-1.5, 0.0), heads=(8, 2), lengths=(1, 300), dim=128, with_lse=True),
    *_table("few, {kind}", "kind", KINDS, heads=(4, 2), lengths=(1, 200), dim=128, with_lse=True, gradients=False),
    *(_odd(f"few, {value} in {tensor}", tensor, value, 64, (1, 70)) for tensor in "qkv" for value in ODD_VALUES),
    # Keys split over programs, of which one meets it
    *(
        _odd(f"few, D={dim} split, {value} in v", "v", value, dim, (n, 1500), (8, 2))
        for dim, n in ((128, 1), (256, 4))
        for value in ODD_VALUES
    ),
)  # fmt: skip


def _timed(
    before: str, dtype: torch.dtype, batch: int, heads: tuple[int, int], n: int, m: int, causal: str | None
) -> Case:
    name = f"{before}Hq{heads[0]} Hkv{heads[1]} {n}x{m} D128{' causal' if causal else ''}"
    return OF.timed_case(name, dtype, heads=heads, lengths=(n, m), dim=128, batch=batch, causal=causal)


BENCH_CASES = tuple(
    _timed("", dtype, 1, heads, n, m, causal)
    for dtype, heads, n, m, causal in (
        (torch.bfloat16, (32, 8), 1, 4096, None), (torch.bfloat16, (8, 8), 1, 16384, None),
        (torch.float32, (32, 8), 1, 4096, None), (torch.float32, (8, 8), 1024, 1024, "top_left"),
        (torch.bfloat16, (16, 8), 512, 512, "top_left"), (torch.float32, (12, 12), 128, 128, None),
    )
)  # fmt: skip

# On a GPU: sizes that fill one, and one that only its host time limits.
DEVICE_BENCH_CASES = tuple(
    _timed(f"B{batch} ", torch.bfloat16, batch, heads, n, m, causal)
    for batch, heads, n, m, causal in (
        (1, (32, 8), 1, 8192, None), (32, (32, 8), 1, 4096, None), (128, (32, 8), 1, 2048, None),
        (4, (16, 16), 4096, 4096, "top_left"), (1, (16, 16), 8192, 8192, "top_left"),
    )
)  # fmt: skip
