"""What block_sparse_attention is tried on, and what it is measured on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case
from kernelworks.templates.attention.cases import KINDS, ODD_VALUES, WIDTHS, CaseMaker, draw_heads

__all__ = ["BENCH_CASES", "BLOCK", "CASES", "DEVICE_BENCH_CASES", "DEVICE_CASES", "pattern"]

BLOCK = 128  # queries and keys that one truth of the mask is about


def pattern(kind: str | float, rows: int, columns: int, generator: Generator, *of: int) -> Tensor:
    """A block mask [*of, rows, columns]: of a density, or one of those that models use."""
    row, column = torch.arange(rows, device=generator.device)[:, None], torch.arange(columns, device=generator.device)
    if isinstance(kind, float):
        return torch.rand(*of, rows, columns, generator=generator, device=generator.device) < kind
    if kind == "window":  # the last eight blocks, the first one, and a row that sees all
        seen = ((column <= row) & (column > row - 8)) | (column == 0) | (row == 0)
    elif kind == "documents":  # of 5, 9, 13, ... blocks
        ends = torch.arange(1, 64, device=generator.device) * 4 + 1
        ends = ends.cumsum(0)
        seen = torch.searchsorted(ends, row, right=True) == torch.searchsorted(ends, column, right=True)
    elif kind == "holes":  # rows and columns that nothing is in: the first, the last but one
        seen = (row % 3 != 0) & (column % 3 != 1)
    elif kind == "far":  # only keys ahead of the diagonal, which causal hides
        seen = column > row
    elif kind == "diagonal":
        seen = column == row
    else:
        seen = (row >= 0) & (column >= 0) & (kind == "all")
    return seen.expand(*of, rows, columns).clone()


def _make(
    generator: Generator, dtype: torch.dtype, heads: tuple[int, int] = (2, 2), lengths: tuple[int, int] = (5, 5),
    dim: int = 16, batch: int = 1, seen: str | float = 0.5, of: tuple[int, int] = (1, 1), kind: str = "normal",
    is_causal: bool = False, scale: float | None = None, with_lse: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """``seen``: the pattern of blocks; ``of``: how many masks there are, a batch and a head."""
    shapes = [(batch, heads[i], lengths[i], dim) for i in (0, 1)]
    query, key, value = draw_heads(kind, generator, dtype, *shapes)
    rows, columns = (-(-n // BLOCK) for n in lengths)
    return {
        "query": query, "key": key, "value": value, "block_mask": pattern(seen, rows, columns, generator, *of),
        "is_causal": is_causal, "scale": scale, "enable_gqa": heads[0] != heads[1], "with_lse": with_lse,
    }  # fmt: skip


def _name(name: str, made: dict[str, Any]) -> str:
    hidden = made.get("seen", 0.5) not in ("all", 1.0) or 0 in made["lengths"]
    return name + ", lse may be -inf" if made.get("with_lse") and hidden else name


OF = CaseMaker(_make, _name)
_case, _table = OF.case, OF.table


def _odd(name: str, tensor: str, value: float) -> Case:
    """One NaN or infinity in a block that every query sees."""
    made: dict[str, Any] = {
        "heads": (4, 2),
        "lengths": (19, 150),
        "dim": 33,
        "seen": "all",
        "with_lse": tensor == "value",
    }
    return OF.odd_value(name, tensor, value, lambda args: (0, 1, 11, 32), **made)


CASES = (
    # few roundings of many elements: here a right row comes nearest to the bound
    *(
        _case(f"few pairs, D={d}", heads=(64, 64), lengths=(2, d + 1), dim=d, batch=32, seen="all", with_lse=True)
        for d in (1, 2)
    ),
    *(
        _case(f"small {seen}{', causal' if causal else ''}", heads=(h, 1), lengths=lengths, dim=dim, seen=seen,
              is_causal=causal, with_lse=True)
        for seen, h, lengths, dim, causal in (
            ("all", 1, (5, 6), 4, False), ("all", 2, (4, 3), 5, True), ("none", 1, (4, 4), 3, False),
            ("diagonal", 1, (9, 2), 2, True),
        )
    ),
    # head_dim around the vector widths
    *_table("D={dim}", "dim", WIDTHS, heads=(2, 1), lengths=(9, 140), seen="all", with_lse=lambda r: r["dim"] == 16),
    *_table("D={dim} causal", "dim", (64, 128, 256), heads=(2, 1), lengths=(140, 150), seen="all", is_causal=True,
            with_lse=lambda row: row["dim"] == 64),
    # lengths around the blocks
    *_table("Lq={lengths[0]} Lk={lengths[1]} density {seen}", "lengths seen", (
        ((127, 128), 1.0), ((128, 129), 0.5), ((129, 127), 0.7), ((1, 300), 0.6), ((300, 1), 0.6), ((256, 257), 0.5),
        ((65, 400), 0.6), ((200, 520), 0.4),
    ), dim=20, with_lse=lambda row: row["lengths"][0] > row["lengths"][1]),
    *_table("Lq={lengths[0]} Lk={lengths[1]} causal {seen}", "lengths seen", (
        ((130, 130), 1.0), ((260, 260), 0.6), ((128, 300), 0.7), ((300, 128), 0.7), ((257, 256), "diagonal"),
        ((1, 200), "all"),
    ), dim=24, is_causal=True, with_lse=lambda row: row["lengths"][0] >= row["lengths"][1]),
    *(
        _case(f"{seen}{', causal' if causal else ''}", lengths=(390, 400), dim=16, seen=seen, is_causal=causal,
              with_lse=True)
        for seen, causal in (
            ("all", False), ("none", False), ("none", True), ("holes", False), ("holes", True), ("far", False),
            ("far", True), ("diagonal", False), ("window", True), ("documents", False),
        )
    ),
    # one mask for all, one a batch, one a head, one for each
    *(
        _case(f"masks {of[0]}x{of[1]} of {h} heads on {hkv}", batch=2, heads=(h, hkv), lengths=(140, 260), dim=18,
              seen=0.5, of=of, is_causal=of == (2, 1), with_lse=of == (2, h))
        for h, hkv, of in ((3, 1, (1, 3)), (4, 2, (2, 4)), (2, 2, (2, 1)), (6, 2, (1, 1)), (4, 4, (2, 4)))
    ),
    _case("layouts", batch=2, heads=(4, 2), lengths=(150, 140), dim=24, seen=0.6, of=(2, 4), is_causal=True,
          layouts=True),
    _case("layouts, lse", heads=(2, 2), lengths=(11, 129), dim=16, seen="all", layouts=True, with_lse=True),
    _case("scale", lengths=(9, 130), dim=8, seen="all", scale=0.7),
    _case("negative scale", lengths=(130, 4), dim=8, seen="all", scale=-1.5, with_lse=True),
    _case("scale of 0", lengths=(140, 140), dim=8, scale=0.0, is_causal=True, seen=0.7),
    *_table("{kind}", "kind", KINDS, heads=(4, 2), lengths=(30, 150), dim=40, seen="all", with_lse=True,
            gradients=lambda row: row["kind"] == "tiny"),
    *(_odd(f"{value} in {tensor}", tensor, value) for tensor in ("query", "key", "value") for value in ODD_VALUES),
    _case("no queries", lengths=(0, 130)),
    _case("no keys", lengths=(3, 0), with_lse=True),
    _case("no batch", lengths=(3, 7), batch=0),
    _case("large", heads=(4, 2), lengths=(260, 390), dim=64, seen=0.6, of=(1, 4), is_causal=True),
)  # fmt: skip

# Enough tiles to fill a GPU, so that its kernels take the cuts they have for large inputs.
DEVICE_CASES = (
    *(
        _case(f"blocks D={dim} {h} on {hkv} {n}x{m} {seen} {'causal' if causal else ''}", heads=(h, hkv),
              lengths=(n, m), dim=dim, seen=seen, of=of, is_causal=causal, with_lse=True)
        for dim, h, hkv, n, m, seen, of, causal in (
            (128, 8, 8, 2048, 2048, 0.5, (1, 8), False), (128, 8, 2, 2048, 2048, 0.4, (1, 8), True),
            (128, 16, 4, 1500, 1111, 0.5, (1, 1), True), (128, 4, 4, 700, 3001, 0.2, (1, 4), False),
            (128, 8, 8, 2300, 2300, "window", (1, 1), False), (128, 4, 4, 2304, 2304, "documents", (1, 1), True),
            (128, 4, 2, 1400, 1400, "holes", (1, 1), False), (128, 4, 4, 1000, 1000, "all", (1, 1), False),
            (64, 8, 8, 2048, 2048, 0.5, (1, 8), False), (64, 8, 2, 2048, 2048, 0.4, (1, 8), True),
            (64, 8, 4, 1501, 1100, 0.5, (1, 1), True), (64, 4, 4, 700, 3001, 0.2, (1, 4), False),
            (64, 4, 4, 2304, 2304, "window", (1, 1), True), (64, 4, 2, 1400, 1400, "holes", (1, 1), False),
            (256, 4, 2, 900, 1200, 0.5, (1, 4), True), (256, 2, 2, 1030, 700, 0.6, (1, 1), False),
            # lists of more than 32 blocks, and groups of more than 32 heads
            (128, 2, 2, 4700, 300, 0.9, (1, 2), False), (64, 2, 1, 4230, 4200, 0.9, (1, 1), True),
            (64, 40, 1, 150, 300, 0.6, (1, 40), False),
        )
    ),
    _case("blocks of a batch, layouts", batch=2, heads=(4, 2), lengths=(700, 650), dim=64, seen=0.5, of=(2, 4),
          is_causal=True, with_lse=True, layouts=True),
    _case("blocks of a batch, layouts, D=128", batch=2, heads=(4, 4), lengths=(512, 640), dim=128, seen=0.5,
          of=(2, 1), with_lse=True, layouts=True),
)  # fmt: skip


BENCH_CASES = tuple(
    OF.timed_case(
        f"1x{h}x{n}x{dim} {label}", dtype, heads=(h, hkv), lengths=(n, n), dim=dim, seen=seen, is_causal=causal
    )
    for label, dtype, h, hkv, n, dim, seen, causal in (
        ("density 0.25", torch.float32, 8, 8, 1024, 64, 0.25, False),
        ("window causal", torch.bfloat16, 8, 2, 2048, 64, "window", True),
    )
)

DEVICE_BENCH_CASES = tuple(
    OF.timed_case(f"{b}x{h}x{n}x{dim} {label}", torch.bfloat16, batch=b, heads=(h, h), lengths=(n, n), dim=dim,
                  seen=seen, is_causal=causal)
    for label, b, h, n, dim, seen, causal in (
        ("density 0.1", 1, 16, 16384, 128, 0.1, False), ("density 0.5", 1, 16, 16384, 128, 0.5, False),
        ("window causal", 1, 16, 16384, 128, "window", True),
        ("documents causal", 1, 16, 16384, 128, "documents", True),
        ("density 0.25", 4, 16, 4096, 128, 0.25, False), ("density 0.25", 4, 16, 4096, 64, 0.25, False),
    )
)  # fmt: skip
