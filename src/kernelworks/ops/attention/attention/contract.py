"""What attention promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import (
    UNIT_ROUNDOFF,
    Contract,
    Cost,
    Request,
    rounding,
)
from kernelworks.contract.arguments import Arguments, Flag, Number, Word, check_of, errors_of, need_int
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import GivenArguments, T, Wrong
from kernelworks.ops.attention.attention.cases import BENCH_CASES, CASES, DEVICE_BENCH_CASES, DEVICE_CASES

__all__ = ["CONTRACT", "MAX_DIM", "shift_of"]

MAX_DIM = 256
CAUSAL = (None, "top_left", "bottom_right")
U32 = UNIT_ROUNDOFF[torch.float32]
TILE = 64  # keys whose products are summed before they are added to a running sum
CAP = 12  # roundings of a capped score: two of score / softcap, eight of tanh, two of what it is multiplied by


# ---------------------------------------------------------------- arguments

SCALE = Number(least=None, finite=True, optional=True)  # of scores


@dataclass(frozen=True)
class Window:
    """How many keys up to its own position a query sees, at least that one; None for all. Needs a ``causal`` order."""

    schema = "int?"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if value is None:
            return
        need_int(name, value, " or None")
        if value < 1:
            raise ValueError(f"{name} must be at least 1 (the query's own position), got {value}")
        if given["causal"] is None:
            raise ValueError(f"{name} needs causal='top_left' or 'bottom_right': without it no key is a query's own")

    def right(self, given: GivenArguments) -> Any:
        return None

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} of 0", 0, ValueError, f"{name} must be at least 1"
        yield f"{name} as a float", 2.0, TypeError, f"{name} must be an int"
        yield f"{name} without causal", 4, ValueError, f"{name} needs causal"

    def __str__(self) -> str:
        return "a number of keys of at least 1, or None"


ARGUMENTS: Arguments = {
    "q": T("B H Lq D", where=("1 <= D <= 256",)),
    "k": T("B Hkv Lk D", like="q", where=("divides(Hkv, H)",)),
    "v": T("B Hkv Lk D", like="q"),
    "causal": Word("top_left", "bottom_right", optional=True), "window": Window(), "scale": SCALE,
    "mask": T("B|1 H|1 Lq|1 Lk|1", dtypes=(torch.bool,), optional=True), "with_lse": Flag(),
    "softcap": Number(least=None, above=0.0, finite=True, optional=True),
    "sinks": T("H", like="q", optional=True),
}  # fmt: skip
check = check_of(ARGUMENTS, dict.fromkeys(ARGUMENTS) | {"with_lse": False})


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
    return x.repeat_interleave(heads // max(x.shape[1], 1), dim=1)


def with_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """Scores with one more behind the last key's, which has no value."""
    return torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], -1)


def _weights(scores: Tensor, seen: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax, of the keys alone."""
    if sinks is not None:
        return torch.softmax(scores, -1)[..., :-1]
    any_seen = seen.any(-1, keepdim=True)
    # Where no key is seen softmax would give NaN, in the forward and in its derivative: take it of zeros, then drop it.
    return torch.softmax(scores.masked_fill(~any_seen, 0.0), -1) * any_seen


def apply_softcap(scores: Tensor, softcap: float | None) -> Tensor:
    """Scores bent so that none passes ``softcap`` in magnitude."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def reference(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None = None, window: int | None = None, scale: float | None = None,
    mask: Tensor | None = None, with_lse: bool = False, softcap: float | None = None, sinks: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    key, value = _per_query_head(k, q.shape[1]), _per_query_head(v, q.shape[1])
    seen = visible(q, k, causal, window, mask)
    scores = apply_softcap(q @ key.transpose(-1, -2) * factor, softcap).masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = with_sinks(scores, sinks)
    output = _weights(scores, seen, sinks) @ value
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
        self.flushed = 2.0**-126 if inner == "input" else 0.0  # what a GPU's exponential gives as 0
        self.cut = 2 if inner == "input" else 1
        self.parts = 12 if parts else 0
        q, k, v = args["q"], args["k"], args["v"]
        self.scale = 1.0 / math.sqrt(q.shape[-1]) if args.get("scale") is None else args["scale"]
        self.q, self.k, self.v = q, _per_query_head(k, q.shape[1]), _per_query_head(v, q.shape[1])
        self.seen = visible(q, k, args.get("causal"), args.get("window"), args.get("mask"))
        dim, keys, self.softcap = q.shape[-1], k.shape[2], args.get("softcap")
        plain = q @ self.k.transpose(-1, -2) * self.scale
        scores = apply_softcap(plain, self.softcap).masked_fill(~self.seen, -torch.inf)
        self.sinks = args.get("sinks")
        summed = scores if self.sinks is None else with_sinks(scores, self.sinks)
        self.lse = torch.logsumexp(summed, -1, keepdim=True)
        self.p = _weights(summed, self.seen, self.sinks)
        # |score| by magnitudes (a weight of exactly 0 has no error), and its largest in a row
        magnitudes = q.abs() @ self.k.abs().transpose(-1, -2) * abs(self.scale)
        self.a = magnitudes.masked_fill(scores == -torch.inf, 0.0)
        self.largest = self.a.amax(-1, keepdim=True) if keys else self.a.sum(-1, keepdim=True)
        self.tiles = keys / TILE + 1
        self.score_error = (self.cut * dim + 4 + self.parts) * U32 * self.a
        if self.tiny_parts:
            small = abs(self.scale) * self.left_out(q, self.k)
            self.score_error = self.score_error + torch.where(scores == -torch.inf, 0.0, small)
        if self.softcap is not None:
            self.slope, self.slope_error = self._bend(plain, self.softcap)
            self.largest = self.largest.clamp(max=self.softcap)
        if self.sinks is not None:
            self.largest = self.largest.maximum(self.sinks.abs()[:, None, None])
        weight_error = self.score_error + U32 * (4 * self.largest + 4 + 5 * (self.tiles + 1))
        self.x = torch.expm1(weight_error) * self.seen
        addends = min(keys + (self.sinks is not None), TILE)  # where there are fewer, a tile's others are 0: exact
        self.sums = (2 * self.cut * (addends + self.tiles) + 8 + self.parts) * U32
        self.y = (self.p * self.x).sum(-1, keepdim=True) + self.sums  # of the softmax's denominator
        if self.sinks is not None:  # whose own score is exact, but for what all weights have
            own = torch.expm1(U32 * (4 * self.largest + 4 + 5 * (self.tiles + 1)))
            self.y = self.y + (1 - self.p.sum(-1, keepdim=True)) * own

    def _bend(self, plain: Tensor, softcap: float) -> tuple[Tensor, Tensor]:
        """Makes ``score_error`` that of the capped scores; gives the cap's slope, and its error. The cap rises all the
        way: what an error of a score makes of it is found at the error's two ends."""
        t, e = apply_softcap(plain, softcap), self.score_error
        error = (
            torch.maximum(apply_softcap(plain + e, softcap) - t, t - apply_softcap(plain - e, softcap))
            + CAP * U32 * t.abs()
        )
        self.score_error = error * self.seen
        share, off = t / softcap, self.score_error / softcap
        return 1 - share.square(), 2 * share.abs() * off + off.square() + 3 * U32

    def left_out(self, a: Tensor, b: Tensor) -> Tensor | float:
        """What a b^T loses where numbers in float32 are too small for their second part."""
        if not self.tiny_parts:
            return 0.0
        return self.tiny_parts * (a.abs().sum(-1, keepdim=True) + b.abs().sum(-1).unsqueeze(-2))


def _output_error(t: _Terms, output: Tensor) -> Tensor:
    """How far from exact an output in float32 may be."""
    magnitude = t.p @ t.v.abs()
    # the largest weight is 1, so the sum is at least 1
    rounded = t.u_inner * t.p * (1 + t.x) + (t.tiny_inner + t.flushed) * t.seen
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
    ds_error = ds_error + t.flushed * t.seen * (dp - delta).abs()
    if t.softcap is not None:
        ds_error = t.slope * ds_error + (t.slope_error + U32) * (ds.abs() + ds_error)
        ds = t.slope * ds
    keys_chain = (t.cut * (min(t.k.shape[2], TILE) + t.tiles) + 6 + t.parts) * U32
    rows_chain = (t.cut * (min(groups * queries, TILE) + groups * queries / TILE) + 8 + t.parts) * U32
    ds_error = ds_error + t.u_inner * (ds.abs() + ds_error) + t.tiny_inner * t.seen
    p_error = t.p * x + t.u_inner * t.p * (1 + x) + (t.tiny_inner + t.flushed) * t.seen
    ds_keys, ds_rows = ds_error + keys_chain * ds.abs(), ds_error + rows_chain * ds.abs()
    found = {
        "q": abs(t.scale) * (ds_keys @ t.k.abs() + t.tiny_parts * ds.abs().sum(-1, keepdim=True)),
        "k": abs(t.scale) * (ds_rows.mT @ t.q.abs() + t.tiny_parts * ds.abs().sum(-2).unsqueeze(-1)),
        "v": (p_error + t.p * rows_chain).mT @ g.abs() + t.tiny_parts * t.p.sum(-2).unsqueeze(-1),
    }
    for name in ("k", "v"):
        found[name] = found[name].unflatten(1, (-1, groups)).sum(2)
    if t.sinks is not None:
        p, own = 1 - t.p.sum(-1, keepdim=True), t.sinks.abs()[:, None, None]
        off = torch.expm1(U32 * (4 * (own + lse) + 8) + _lse_error(t))
        chain = (t.q.shape[0] * queries + 8) * U32
        error = p * ((off + chain) * delta.abs() + (1 + off) * delta_error)
        found["sinks"] = error.sum((0, 2, 3))
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
    calls = pairs if request.args.get("softcap") is None else 2 * pairs  # an exponential, and a tanh before it
    read = q.nbytes + k.nbytes + v.nbytes + (mask.nbytes if mask is not None else 0)
    if request.pass_ == "backward":  # five products of 2 D flop a pair; reads grad and output besides
        lse = 4.0 * batch * heads * queries
        return Cost(10.0 * dim * pairs, calls, read + 2 * q.nbytes + lse, q.nbytes + k.nbytes + v.nbytes)
    return Cost(4.0 * dim * pairs, calls, read, q.nbytes)


def is_plain(causal: str | None, window: int | None, mask: Any, softcap: float | None, q: Any, k: Any) -> bool:
    """Whether scaled_dot_product_attention says it with ``is_causal``, without a mask."""
    return (
        mask is None and window is None and softcap is None
        and (causal != "bottom_right" or q.shape[2] == k.shape[2])
    )  # fmt: skip


def dims(request: Request) -> dict[str, int]:
    q, k = request.args["q"], request.args["k"]
    causal, window, mask = (request.args[name] for name in ("causal", "window", "mask"))
    return {
        "B": q.shape[0], "H": q.shape[1], "Hkv": k.shape[1], "Lq": q.shape[2], "Lk": k.shape[2], "D": q.shape[3],
        "rows": q.shape[0] * q.shape[1] * q.shape[2], "lse": int(request.args.get("with_lse", True)),
        "plain": int(is_plain(causal, window, mask, request.args.get("softcap"), q, k)),
        "causal": int(causal is not None),
    }  # fmt: skip


# ---------------------------------------------------------------- errors


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        return {"q": torch.ones(1, 4, 3, 8), "k": torch.ones(1, 2, 5, 8), "v": torch.ones(1, 2, 5, 8)} | changed

    return make


ERRORS = errors_of(ARGUMENTS)

CONTRACT = Contract(
    name="attention",
    family="attention",
    arithmetic="products",
    formula="output = softmax(scale q k^T, over the keys that a query sees) v; 0 for a query that sees none; with a "
    "softcap c of c tanh(scale q k^T / c); with sinks of one score more, which has no value",
    source="Vaswani et al., Attention Is All You Need, 2017 (arXiv:1706.03762)",
    outputs=("output", "lse"),
    results={"lse": Result(torch.float32, when="with_lse")},
    differentiable=("q", "k", "v", "sinks"),
    check=check,
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    bucket=lambda request: {"D": request.args["q"].shape[3]},  # each has kernels of its own, in torch as here
    switches=("softcap",),
    cases=CASES,
    bench_cases=BENCH_CASES,
    device_cases=DEVICE_CASES,
    device_bench_cases=DEVICE_BENCH_CASES,
    errors=ERRORS,
)
