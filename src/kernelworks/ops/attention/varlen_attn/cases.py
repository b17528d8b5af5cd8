"""What varlen_attn is tried on, and what it is measured on."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Generator

from kernelworks.contract import Case
from kernelworks.templates.attention.cases import (
    FEW_TOKENS,
    KINDS,
    MORE_QUERIES,
    ODD_VALUES,
    WIDTHS,
    CaseMaker,
    Lengths,
    draw_heads,
    draw_lengths,
)

__all__ = ["BENCH_CASES", "CASES", "DEVICE_BENCH_CASES", "DEVICE_CASES"]

MIXED_LENGTHS: Lengths = ((5, 5), (19, 37), (1, 1), (8, 3))


def _make(
    generator: Generator, dtype: torch.dtype, lengths: Lengths = MIXED_LENGTHS, heads: tuple[int, int] = (2, 2),
    dim: int = 16,
    kind: str = "normal", scale: float | None = None, window_size: tuple[int, int] = (-1, -1), with_lse: bool = False,
    ends: torch.dtype = torch.int32, slack: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """``lengths``: of each sequence's queries and keys. ``slack``: how much more max_q and max_k say than the longest
    has."""
    queries, keys = ([pair[i] for pair in lengths] for i in (0, 1))
    query, key, value = draw_heads(kind, generator, dtype, (sum(queries), heads[0], dim), (sum(keys), heads[1], dim))
    return {
        "query": query, "key": key, "value": value,
        "cu_seq_q": torch.tensor([0, *accumulate(queries)], dtype=ends),
        "cu_seq_k": torch.tensor([0, *accumulate(keys)], dtype=ends),
        "max_q": max(queries, default=0) + slack, "max_k": max(keys, default=0) + slack,
        "scale": scale, "window_size": window_size, "enable_gqa": heads[0] != heads[1], "with_lse": with_lse,
    }  # fmt: skip


def _unseeing(lengths: Lengths, window_size: tuple[int, int]) -> bool:
    """Whether some query sees no key, so that its lse is -inf."""
    right = window_size[1]
    return any(q and (not k or (right >= 0 and k - q + right < 0)) for q, k in lengths)


def _name(name: str, made: dict[str, Any]) -> str:
    unseeing = _unseeing(made.get("lengths", MIXED_LENGTHS), made.get("window_size", (-1, -1)))
    return name + ", lse of -inf" if made.get("with_lse") and unseeing else name


OF = CaseMaker(_make, _name)
_case, _table = OF.case, OF.table


def _odd(name: str, tensor: str, value: float) -> Case:
    """One NaN or infinity in a sequence between two others, which must not see it."""
    made: dict[str, Any] = {
        "lengths": ((9, 20), (19, 70), (4, 33)),
        "heads": (4, 2),
        "dim": 33,
        "with_lse": tensor == "value",
    }
    return OF.odd_value(name, tensor, value, lambda args: (9 + 3 if tensor == "query" else 20 + 11, 1, 32), **made)


def _drawn(count: int, most: int, seed: int = 0) -> Lengths:
    """Of so many sequences, queries and keys alike."""
    return tuple((n, n) for n in draw_lengths(count, most, seed))


CASES = (
    # few roundings of many elements: here a right row comes nearest to the bound
    *(_case(f"few pairs, D={d}", heads=(64, 64), lengths=((2, d + 1),) * 32, dim=d, with_lse=True) for d in (1, 2)),
    # head_dim around the vector widths
    *_table("D={dim}", "dim", WIDTHS, lengths=lambda row: ((3, 4), (5, 5), (2, 7 if row["dim"] < 8 else 17))),
    # lengths around the tiles of 64 keys and 64 rows, with nothing between two sequences
    *_table("lengths {_label}", "_label lengths", (
        *FEW_TOKENS, ("about a tile", ((63, 64), (64, 64), (65, 65), (1, 130))), MORE_QUERIES,
    ), dim=24, with_lse=lambda row: row["_label"] != "of none"),
    # causal: the last query stands at the last key
    *(
        _case(f"causal {label}", heads=(4, 2), lengths=lengths, dim=dim, window_size=(-1, 0), with_lse=label != "small")
        for label, dim, lengths in (
            ("small", 4, ((3, 3), (2, 5), (1, 4), (5, 2))),
            ("tiles", 24, ((17, 130), (128, 128), (70, 40), (64, 65))),
            ("0 and 1", 8, ((0, 0), (1, 1), (1, 9), (0, 4), (6, 0))),
        )
    ),
    *_table("window {window_size[0]}, {window_size[1]}", "window_size lengths", (
        ((0, 0), ((6, 6), (3, 9), (9, 3))), ((4, 0), ((70, 70), (20, 90), (90, 20), (1, 30))),
        ((63, 0), ((140, 150), (64, 64))), ((3, 2), ((20, 20), (9, 40), (40, 9))), ((-1, 5), ((30, 30), (10, 70))),
        ((6, -1), ((30, 30), (70, 10), (10, 70))), ((0, -1), ((12, 12), (80, 80))),
        ((200, 0), ((40, 40), (70, 100))),
    ), dim=16, with_lse=lambda row: row["window_size"][0] > row["window_size"][1]),
    _case("window small", lengths=((5, 5), (2, 6), (6, 2)), dim=4, window_size=(2, 1)),
    *(
        _case(f"{h} heads on {hkv}", heads=(h, hkv), dim=18, window_size=(-1, 0), with_lse=h == 6)
        for h, hkv in ((3, 1), (6, 2), (8, 1), (5, 5))
    ),
    _case("layouts", heads=(4, 2), lengths=((7, 9), (16, 20)), dim=24, window_size=(-1, 0), layouts=True),
    _case("layouts, lse", heads=(2, 2), lengths=((11, 5), (9, 9)), dim=16, layouts=True, with_lse=True),
    _case("ends of 64 bits", dim=8, ends=torch.int64),
    _case("longest said longer", dim=8, slack=100, window_size=(-1, 0)),
    _case("scale", lengths=((9, 12), (4, 4)), dim=8, scale=0.7),
    _case("negative scale", lengths=((3, 4), (4, 4)), dim=8, scale=-1.5, with_lse=True),
    _case("scale of 0", lengths=((30, 4), (4, 40)), dim=8, scale=0.0, window_size=(-1, 0)),
    *_table("{kind}", "kind", KINDS, heads=(4, 2), lengths=((30, 100), (1, 20)), dim=40, with_lse=True,
            gradients=lambda row: row["kind"] == "tiny"),
    *(_odd(f"{value} in {tensor}", tensor, value) for tensor in ("query", "key", "value") for value in ODD_VALUES),
    _case("many sequences", lengths=_drawn(150, 12), dim=8, window_size=(-1, 0)),
    _case("large", heads=(4, 2), lengths=((160, 160), (40, 300)), dim=64, window_size=(-1, 0)),
)  # fmt: skip

# Enough tiles to fill a GPU, so that its kernels take the cuts they have for large inputs.
DEVICE_CASES = (
    _case("tiles, causal", heads=(32, 8), lengths=((400, 400), (1, 1), (0, 0), (129, 200), (513, 513)), dim=128,
          window_size=(-1, 0), with_lse=True),
    _case("tiles, D=64 window", heads=(16, 4), lengths=((700, 700), (384, 900), (20, 20), (300, 120)), dim=64,
          window_size=(127, 0), with_lse=True),
    _case("tiles, D=64 whole, few", heads=(4, 4), lengths=((100, 300), (60, 60)), dim=64, with_lse=True),
    _case("tiles, D=256 causal", heads=(8, 4), lengths=((333, 450), (70, 70), (5, 600)), dim=256,
          window_size=(-1, 0), with_lse=True),
    _case("tiles, many sequences", heads=(16, 16), lengths=_drawn(700, 90), dim=64, window_size=(-1, 0),
          with_lse=True),
    _case("tiles, layouts", heads=(4, 2), lengths=((130, 150), (31, 31)), dim=64, with_lse=True, layouts=True),
)  # fmt: skip


# Documents of a packed row: few long ones and many short.
BENCH_CASES = tuple(
    OF.timed_case(f"{len(lengths)} of {sum(n for n, _ in lengths)} H{h} Hkv{hkv} D{dim} causal", dtype, lengths=lengths,
             heads=(h, hkv), dim=dim, window_size=(-1, 0))
    for dtype, lengths, h, hkv, dim in (
        (torch.float32, _drawn(12, 500, 1), 8, 8, 64),
        (torch.bfloat16, _drawn(12, 500, 1), 8, 2, 64),
        (torch.float32, _drawn(64, 100, 2), 12, 12, 64),
    )
)  # fmt: skip

# On a GPU: what a training step packs, and sentences for an encoder.
DEVICE_BENCH_CASES = (
    OF.timed_case("24 of 32k H16 D128 causal", torch.bfloat16, lengths=_drawn(24, 4096, 3), heads=(16, 16), dim=128,
             window_size=(-1, 0)),
    OF.timed_case("24 of 32k H32 Hkv8 D128 window 1024", torch.bfloat16, lengths=_drawn(24, 4096, 3), heads=(32, 8),
             dim=128, window_size=(1023, 0)),
    OF.timed_case("256 of 45k H12 D64", torch.bfloat16, lengths=_drawn(256, 512, 4), heads=(12, 12), dim=64),
)  # fmt: skip
