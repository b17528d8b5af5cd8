"""How far from its definition attention may be where it computes in float32: the outputs, the logarithm of the
softmax's denominator and the gradients. ``attention``'s README.md derives it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF, rounding
from kernelworks.templates.attention.reference import (
    apply_softcap,
    per_query_head,
    softmax_weights,
    visible,
    with_sinks,
)

__all__ = ["bound", "gradient_bound"]

U32 = UNIT_ROUNDOFF[torch.float32]
TILE = 64  # keys whose products are summed before they are added to a running sum
CAP = 12  # roundings of a capped score: two of score / softcap, eight of tanh, two of what it is multiplied by


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
        self.q, self.k, self.v = q, per_query_head(k, q.shape[1]), per_query_head(v, q.shape[1])
        self.seen = visible(q, k, args.get("causal"), args.get("window"), args.get("mask"))
        dim, keys, self.softcap = q.shape[-1], k.shape[2], args.get("softcap")
        plain = q @ self.k.transpose(-1, -2) * self.scale
        scores = apply_softcap(plain, self.softcap).masked_fill(~self.seen, -torch.inf)
        self.sinks = args.get("sinks")
        summed = scores if self.sinks is None else with_sinks(scores, self.sinks)
        self.lse = torch.logsumexp(summed, -1, keepdim=True)
        self.p = softmax_weights(summed, self.seen, self.sinks)
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
