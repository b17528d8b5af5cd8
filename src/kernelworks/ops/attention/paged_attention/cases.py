"""What paged_attention is tried on, and what it is measured on."""

from __future__ import annotations

import math
import random
from itertools import accumulate
from typing import Any

import torch
from torch import Generator

from kernelworks.contract import Case
from kernelworks.contract.cases import draw
from kernelworks.templates.attention.cases import (
    FEW_TOKENS,
    KINDS,
    MORE_QUERIES,
    ODD_VALUES,
    CaseMaker,
    Lengths,
    draw_lengths,
)  # fmt: skip

__all__ = ["BENCH_CASES", "CASES", "DEVICE_BENCH_CASES", "DEVICE_CASES"]

MIXED_LENGTHS: Lengths = ((1, 5), (19, 37), (1, 1), (3, 8))


def _make(
    generator: Generator, dtype: torch.dtype, lengths: Lengths = MIXED_LENGTHS, heads: tuple[int, int] = (2, 2),
    dim: int = 16, page: int = 16, *, kind: str = "normal", scale: float | None = None, window: int | None = None,
    ints: torch.dtype = torch.int32, spare: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """``lengths``: of each sequence's queries and keys. Blocks lie in a drawn order among ``spare`` that no sequence
    has. A slot that no key was written to is NaN, and a place of the table that holds no key names no block."""
    queries, keys = ([pair[i] for pair in lengths] for i in (0, 1))
    blocks = [-(-n // page) for n in keys]
    count, most = sum(blocks) + spare, max(blocks, default=0) + spare
    order = random.Random(count).sample(range(count), count)
    caches = {}
    for name in ("key_cache", "value_cache"):
        of_values = "normal" if kind == "large" or (name == "key_cache" and kind != "large_mean") else kind
        caches[name] = draw(of_values, generator, dtype, count, page, heads[1], dim)
    table = torch.full((len(lengths), most), -1, dtype=ints)
    written = torch.zeros(count, page, dtype=torch.bool)
    for i, (used, n) in enumerate(zip(blocks, keys, strict=True)):
        own, order = order[:used], order[used:]
        table[i, :used] = torch.tensor(own, dtype=ints)
        written[torch.tensor(own, dtype=torch.long)] = torch.arange(used * page).reshape(used, page) < n
    query = draw(kind if kind != "large" else "normal", generator, dtype, sum(queries), heads[0], dim)
    if kind == "large":
        query, caches["key_cache"] = query * 30, caches["key_cache"] * 30
    filled = {name: torch.where(written[..., None, None], cache, math.nan) for name, cache in caches.items()}
    return {
        "query": query, **filled, "cu_seq_q": torch.tensor([0, *accumulate(queries)], dtype=ints),
        "seqused_k": torch.tensor(keys, dtype=ints), "block_table": table, "scale": scale, "window": window,
    }  # fmt: skip


OF = CaseMaker(_make)
_case, _table = OF.case, OF.table


def _odd(name: str, tensor: str, value: float) -> Case:
    """One NaN or infinity in a sequence between two others, which must not see it."""

    def place(args: dict[str, Any]) -> tuple[int, ...]:
        return (9 + 3, 1, 32) if tensor == "query" else (int(args["block_table"][1, 0]), 11, 1, 32)

    made: dict[str, Any] = {"lengths": ((9, 20), (19, 70), (4, 33)), "heads": (4, 2), "dim": 33}
    return OF.odd_value(name, tensor, value, place, gradients=True, **made)


def _decodes(count: int, most: int) -> Lengths:
    """Of so many sequences, each with one query."""
    return tuple((1, n) for n in draw_lengths(count, most, least=1))


CASES = (
    # few roundings of many elements: here a right row comes nearest to the bound
    *(_case(f"few pairs, D={d}", heads=(64, 64), lengths=((1, d + 1),) * 32, dim=d) for d in (1, 2)),
    # head_dim around the vector widths: one query a sequence, then several
    *(_case(f"decode D={d}", lengths=((1, 4), (1, 1), (1, 17)), dim=d) for d in (1, 3, 8, 15, 16, 17, 33, 80, 128)),
    *(_case(f"D={d}", heads=(4, 2), lengths=((3, 4), (8, 8), (2, 17)), dim=d) for d in (1, 7, 24, 64, 127, 256)),
    # every count of keys about the borders of pages and of tiles of 64 keys
    *(
        _case(f"pages of {page}, keys about {at}", heads=(2, 1), page=page, dim=8,
              lengths=tuple((1, n) for n in range(max(at - 2, 0), at + 3)))
        for page, at in (
            (16, 1), (16, 16), (16, 32), (16, 64), (16, 128), (1, 1), (1, 64), (3, 64), (64, 64), (128, 64)
        )
    ),
    *(
        _case(f"pages of {page}, prefill", heads=(4, 2), page=page, dim=24,
              lengths=((17, 17), (70, 130), (65, 65), (1, 64), (20, 129)))
        for page in (1, 3, 16, 64, 256)
    ),
    *_table("lengths {_label}", "_label lengths", (
        *FEW_TOKENS, MORE_QUERIES, ("few queries, many keys", ((4, 300), (2, 700), (1, 1500))),
    ), dim=24),
    *(
        _case(f"window {window}", heads=(4, 2), lengths=lengths, dim=16, window=window)
        for window, lengths in (
            (1, ((6, 6), (3, 9), (9, 3))),
            (5, ((70, 70), (20, 90), (90, 20), (1, 30))),
            (64, ((140, 150), (64, 64))),
            (300, ((40, 40), (70, 100))),
        )
    ),
    *(
        _case(f"window {window}, decode", heads=(4, 2), lengths=((1, 1), (1, 70), (1, 200), (2, 130)), window=window)
        for window in (1, 16, 65, 1000)
    ),
    *(_case(f"{h} heads on {hkv}", heads=(h, hkv), dim=18) for h, hkv in ((3, 1), (6, 2), (8, 1), (5, 5), (40, 2))),
    *(
        _case(f"{h} heads on {hkv}, decode", heads=(h, hkv), dim=18, lengths=((1, 70), (1, 9), (1, 33)))
        for h, hkv in ((1, 1), (4, 2), (3, 1), (8, 2), (6, 1), (8, 1), (16, 1))
    ),
    _case("layouts", heads=(4, 2), lengths=((7, 9), (16, 40)), dim=24, layouts=True),
    _case("layouts, decode", heads=(4, 2), lengths=((1, 9), (1, 40)), dim=24, layouts=True),
    _case("indices of 64 bits", dim=8, ints=torch.int64),
    _case("indices of 64 bits, decode", lengths=((1, 20), (1, 33)), dim=8, ints=torch.int64),
    _case("a wide table", lengths=((1, 20), (3, 33)), dim=8, spare=9),
    _case("scale", lengths=((9, 12), (4, 4)), dim=8, scale=0.7),
    _case("negative scale", lengths=((3, 4), (4, 4)), dim=8, scale=-1.5),
    _case("negative scale, decode", lengths=((1, 4), (1, 40)), dim=8, scale=-1.5),
    _case("scale of 0", lengths=((30, 4), (4, 40)), dim=8, scale=0.0),
    *(
        _case(f"{kind}{label}", heads=(4, 2), lengths=lengths, dim=40, kind=kind)
        for kind in KINDS
        for label, lengths in (("", ((30, 100), (1, 20))), (", decode", ((1, 100), (1, 20))))
    ),
    *(
        _odd(f"{value} in {tensor}", tensor, value)
        for tensor in ("query", "key_cache", "value_cache")
        for value in ODD_VALUES
    ),
    _case("many sequences", lengths=_decodes(60, 40), dim=8),
    _case("large", heads=(4, 2), lengths=((160, 160), (40, 300)), dim=64),
)  # fmt: skip

# Enough tiles to fill a GPU, so that its kernels take the cuts they have for large inputs.
DEVICE_CASES = (
    _case("tiles, decode", heads=(32, 8), lengths=_decodes(60, 3000), dim=128),
    _case("tiles, decode of few", heads=(32, 8), lengths=((1, 9000), (1, 17)), dim=128),
    _case("tiles, decode window", heads=(16, 4), lengths=((1, 9000), (1, 5000), (1, 3)), dim=64, window=4096),
    _case("tiles, prefill", heads=(32, 8), lengths=((400, 400), (1, 1), (0, 0), (129, 1200), (513, 513)), dim=128),
    _case("tiles, D=64 window", heads=(16, 4), lengths=((700, 700), (384, 900), (20, 20)), dim=64, window=128),
    _case("tiles, D=256", heads=(8, 4), lengths=((333, 450), (70, 70), (5, 600)), dim=256, page=64),
    _case("tiles, decode D=256", heads=(8, 4), lengths=((1, 450), (1, 4000), (1, 600)), dim=256),
    _case("tiles, pages of 1", heads=(16, 16), lengths=((300, 700), (1, 90)), dim=64, page=1),
    _case("tiles, layouts", heads=(4, 2), lengths=((130, 150), (31, 31)), dim=64, layouts=True),
)  # fmt: skip


# A step of decoding for several sequences, one for a single one, and a part of a prompt behind what is in the cache.
BENCH_CASES = (
    OF.timed_case("decode 16 of 1k H32 Hkv8 D128", torch.bfloat16, lengths=((1, 1024),) * 16, heads=(32, 8), dim=128),
    OF.timed_case("decode 1 of 8k H32 Hkv8 D128", torch.bfloat16, lengths=((1, 8192),), heads=(32, 8), dim=128),
    OF.timed_case("decode 16 of 1k H16 Hkv8 D64", torch.float32, lengths=((1, 1024),) * 16, heads=(16, 8), dim=64),
    OF.timed_case("prefill 256 of 1k H8 Hkv2 D64", torch.float32, lengths=((256, 1024),), heads=(8, 2), dim=64),
)

# On a GPU: steps of decoding that fill one, and prompts in parts.
DEVICE_BENCH_CASES = (
    OF.timed_case("decode 64 of 4k H32 Hkv8 D128", torch.bfloat16, lengths=((1, 4096),) * 64, heads=(32, 8), dim=128),
    OF.timed_case("decode 4 of 32k H32 Hkv8 D128", torch.bfloat16, lengths=((1, 32768),) * 4, heads=(32, 8), dim=128),
    OF.timed_case(
        "prefill 4 x 2k of 8k H32 Hkv8 D128", torch.bfloat16, lengths=((2048, 8192),) * 4, heads=(32, 8), dim=128
    ),
)
