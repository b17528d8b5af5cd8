"""What attention promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.cases import draw, normal
from kernelworks.contract import (
    UNIT_ROUNDOFF,
    Case,
    Contract,
    Cost,
    Request,
    describe,
    need_dtype,
    need_same,
    need_tensor,
    rounding,
)

__all__ = ["CONTRACT", "MAX_DIM", "shift_of"]

MAX_DIM = 256
CAUSAL = (None, "top_left", "bottom_right")
U32 = UNIT_ROUNDOFF[torch.float32]
TILE = 64  # keys whose products are summed before they are added to a running sum


# ---------------------------------------------------------------- arguments


def _check_tensors(q: Any, k: Any, v: Any) -> None:
    for name, value in (("q", q), ("k", k), ("v", v)):
        need_tensor(name, value)
        need_dtype(name, value)
        if len(value.shape) != 4:
            raise ValueError(f"{name} must have four dimensions [B, H, L, D], got {describe(value)}")
    need_same("k", k, "q", q)
    need_same("v", v, "q", q)
    batch, heads, _, dim = q.shape
    if not 1 <= dim <= MAX_DIM:
        raise ValueError(f"q must have a head_dim of 1 to {MAX_DIM}, its last dimension; got {describe(q)}")
    if k.shape[0] != batch or k.shape[3] != dim:
        raise ValueError(f"k must have q's batch {batch} and head_dim {dim}, got {describe(k)}")
    if k.shape[1] < 1 or heads % k.shape[1] != 0:
        raise ValueError(f"k must have a number of heads that divides q's {heads}, got {describe(k)}")
    if tuple(v.shape) != tuple(k.shape):
        raise ValueError(f"v must have k's shape {list(k.shape)}, got {list(v.shape)}")


def check(
    q: Any, k: Any, v: Any, causal: Any = None, window: Any = None, scale: Any = None, mask: Any = None,
    with_lse: Any = False,
) -> None:  # fmt: skip
    _check_tensors(q, k, v)
    if causal not in CAUSAL:
        raise ValueError(f"causal must be None, 'top_left' or 'bottom_right', got {causal!r}")
    if window is not None:
        if isinstance(window, bool) or not isinstance(window, int):
            raise TypeError(f"window must be an int or None, got {describe(window)}")
        if window < 1:
            raise ValueError(f"window must be at least 1 (the query's own position), got {window}")
        if causal is None:
            raise ValueError("window needs causal='top_left' or 'bottom_right': without it no key is a query's own")
    if scale is not None:
        if isinstance(scale, bool) or not isinstance(scale, (int, float)):
            raise TypeError(f"scale must be a float or None, got {describe(scale)}")
        if not math.isfinite(scale):
            raise ValueError(f"scale must be finite, got {scale}")
    need_tensor("mask", mask, optional=True)
    if mask is not None:
        if mask.dtype != torch.bool:
            raise TypeError(f"mask must have dtype bool (True: the key is seen), got {describe(mask)}")
        full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        if len(mask.shape) != 4 or any(m not in (1, n) for m, n in zip(mask.shape, full, strict=True)):
            raise ValueError(f"mask must have shape {list(full)}, or 1 in any of them; got {list(mask.shape)}")
        if torch.device(mask.device).type != torch.device(q.device).type:
            raise ValueError(f"mask must be on q's device {q.device}, got {mask.device}")
    if not isinstance(with_lse, bool):
        raise TypeError(f"with_lse must be a bool, got {describe(with_lse)}")


def shift_of(causal: str | None, queries: int, keys: int) -> int:
    """Query i stands at key position i + shift: 0 where the first ones are aligned, Lk - Lq where the last ones are."""
    return keys - queries if causal == "bottom_right" else 0


# ---------------------------------------------------------------- the definition


def visible(q: Tensor, k: Tensor, causal: str | None, window: int | None, mask: Tensor | None) -> Tensor:
    """[B, H, Lq, Lk], True where a query sees a key."""
    queries, keys = q.shape[2], k.shape[2]
    position = torch.arange(queries, device=q.device).unsqueeze(1) + shift_of(causal, queries, keys)
    key = torch.arange(keys, device=q.device)
    seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
    if causal is not None:
        seen = key <= position
    if window is not None:
        seen = seen & (key > position - window)
    seen = seen.expand(q.shape[0], q.shape[1], queries, keys)
    return seen if mask is None else seen & mask


def _per_query_head(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def reference(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None = None, window: int | None = None, scale: float | None = None,
    mask: Tensor | None = None, with_lse: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    key, value = _per_query_head(k, q.shape[1]), _per_query_head(v, q.shape[1])
    seen = visible(q, k, causal, window, mask)
    scores = (q @ key.transpose(-1, -2) * factor).masked_fill(~seen, -torch.inf)
    any_seen = seen.any(-1, keepdim=True)
    # Where no key is seen softmax would give NaN, in the forward and in its derivative: take it of zeros, then drop it.
    weights = torch.softmax(scores.masked_fill(~any_seen, 0.0), -1) * any_seen
    output = weights @ value
    if not with_lse:
        return (output,)
    return output, torch.logsumexp(scores, -1).detach()


# ---------------------------------------------------------------- bounds


class _Terms:
    """What the bounds are made of, in float64. README.md derives them.

    ``inner="input"`` is for matrix units: weights and their derivatives are rounded to ``dtype`` before they are
    multiplied, and every addend of a product may lose its last place instead of half of it. Their float32 multiplies
    each number as two of 11 bits, without the product of the two small ones: 3 2^-22 = 12 u of a product.
    """

    def __init__(self, args: dict[str, Any], dtype: torch.dtype, inner: str) -> None:
        narrow = inner == "input" and dtype != torch.float32
        self.u_inner = UNIT_ROUNDOFF[dtype] if narrow else 0.0
        parts = inner == "input" and dtype == torch.float32
        self.tiny_parts = 2.0**-137 if parts else 0.0  # half of the smallest number of 11 bits and float32's exponent
        self.tiny_inner = torch.finfo(dtype).smallest_normal * UNIT_ROUNDOFF[dtype] if narrow else self.tiny_parts
        self.cut = 2 if inner == "input" else 1
        self.parts = 12 if parts else 0
        q, k, v = args["q"], args["k"], args["v"]
        self.scale = 1.0 / math.sqrt(q.shape[-1]) if args.get("scale") is None else args["scale"]
        self.q, self.k, self.v = q, _per_query_head(k, q.shape[1]), _per_query_head(v, q.shape[1])
        self.seen = visible(q, k, args.get("causal"), args.get("window"), args.get("mask"))
        dim, keys = q.shape[-1], k.shape[2]
        scores = (q @ self.k.transpose(-1, -2) * self.scale).masked_fill(~self.seen, -torch.inf)
        self.lse = torch.logsumexp(scores, -1, keepdim=True)
        any_seen = self.seen.any(-1, keepdim=True)
        self.p = torch.softmax(scores.masked_fill(~any_seen, 0.0), -1) * any_seen
        # |score| by magnitudes (a weight of exactly 0 has no error), and its largest in a row
        magnitudes = q.abs() @ self.k.abs().transpose(-1, -2) * abs(self.scale)
        self.a = magnitudes.masked_fill(scores == -torch.inf, 0.0)
        self.largest = self.a.amax(-1, keepdim=True) if keys else self.a.sum(-1, keepdim=True)
        self.tiles = keys / TILE + 1
        self.score_error = (self.cut * dim + 4 + self.parts) * U32 * self.a
        if self.tiny_parts:
            small = abs(self.scale) * self.left_out(q, self.k)
            self.score_error = self.score_error + torch.where(scores == -torch.inf, 0.0, small)
        weight_error = self.score_error + U32 * (4 * self.largest + 4 + 5 * (self.tiles + 1))
        self.x = torch.expm1(weight_error) * self.seen
        self.sums = (2 * self.cut * (TILE + self.tiles) + 8 + self.parts) * U32
        self.y = (self.p * self.x).sum(-1, keepdim=True) + self.sums  # of the softmax's denominator

    def left_out(self, a: Tensor, b: Tensor) -> Tensor | float:
        """What a b^T loses where numbers in float32 are too small for their second part."""
        if not self.tiny_parts:
            return 0.0
        return self.tiny_parts * (a.abs().sum(-1, keepdim=True) + b.abs().sum(-1).unsqueeze(-2))


def _output_error(t: _Terms, output: Tensor) -> Tensor:
    """How far from exact an output in float32 may be."""
    magnitude = t.p @ t.v.abs()
    rounded = t.u_inner * t.p * (1 + t.x) + t.tiny_inner * t.seen  # the largest weight is 1, so the sum is at least 1
    error = (t.p * t.x + rounded) @ t.v.abs() + t.sums * magnitude + output.abs() * t.y
    largest = (t.v.abs().amax(2, keepdim=True) if t.v.shape[2] else t.v.abs().sum(2, keepdim=True)).expand_as(output)
    # Weights are positive and add up to 1 (but for `sums` and their rounding), however wrong they are.
    keys = t.k.shape[2]
    most = 2 + 2 * t.sums + t.u_inner + keys * t.tiny_inner
    error = torch.where(t.y < 0.5, error / (1 - t.y), torch.inf).minimum(most * largest)
    return error + t.tiny_parts + keys * 2.0**-148 * largest + (keys + 8) * 2.0**-149


def bound(
    args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype, inner: str = "float32"
) -> tuple[Tensor, ...]:
    t = _Terms(args, dtype, inner)
    bounds = [rounding(outputs[0], dtype) + _output_error(t, outputs[0])]
    if len(outputs) == 2:
        bounds.append(_lse_error(t).squeeze(-1))
    return tuple(bounds)


def _lse_error(t: _Terms) -> Tensor:
    magnitude = t.lse.abs().nan_to_num(posinf=0.0)
    error: Tensor = -torch.log1p(-t.y.clamp(max=0.9)) + 8 * U32 * (magnitude + t.largest + 1)
    return error


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype,
    inner: str = "float32",
) -> dict[str, Tensor]:  # fmt: skip
    t, g = _Terms(args, dtype, inner), grads[0]
    dim, queries, groups = t.q.shape[-1], t.q.shape[2], t.q.shape[1] // args["k"].shape[1]
    output = t.p @ t.v
    # P = exp(S - lse), with lse rounded to float32
    lse = t.lse.abs().nan_to_num(posinf=0.0)
    x = torch.expm1(t.score_error + U32 * (4 * (t.largest + lse) + 8) + _lse_error(t)) * t.seen
    dp = g @ t.v.transpose(-1, -2)
    dp_error = (t.cut * dim + 2 + t.parts) * U32 * (g.abs() @ t.v.abs().transpose(-1, -2)) + t.left_out(g, t.v)
    delta = (g * output).sum(-1, keepdim=True)
    saved = rounding(output, dtype) + _output_error(t, output)
    delta_error = (g.abs() * saved).sum(-1, keepdim=True)
    delta_error = delta_error + (dim + 2) * U32 * (g.abs() * (output.abs() + saved)).sum(-1, keepdim=True)
    ds = t.p * (dp - delta)
    ds_error = t.p * ((x + 3 * U32) * (dp - delta).abs() + (1 + x) * (dp_error + delta_error))
    keys_chain = (t.cut * (TILE + t.tiles) + 6 + t.parts) * U32
    rows_chain = (t.cut * (TILE + groups * queries / TILE) + 8 + t.parts) * U32
    ds_error = ds_error + t.u_inner * (ds.abs() + ds_error) + t.tiny_inner * t.seen
    p_error = t.p * x + t.u_inner * t.p * (1 + x) + t.tiny_inner * t.seen
    ds_keys, ds_rows = ds_error + keys_chain * ds.abs(), ds_error + rows_chain * ds.abs()
    found = {
        "q": abs(t.scale) * (ds_keys @ t.k.abs() + t.tiny_parts * ds.abs().sum(-1, keepdim=True)),
        "k": abs(t.scale) * (ds_rows.mT @ t.q.abs() + t.tiny_parts * ds.abs().sum(-2).unsqueeze(-1)),
        "v": (p_error + t.p * rows_chain).mT @ g.abs() + t.tiny_parts * t.p.sum(-2).unsqueeze(-1),
    }
    for name in ("k", "v"):
        found[name] = found[name].unflatten(1, (-1, groups)).sum(2)
    tiny = 2.0**-148 * (groups * queries + t.k.shape[2] + dim)
    return {name: rounding(value, dtype) + found[name] + tiny for name, value in gradients.items()}


# ---------------------------------------------------------------- cost


def _clamped_sum(start: int, n: int, top: int) -> int:
    """The sum of clamp(start + i, 0, top) over 0 <= i < n."""
    low, high = max(0, min(n, -start)), max(0, min(n, top - start))
    return (high - low) * (2 * start + low + high - 1) // 2 + (n - high) * top


def seen_pairs(queries: int, keys: int, causal: str | None, window: int | None) -> int:
    """How many (query, key) pairs causal and window leave."""
    if causal is None:
        return queries * keys
    start = shift_of(causal, queries, keys) + 1
    hidden = 0 if window is None else _clamped_sum(start - window, queries, keys)
    return _clamped_sum(start, queries, keys) - hidden


def cost(request: Request) -> Cost:
    q, k, v, mask = (request.args[name] for name in ("q", "k", "v", "mask"))
    batch, heads, queries, dim = q.shape
    pairs = batch * heads * seen_pairs(queries, k.shape[2], request.args["causal"], request.args["window"])
    read = q.nbytes + k.nbytes + v.nbytes + (mask.nbytes if mask is not None else 0)
    if request.pass_ == "backward":  # five products of 2 D flop a pair; reads grad and output besides
        lse = 4.0 * batch * heads * queries
        return Cost(10.0 * dim * pairs, pairs, read + 2 * q.nbytes + lse, q.nbytes + k.nbytes + v.nbytes)
    return Cost(4.0 * dim * pairs, pairs, read, q.nbytes)


def is_plain(causal: str | None, window: int | None, mask: Any, q: Any, k: Any) -> bool:
    """Whether scaled_dot_product_attention says it with ``is_causal``, without a mask."""
    return mask is None and window is None and (causal != "bottom_right" or q.shape[2] == k.shape[2])


def dims(request: Request) -> dict[str, int]:
    q, k = request.args["q"], request.args["k"]
    return {
        "B": q.shape[0], "H": q.shape[1], "Hkv": k.shape[1], "Lq": q.shape[2], "Lk": k.shape[2], "D": q.shape[3],
        "rows": q.shape[0] * q.shape[1] * q.shape[2], "lse": int(request.args.get("with_lse", True)),
        "plain": int(is_plain(request.args["causal"], request.args["window"], request.args["mask"], q, k)),
        "causal": int(request.args["causal"] is not None),
    }  # fmt: skip


# ---------------------------------------------------------------- cases


def _make(
    generator: Generator, dtype: torch.dtype, heads: tuple[int, int] = (2, 2), lengths: tuple[int, int] = (5, 5),
    dim: int = 16, batch: int = 1, kind: str = "normal", **options: Any,
) -> dict[str, Any]:  # fmt: skip
    q = draw(kind if kind != "large" else "normal", generator, dtype, batch, heads[0], lengths[0], dim)
    k = normal(generator, dtype, batch, heads[1], lengths[1], dim)
    v = draw(kind if kind != "large" else "normal", generator, dtype, batch, heads[1], lengths[1], dim)
    if kind == "large":
        q, k = q * 30, k * 30
    defaults = {"causal": None, "window": None, "scale": None, "mask": None, "with_lse": False}
    return {"q": q, "k": k, "v": v} | defaults | options


def _case(name: str, *, gradients: bool = True, layouts: bool = False, **made: Any) -> Case:
    return Case(name, lambda g, d: _make(g, d, **made), gradients=gradients, layouts=layouts)


def _masked(name: str, shape: tuple[int, int, int, int], hide: tuple[int, ...] = (), **made: Any) -> Case:
    """A random mask of this shape; the queries in ``hide`` see nothing at all."""

    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        args = _make(generator, dtype, **made)
        mask = torch.rand(*shape, generator=generator) < 0.6
        for query in hide:
            mask[:, :, query] = False
        return args | {"mask": mask}

    return Case(name, make, layouts=name == "mask per query")


def _special(name: str, tensor: str, value: float, dim: int = 33) -> Case:
    """One NaN or infinity, where every query sees it."""

    def make(generator: Generator, dtype: torch.dtype, queries: int = 19) -> dict[str, Any]:
        args = _make(generator, dtype, heads=(4, 2), lengths=(queries, 70), dim=dim, with_lse=tensor == "v")
        args[tensor][0, 1, 11, 32] = value
        return args

    return Case(name, make, gradients=False)


CASES = (
    # head_dim around the vector widths, for many queries and for one
    *(_case(f"D={d}", heads=(4, 2), lengths=(19, 37), dim=d) for d in (1, 3, 8, 15, 16, 17, 33, 64, 80, 127, 128, 256)),
    *(_case(f"decode D={d}", heads=(4, 1), lengths=(1, 70), dim=d) for d in (1, 7, 16, 31, 96, 128, 129, 256)),
    # lengths around the tiles of 64 keys and 64 rows
    *(
        _case(f"Lq={n} Lk={m} causal", lengths=(n, m), dim=20, causal="top_left")
        for n, m in ((9, 9), (63, 64), (64, 64), (65, 65), (129, 131), (33, 200), (200, 33))
    ),
    *(
        _case(f"Lq={n} Lk={m} bottom right", lengths=(n, m), dim=24, causal="bottom_right", with_lse=True)
        for n, m in ((1, 65), (3, 64), (17, 130), (128, 128), (70, 40))
    ),
    *(_case(f"Lk={m}", heads=(2, 1), lengths=(1, m), dim=40) for m in (0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 509)),
    *(
        _case(f"{h} heads on {hkv}, Lq={n}", heads=(h, hkv), lengths=(n, 45), dim=18, causal="bottom_right")
        for h, hkv, n in ((3, 1, 1), (6, 2, 2), (8, 1, 1), (9, 1, 1), (10, 2, 40), (5, 5, 8))
    ),
    *(
        _case(f"window {w} {causal}, Lq={n} Lk={m}", lengths=(n, m), dim=16, causal=causal, window=w)
        for w, causal, n, m in (
            (1, "top_left", 20, 20),
            (5, "top_left", 70, 70),
            (64, "bottom_right", 140, 150),
            (17, "bottom_right", 1, 90),
            (7, "bottom_right", 3, 100),
            (4, "top_left", 30, 10),
            (100, "bottom_right", 20, 30),
        )
    ),
    _masked("mask of padding", (2, 1, 1, 70), heads=(4, 2), lengths=(21, 70), dim=32, batch=2),
    _masked("mask per query", (2, 4, 21, 70), (3,), heads=(4, 2), lengths=(21, 70), dim=32, batch=2),
    _masked("mask and causal", (1, 1, 33, 33), (7, 32), heads=(2, 2), lengths=(33, 33), dim=16, causal="top_left"),
    _masked("mask, decode", (2, 1, 1, 70), heads=(4, 2), lengths=(1, 70), dim=32, batch=2, with_lse=True),
    _masked("mask hides all, decode", (1, 1, 2, 20), (0, 1), heads=(4, 2), lengths=(2, 20), dim=8),
    _case("layouts, prefill", heads=(4, 2), lengths=(23, 29), dim=24, batch=2, causal="top_left", layouts=True),
    _case("layouts, decode", heads=(4, 2), lengths=(1, 29), dim=24, batch=2, layouts=True, with_lse=True),
    _case("scale", lengths=(9, 12), dim=8, scale=0.7),
    _case("scale, decode", lengths=(1, 12), dim=8, scale=-1.5),
    *(
        _case(
            f"{kind} Lq={n}", heads=(4, 2), lengths=(n, 100), dim=40, kind=kind, with_lse=True, gradients=kind == "tiny"
        )
        for kind in ("tiny", "subnormal", "large", "large_mean", "constant", "zeros")
        for n in (1, 30)
    ),
    *(
        _special(f"{value} in {tensor}", tensor, value)
        for tensor in ("q", "k", "v")
        for value in (math.inf, -math.inf, math.nan)
    ),
    _case("no queries", lengths=(0, 7)),
    _case("no batch", lengths=(3, 7), batch=0),
    _case("large prefill", heads=(4, 2), lengths=(160, 160), dim=64, causal="top_left"),
    _case("large decode", heads=(4, 2), lengths=(1, 1100), dim=64),
)

# Enough tiles to fill a GPU, so that its kernels take the cuts they have for large inputs.
DEVICE_CASES = (
    _case("tiles, causal", heads=(32, 8), lengths=(400, 400), dim=128, batch=2, causal="top_left", with_lse=True),
    _case("tiles, D=64 bottom right", heads=(16, 4), lengths=(257, 777), dim=64, batch=4, causal="bottom_right"),
    _case("tiles, whole", heads=(48, 48), lengths=(384, 512), dim=128, with_lse=True, gradients=False),
    _case("tiles, whole, gradients", heads=(6, 2), lengths=(333, 450), dim=128, batch=2),
    _case("tiles, D=64 causal, gradients", heads=(8, 8), lengths=(520, 520), dim=64, causal="top_left"),
    _case("tiles, more queries than keys", heads=(24, 24), lengths=(700, 300), dim=128, causal="bottom_right"),
    _case("tiles, window", heads=(48, 16), lengths=(300, 300), dim=128, causal="top_left", window=100),
    _case("tiles, D=64 whole", heads=(33, 11), lengths=(384, 500), dim=64, batch=4, with_lse=True, gradients=False),
    _case("tiles, D=64 one a head", heads=(66, 66), lengths=(250, 260), dim=64, batch=4, gradients=False),
    _case("tiles, D=64 few", heads=(4, 2), lengths=(100, 300), dim=64, causal="bottom_right", scale=0.3, with_lse=True),
    _case(
        "tiles, D=64 causal", heads=(66, 22), lengths=(250, 260), dim=64, batch=4, causal="top_left", gradients=False
    ),
    _case("tiles, D=64 long", heads=(16, 4), lengths=(3100, 3100), dim=64, causal="top_left", gradients=False),
    _case("tiles, layouts", heads=(4, 2), lengths=(130, 150), dim=64, batch=2, causal="bottom_right", layouts=True),
    *(
        _case(f"tiles, {kind}", heads=(4, 2), lengths=(70, 200), dim=64, kind=kind, with_lse=True, gradients=False)
        for kind in ("tiny", "subnormal", "large", "large_mean", "constant", "zeros")
    ),
    *(_special(f"tiles, {value} in {tensor}", tensor, value, 64) for tensor in "qkv" for value in (math.inf, math.nan)),
    _case("tiles, drawn", heads=(72, 9), lengths=(200, 8192), dim=128, causal="bottom_right", gradients=False),
    _case("tiles, scale", heads=(48, 16), lengths=(300, 260), dim=64, scale=-0.2),
    _masked("tiles, mask", (1, 64, 300, 130), (5, 299), heads=(64, 8), lengths=(300, 130), dim=80),
    _case("decode, split", heads=(32, 8), lengths=(1, 8192), dim=128, with_lse=True),
    _case("decode, many pairs", heads=(32, 8), lengths=(1, 512), dim=128, batch=40),
    _case("few queries, split", heads=(8, 2), lengths=(4, 3001), dim=128, causal="bottom_right", window=2500),
)

BENCH_CASES = tuple(
    Case(
        f"Hq{h} Hkv{hkv} {n}x{m} D128{' causal' if causal else ''}",
        lambda g, d, h=h, hkv=hkv, n=n, m=m, causal=causal: _make(  # type: ignore[misc]
            g, d, heads=(h, hkv), lengths=(n, m), dim=128, causal=causal
        ),
        dtypes=(dtype,),
    )
    for dtype, h, hkv, n, m, causal in (
        (torch.bfloat16, 32, 8, 1, 4096, None),
        (torch.bfloat16, 8, 8, 1, 16384, None),
        (torch.float32, 32, 8, 1, 4096, None),
        (torch.float32, 8, 8, 1024, 1024, "top_left"),
        (torch.bfloat16, 16, 8, 512, 512, "top_left"),
        (torch.float32, 12, 12, 128, 128, None),
    )
)

# On a GPU: sizes that fill one, and one that only its host time limits.
DEVICE_BENCH_CASES = tuple(
    Case(
        f"B{b} Hq{h} Hkv{hkv} {n}x{m} D128{' causal' if causal else ''}",
        lambda g, d, b=b, h=h, hkv=hkv, n=n, m=m, causal=causal: _make(  # type: ignore[misc]
            g, d, heads=(h, hkv), lengths=(n, m), dim=128, batch=b, causal=causal
        ),
        dtypes=(torch.bfloat16,),
    )
    for b, h, hkv, n, m, causal in (
        (1, 32, 8, 1, 8192, None),
        (32, 32, 8, 1, 4096, None),
        (128, 32, 8, 1, 2048, None),
        (4, 16, 16, 4096, 4096, "top_left"),
        (1, 16, 16, 8192, 8192, "top_left"),
    )
)


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        return {"q": torch.ones(1, 4, 3, 8), "k": torch.ones(1, 2, 5, 8), "v": torch.ones(1, 2, 5, 8)} | changed

    return make


ERRORS = (
    ("q is not a tensor", _with(q=[1.0]), TypeError, "q must be a torch.Tensor"),
    ("k of another dtype", _with(k=torch.ones(1, 2, 5, 8).half()), TypeError, "k must have q's dtype"),
    ("integer v", _with(v=torch.ones(1, 2, 5, 8, dtype=torch.int64)), TypeError, "v must have dtype"),
    ("three dimensions", _with(q=torch.ones(4, 3, 8)), ValueError, "q must have four dimensions"),
    ("head_dim too large", _with(q=torch.ones(1, 4, 3, 257)), ValueError, "q must have a head_dim of 1 to 256"),
    ("heads that do not divide", _with(q=torch.ones(1, 3, 3, 8)), ValueError, "divides q's 3"),
    ("another head_dim", _with(k=torch.ones(1, 2, 5, 9)), ValueError, "k must have q's batch 1 and head_dim 8"),
    ("another length of v", _with(v=torch.ones(1, 2, 4, 8)), ValueError, "v must have k's shape"),
    ("causal as a bool", _with(causal=True), ValueError, "causal must be None"),
    ("window of 0", _with(causal="top_left", window=0), ValueError, "window must be at least 1"),
    ("window as a float", _with(causal="top_left", window=2.0), TypeError, "window must be an int"),
    ("window without causal", _with(window=4), ValueError, "window needs causal"),
    ("scale that is no number", _with(scale="1"), TypeError, "scale must be a float"),
    ("infinite scale", _with(scale=math.inf), ValueError, "scale must be finite"),
    ("additive mask", _with(mask=torch.zeros(1, 1, 3, 5)), TypeError, "mask must have dtype bool"),
    ("mask of another shape", _with(mask=torch.ones(1, 1, 3, 4, dtype=torch.bool)), ValueError, "mask must have shape"),
)

CONTRACT = Contract(
    name="attention",
    family="attention",
    formula="output = softmax(scale q k^T, over the keys that a query sees) v; 0 for a query that sees none",
    source="Vaswani et al., Attention Is All You Need, 2017 (arXiv:1706.03762)",
    outputs=("output", "lse"),
    differentiable=("q", "k", "v"),
    check=check,
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    bucket=lambda request: {"D": request.args["q"].shape[3]},  # each has kernels of its own, in torch as here
    cases=CASES,
    bench_cases=BENCH_CASES,
    device_cases=DEVICE_CASES,
    device_bench_cases=DEVICE_BENCH_CASES,
    errors=ERRORS,
)
