"""triplet_margin_loss on the GPU: a program finds some rows' distances in float64, a second kernel sums losses."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs, kernel

__all__ = ["backward", "forward"]

CONFIGS = configs(__file__)


@kernel
def _between(one, other, eps, at, mask):
    """What lies between two elements, 0 outside."""
    apart = tl.load(one + at, mask=mask, other=0.0).to(tl.float64) - tl.load(other + at, mask=mask, other=0.0) + eps
    return tl.where(mask, apart, 0.0)


@kernel
def _term(apart, P: tl.constexpr):
    if P == 1:
        made = tl.abs(apart)
    else:
        made = apart * apart
    return made


@kernel
def _length(sums, P: tl.constexpr):
    if P == 1:
        made = tl.sum(sums, 1)
    else:
        made = tl.sqrt(tl.sum(sums, 1))
    return made


@kernel
def _distances(
    anchor, positive, negative, at, inside, N, eps, P: tl.constexpr, SWAP: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Of some rows: anchor and positive, anchor and negative, positive and negative."""
    far = tl.zeros([ROWS, BLOCK], tl.float64)
    near = tl.zeros([ROWS, BLOCK], tl.float64)
    other = tl.zeros([ROWS, BLOCK], tl.float64)
    for begin in range(0, N, BLOCK):
        column = begin + tl.arange(0, BLOCK)[None, :]
        mask = inside[:, None] & (column < N)
        far += _term(_between(anchor, positive, eps, at + column, mask), P)
        near += _term(_between(anchor, negative, eps, at + column, mask), P)
        if SWAP:
            other += _term(_between(positive, negative, eps, at + column, mask), P)
    return _length(far, P), _length(near, P), _length(other, P)


@kernel
def _swapped(near, other, SWAP: tl.constexpr):
    """Whether the negative is nearer to the positive; a NaN is the nearest."""
    if SWAP:
        made = (other < near) | (other != other)
    else:
        made = near != near
        made = made & (near == near)
    return made


@kernel
def _losses(
    anchor, positive, negative, each, loss, rows, N, margin, eps, P: tl.constexpr, SWAP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    wide_eps = tl.cast(eps, tl.float64)
    far, near, other = _distances(
        anchor, positive, negative, row[:, None] * N, inside, N, wide_eps, P, SWAP, ROWS, BLOCK
    )
    hinge = tl.cast(margin, tl.float64) + far - tl.where(_swapped(near, other, SWAP), other, near)
    made = tl.where(hinge < 0.0, 0.0, hinge)
    if loss is not None:
        tl.store(loss + row, made.to(tl.float32), mask=inside)
    else:
        tl.store(each + row, made, mask=inside)


@kernel
def _total(each, loss, rows, divisor, BLOCK: tl.constexpr):
    """One program adds all rows' losses, in an order that follows from their number."""
    chain = tl.zeros([BLOCK], tl.float64)
    for begin in range(0, rows, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        chain += tl.load(each + row, mask=row < rows, other=0.0)
    tl.store(loss, (tl.sum(chain, 0) / tl.cast(divisor, tl.float64)).to(tl.float32))


@kernel
def _step(apart, share, distance, P: tl.constexpr):
    """What a distance sends to its first point."""
    if P == 1:
        made = tl.where(apart > 0.0, share, tl.where(apart < 0.0, -share, 0.0))
    else:
        made = tl.where(distance == 0.0, 0.0, apart * (share / distance))
    return tl.where(share == 0.0, 0.0, made)


@kernel
def _gradients(
    anchor, positive, negative, grad, to_anchor, to_positive, to_negative, rows, N, margin, eps, divisor,
    P: tl.constexpr, SWAP: tl.constexpr, EACH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at = row[:, None] * N
    wide_eps = tl.cast(eps, tl.float64)
    far, near, other = _distances(anchor, positive, negative, at, inside, N, wide_eps, P, SWAP, ROWS, BLOCK)
    swapped = _swapped(near, other, SWAP)
    hinge = tl.cast(margin, tl.float64) + far - tl.where(swapped, other, near)
    flow = tl.load(grad + row * EACH, mask=inside, other=0.0).to(tl.float64) / tl.cast(divisor, tl.float64)
    flow = tl.where(hinge >= 0.0, flow, 0.0)
    part = tl.where(swapped, 1.0, 0.0)
    if SWAP:
        part = tl.where(near == other, 0.5, part)
    to_near, to_other = (flow * (1.0 - part))[:, None], (flow * part)[:, None]
    for begin in range(0, N, BLOCK):
        column = begin + tl.arange(0, BLOCK)[None, :]
        mask = inside[:, None] & (column < N)
        one = _step(_between(anchor, positive, wide_eps, at + column, mask), flow[:, None], far[:, None], P)
        two = _step(_between(anchor, negative, wide_eps, at + column, mask), to_near, near[:, None], P)
        three = tl.zeros([ROWS, BLOCK], tl.float64)
        if SWAP:
            three = _step(_between(positive, negative, wide_eps, at + column, mask), to_other, other[:, None], P)
        if to_anchor is not None:
            tl.store(to_anchor + at + column, (one - two).to(tl.float32), mask=mask)
        if to_positive is not None:
            tl.store(to_positive + at + column, (-one - three).to(tl.float32), mask=mask)
        if to_negative is not None:
            tl.store(to_negative + at + column, (two + three).to(tl.float32), mask=mask)


LOSSES, TOTAL, GRADIENTS = Kernel(_losses), Kernel(_total), Kernel(_gradients)


def _tile(anchor: Tensor, kind: str) -> tuple[int, dict[str, Any]]:
    """The rows, and how a program takes them."""
    n = anchor.shape[-1]
    settings = CONFIGS.pick(kind, N=n, dtype=anchor.dtype)
    tile = settings.pop("TILE")
    block = min(tile, int(triton.next_power_of_2(max(n, 1))))
    return anchor.shape[:-1].numel(), {"ROWS": tile // block, "BLOCK": block, **settings}


def forward(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float, p: float, eps: float, swap: bool, reduction: str,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    each = reduction == "none"
    if out is None:
        out = anchor.new_empty(anchor.shape[:-1] if each else ())
    rows, how = _tile(anchor, "losses")
    if not rows:
        return out if each else out.fill_(float("nan") if reduction == "mean" else 0.0)
    given = (anchor.contiguous(), positive.contiguous(), negative.contiguous())
    losses = None if each else torch.empty(rows, dtype=torch.float64, device=anchor.device)
    LOSSES.at(P=int(p), SWAP=swap, **how)(
        (triton.cdiv(rows, how["ROWS"]), 1, 1), *given, losses, out if each else None, rows, anchor.shape[-1],
        float(margin), float(eps),
    )  # fmt: skip
    if not each:
        divisor = rows if reduction == "mean" else 1
        TOTAL.at(**CONFIGS.pick("total"))((1, 1, 1), losses, out, rows, divisor)
    return out


def backward(
    grad: Tensor, anchor: Tensor, positive: Tensor, negative: Tensor, margin: float, p: float, eps: float, swap: bool,
    reduction: str, needs: Any, out: Any = None,
) -> Any:  # fmt: skip
    given = (anchor.contiguous(), positive.contiguous(), negative.contiguous())
    made = tuple(map(torch.empty_like, given)) if out is None else tuple(out)
    rows, how = _tile(anchor, "gradients")
    if anchor.numel():
        wanted = tuple(m if need or out is not None else None for m, need in zip(made, needs, strict=True))
        GRADIENTS.at(P=int(p), SWAP=swap, EACH=int(reduction == "none"), **how)(
            (triton.cdiv(rows, how["ROWS"]), 1, 1), *given, grad.contiguous(), *wanted, rows, anchor.shape[-1],
            float(margin), float(eps), rows if reduction == "mean" else 1,
        )  # fmt: skip
    return made
