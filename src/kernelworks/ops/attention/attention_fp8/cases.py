"""What attention_fp8 is tried on, and what it is measured on."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case
from kernelworks.templates.attention.cases import CaseMaker

__all__ = ["BENCH_CASES", "CASES", "DEVICE_BENCH_CASES", "DEVICE_CASES", "EIGHT", "NAMES", "quantize_heads"]

EIGHT = torch.float8_e4m3fn
LARGEST = 448.0
NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in (torch.bfloat16, torch.float16, torch.float32)}


def quantize_heads(x: Tensor, descale: Tensor, heads: int) -> Tensor:
    """[B, H, L, D] over the scale of each head's group, in 8 bits."""
    each = descale.expand(x.shape[0], heads).repeat_interleave(x.shape[1] // heads, 1)[..., None, None]
    return (x / each).clamp(-LARGEST, LARGEST).to(EIGHT)


def _found(key: Tensor, heads: int, queries: int, shift: int, generator: Generator) -> Tensor:
    """Queries that each look for one of the keys that they may see."""
    keys = key.shape[2]
    last = (torch.arange(queries, device=key.device) + 1 + shift).clamp(1, keys)
    batch = key.shape[0]
    place = (torch.rand(batch, heads, queries, generator=generator, device=key.device) * last).long()
    every = key.repeat_interleave(heads // key.shape[1], 1)
    return 3 * every.gather(2, place[..., None].expand(*place.shape, key.shape[3]))


def _make(
    generator: Generator, dtype: torch.dtype, heads: tuple[int, int] = (2, 2), lengths: tuple[int, int] = (5, 5),
    dim: int = 128, batch: int = 1, kind: str = "normal", of: str = "each", causal: str | None = None,
    scale: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """``dtype``: of the output. ``of``: a scale for each batch and head of keys, for each head, or one for all."""

    def drawn(heads: int, length: int) -> Tensor:
        return torch.randn(batch, heads, length, dim, generator=generator)

    shape = {"each": (batch, heads[1]), "head": (1, heads[1]), "one": ()}[of]
    small = torch.rand(shape, generator=generator) * 0.02 + 0.005
    descales = [small, small.flip(-1) * 0.7 if shape else small * 0.7, small * 1.3]
    q, k, v = drawn(heads[0], lengths[0]), drawn(heads[1], lengths[1]), drawn(heads[1], lengths[1])
    if kind == "needles":
        shift = lengths[1] if causal is None else lengths[1] - lengths[0] if causal == "bottom_right" else 0
        q = _found(k, heads[0], lengths[0], shift, generator)
    elif kind == "steep":
        q = q * 20
    elif kind == "flat":
        q = q * 0
    elif kind == "constant":
        q, k, v = (t * 0 + 1.5 for t in (q, k, v))
    elif kind == "full":  # the ends of the range
        q, k, v = (t.sign() * 1e6 for t in (q, k, v))
        descales[0] = descales[0] * 1e-2
    elif kind == "subnormal":
        q, k, v = (t * d.max() * 2.0**-8 for t, d in zip((q, k, v), descales, strict=True))
    elif kind == "far scales":  # their product is far below float32's smallest
        descales = [small * 1e-30, small * 1e-30, small * 1e30]
        q, k, v = (t * d.max() for t, d in zip((q, k, v), descales, strict=True))
    eight = (quantize_heads(t, d, heads[1]) for t, d in zip((q, k, v), descales, strict=True))
    named = dict(zip(("q", "k", "v"), eight, strict=True))
    named |= dict(zip(("q_descale", "k_descale", "v_descale"), descales, strict=True))
    return named | {"causal": causal, "scale": scale, "out_dtype": NAMES[dtype]}


OF = CaseMaker(_make)
_case, _table = OF.case, OF.table


def _nan(name: str, tensor: str, key: int = 11, **made: Any) -> Case:
    """One, where every query of its head sees it."""
    return OF.odd_value(name, tensor, math.nan, lambda args: (0, 1, key, 32), gradients=True, **made)


CASES = (
    _case("small", heads=(4, 2), lengths=(19, 37)),
    *_table("D={dim}", "dim", (1, 3, 16, 33, 64, 80, 127, 256), heads=(4, 2), lengths=(19, 37)),
    *_table("D={dim} causal", "dim", (17, 64, 256), heads=(2, 1), lengths=(30, 40), causal="top_left"),
    # lengths around the tiles of 128 queries and 128 keys, and around the 16 keys that lie in an order of their own
    *(_case(f"Lk={m} {k}", lengths=(3, m), kind=k) for k in ("normal", "needles") for m in (1, 15, 16, 17, 127, 129)),
    *_table("Lq={lengths[0]} Lk={lengths[1]} {kind} {causal}", "lengths kind causal", (
        ((127, 128), "needles", None), ((128, 255), "normal", None), ((129, 257), "needles", None),
        ((1, 300), "needles", None), ((65, 200), "needles", "bottom_right"), ((128, 128), "needles", "top_left"),
        ((140, 140), "normal", "top_left"), ((257, 130), "needles", "top_left"), ((200, 90), "normal", "bottom_right"),
        ((130, 260), "needles", "bottom_right"), ((150, 400), "normal", "top_left"),
        ((1, 77), "normal", "bottom_right"),
    ), heads=(2, 1)),
    *_table("scales of {of}, {heads[0]} heads on {heads[1]}", "heads of kind", (
        ((3, 1), "each", "normal"), ((6, 2), "head", "needles"), ((4, 4), "one", "normal"), ((4, 2), "each", "needles"),
    ), batch=2, lengths=(9, 45), causal="bottom_right"),
    *(
        _case(f"{kind} Lk={m}", heads=(4, 2), lengths=(30, m), kind=kind)
        for kind in ("steep", "flat", "constant", "full", "subnormal", "far scales")
        for m in (100, 290)
    ),
    _case("layouts", heads=(4, 2), lengths=(40, 150), batch=2, causal="top_left", layouts=True, kind="needles"),
    _case("layouts D=24", heads=(4, 2), lengths=(23, 29), dim=24, batch=2, layouts=True),
    _case("scale", lengths=(9, 120), scale=0.005, kind="needles"),
    _case("negative scale", lengths=(9, 12), dim=8, scale=-1.5),
    _case("scale of 0", lengths=(9, 12), scale=0.0),
    *(_nan(f"nan in {tensor}", tensor, heads=(4, 2), lengths=(19, 70)) for tensor in "qkv"),
    _case("no queries", lengths=(0, 7)),
    _case("no keys", lengths=(3, 0)),
    _case("no batch", lengths=(3, 7), batch=0),
    _case("large", heads=(4, 2), lengths=(260, 390), kind="needles", causal="bottom_right"),
)  # fmt: skip

# Enough tiles to fill a GPU, several bands of heads, tiles that are drawn.
DEVICE_CASES = (
    *_table("tiles {batch}x{heads[0]}on{heads[1]} {lengths[0]}x{lengths[1]} {kind} {causal}",
            "batch heads lengths kind causal", (
        (1, (2, 1), (333, 450), "normal", None), (1, (8, 2), (577, 901), "needles", None),
        (2, (6, 3), (515, 515), "normal", "top_left"), (2, (6, 3), (515, 515), "needles", "top_left"),
        (3, (40, 8), (257, 321), "needles", "bottom_right"), (40, (8, 8), (250, 129), "normal", None),
        (1, (72, 9), (150, 1100), "needles", "bottom_right"), (1, (2, 2), (1000, 17), "normal", "top_left"),
        (1, (4, 4), (130, 700), "normal", "bottom_right"), (1, (4, 4), (1500, 1500), "needles", "top_left"),
        (1, (4, 2), (1536, 1536), "normal", None), (1, (2, 1), (300, 20000), "needles", None),
        (1, (2, 2), (2600, 2600), "needles", "top_left"), (1, (8, 8), (1024, 1024), "steep", None),
    )),
    # heads whose keys do not fit L2 together, so that bands are drawn from
    _case("bands", batch=2, heads=(68, 68), lengths=(140, 1000), kind="needles", causal="bottom_right"),
    *(
        _nan(f"nan in {tensor} {key}, other tiles", tensor, key, batch=2, heads=(40, 8), lengths=(257, 321))
        for tensor, key in (("q", 200), ("k", 121), ("k", 248), ("v", 127))
    ),
    _case("layouts of tiles", batch=2, heads=(4, 2), lengths=(700, 650), causal="bottom_right", layouts=True,
          kind="needles"),
)  # fmt: skip


BENCH_CASES = tuple(
    OF.timed_case(
        f"1x{h}({hkv})x{n}x128 {causal or 'whole'}", torch.bfloat16, heads=(h, hkv), lengths=(n, n), causal=causal
    )
    for h, hkv, n, causal in ((8, 8, 512, None), (8, 2, 512, "top_left"))
)

DEVICE_BENCH_CASES = tuple(
    OF.timed_case(f"{b}x{h}({hkv})x{n}x128 {causal or 'whole'}", torch.bfloat16, batch=b, heads=(h, hkv),
                  lengths=(n, n), causal=causal)
    for b, h, hkv, n in ((4, 16, 16, 4096), (2, 32, 8, 8192), (1, 16, 16, 16384))
    for causal in (None, "top_left")
)  # fmt: skip
