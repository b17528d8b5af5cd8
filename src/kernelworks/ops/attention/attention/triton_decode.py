"""Attention for few queries: the keys are split over programs, and the heads of a group share one tile.

One program takes one share of the keys of one key-value head and the rows (queries times heads of the group) that read
it, so that K and V cross memory once. It leaves the sum of its weighted values, its maximum and its denominator; a
second kernel joins the shares. Waiting on memory, it can afford weights of twice the inputs' precision: each is split
into two numbers of the inputs' dtype.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernelworks.build.triton import Kernel, Launch, configs, interpreting, multiprocessors
from kernelworks.ops.attention.attention.triton_softcap import tanh

CONFIGS = configs(__file__)
MOST_ROWS = 16  # queries times heads of a group; more of them fill the tiles of the other kernel
MOST_SHARES = 64
# Whose divisibility helps nothing: one build serves all.
NUMBERS = ("shares", "pairs", "H", "group", "Lq", "Lk", "shift", "window", "length", "m_b", "m_h", "m_q", "m_k")
NO_MASK_STRIDES = (0, 0, 0, 0)  # strides of no mask


@triton.jit(do_not_specialize=NUMBERS)
def _share(
    q, k, v, mask, sinks, output, lse, partial, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, o_b, o_h, o_l, m_b, m_h,
    m_q, m_k, shares, pairs, H, group, Lq, Lk, D, shift, window, scale, cap, length, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr,
    WHOLE_D: tl.constexpr, EVEN: tl.constexpr, EARLY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    if SPLIT and EARLY:
        gdc_launch_dependents()  # the joining kernel may take its place already; it waits for what is written here
    share, pair = tl.program_id(0) % shares, tl.program_id(0) // shares
    kv_heads, rows = H // group, group * Lq
    b, kv_h = (pair // kv_heads).to(tl.int64), (pair % kv_heads).to(tl.int64)
    row = tl.arange(0, ROWS)
    query, h = row % Lq, kv_h * group + row // Lq
    column = tl.arange(0, DP)
    inside = (row[:, None] < rows) & (column[None, :] < D)
    position = query + shift
    q_tile = tl.load(
        q + b * q_b + h[:, None] * q_h + query[:, None] * q_l + column[None, :], mask=inside, other=0.0
    )  # fmt: skip
    factor = scale * 1.4426950408889634

    first, last = share * length, tl.minimum(share * length + length, Lk)
    if CAUSAL:
        last = tl.minimum(last, Lq + shift)
    if WINDOW:
        first = tl.maximum(first, tl.maximum(shift - window + 1, 0) // BN * BN)
    within = tl.arange(0, BN).to(tl.int64)
    k_inner = k + b * k_b + kv_h * k_h + within[:, None] * k_l + column[None, :]
    v_inner = v + b * v_b + kv_h * v_h + within[:, None] * v_l + column[None, :]
    mask_at = None
    if mask is not None:
        mask_at = mask + b * m_b + tl.minimum(h, H - 1)[:, None] * m_h + query[:, None] * m_q

    acc = tl.zeros([ROWS, DP], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    some = tl.zeros([ROWS], tl.int32)
    if sinks is not None:  # as if a key without a value had passed, in one share
        sink = tl.load(sinks + h, mask=row < rows, other=0.0).to(tl.float32) * 1.4426950408889634
        top = tl.where(share == 0, sink, top)
        total = tl.where(share == 0, 1.0, total)
    for start in tl.range(first, last, BN):
        key = start + tl.arange(0, BN)
        k_place = k_inner + tl.cast(start, tl.int64) * k_l
        v_place = v_inner + tl.cast(start, tl.int64) * v_l
        if EVEN and WHOLE_D:
            k_tile, v_tile = tl.load(k_place), tl.load(v_place)
        else:
            there = (key[:, None] < last) & (column[None, :] < D)
            k_tile, v_tile = tl.load(k_place, mask=there, other=0.0), tl.load(v_place, mask=there, other=0.0)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
        if cap is not None:
            s = tanh(s * cap)
        s = s * factor
        if not EVEN or CAUSAL or mask is not None:
            seen = (key[None, :] < last) & (row[:, None] < ROWS)
            if CAUSAL:
                seen = seen & (key[None, :] <= position[:, None])
            if WINDOW:
                seen = seen & (key[None, :] > position[:, None] - window)
            if mask is not None:
                place = mask_at + key.to(tl.int64)[None, :] * m_k
                seen = seen & (tl.load(place, mask=seen & (row[:, None] < rows), other=0) != 0)
            some = tl.maximum(some, tl.max(seen.to(tl.int32), 1))
            s = tl.where(seen, s, float("-inf"))
        else:
            some += 1
        peak = tl.maximum(top, tl.max(s, 1))
        base = tl.where(peak == float("-inf"), 0.0, peak)
        p = tl.exp2(s - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        if v_tile.dtype == tl.float32:
            acc = tl.dot(p, v_tile, acc, input_precision=PRECISION)
        else:
            coarse = p.to(v_tile.dtype)
            acc = tl.dot(coarse, v_tile, acc)
            # What rounding left of a weight may be 0 or negative: it would make NaN of an infinite value's sum.
            rest = tl.dot((p - coarse.to(tl.float32)).to(v_tile.dtype), v_tile)
            acc += tl.where(tl.abs(rest) < float("inf"), rest, 0.0)
        top = peak

    if SPLIT:  # partial: [pairs, shares, rows, D] and behind it top, total and some, each [pairs, shares, rows]
        slots = tl.cast(pairs, tl.int64) * shares * rows
        slot = (pair.to(tl.int64) * shares + share) * rows + row
        tl.store(partial + slot[:, None] * D + column[None, :], acc, mask=inside)
        behind = partial + slots * D + slot
        tl.store(behind, top, mask=row < rows)
        tl.store(behind + slots, total, mask=row < rows)
        tl.store(behind + 2 * slots, some.to(tl.float32), mask=row < rows)
    else:
        out = tl.where((some > 0)[:, None], acc / total[:, None], 0.0)
        o_place = output + b * o_b + h[:, None] * o_h + query[:, None] * o_l + column[None, :]
        tl.store(o_place, out.to(output.dtype.element_ty), mask=inside)
        if lse is not None:
            natural = (top + tl.log2(total)) * 0.6931471805599453
            tl.store(lse + (b * H + h) * Lq + query, natural, mask=row < rows)


@triton.jit(do_not_specialize=NUMBERS)
def _join(
    partial, output, lse, o_b, o_h, o_l, pairs, H, group, Lq, D, shares, SHARES: tl.constexpr, DP: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    query, head = tl.program_id(0) % Lq, tl.program_id(0) // Lq
    b, h = (head // H).to(tl.int64), (head % H).to(tl.int64)
    rows, kv_heads = group * Lq, H // group
    slots = tl.cast(pairs, tl.int64) * shares * rows
    share = tl.arange(0, SHARES)
    column = tl.arange(0, DP)
    first = (b * kv_heads + h // group) * shares * rows + (h % group) * Lq + query
    there = share < shares
    behind = partial + slots * D + first
    if EARLY:
        gdc_wait()
    top = tl.load(behind + share * rows, mask=there, other=float("-inf"))
    total = tl.load(behind + slots + share * rows, mask=there, other=0.0)
    some = tl.max(tl.load(behind + 2 * slots + share * rows, mask=there, other=0.0))
    peak = tl.max(top)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    whole = tl.sum(tl.exp2(top - base) * total)
    out = tl.zeros([DP], tl.float32)
    for start in range(0, shares, 16):
        part = start + tl.arange(0, 16)
        weight = tl.exp2(tl.load(behind + part * rows, mask=part < shares, other=float("-inf")) - base)
        inside = (part[:, None] < shares) & (column[None, :] < D)
        place = partial + (first + part * rows)[:, None] * D + column[None, :]
        out += tl.sum(weight[:, None] * tl.load(place, mask=inside, other=0.0), 0)
    out = tl.where(some > 0, out / whole, 0.0)
    o_place = output + b * o_b + h * o_h + query * o_l + column
    tl.store(o_place, out.to(output.dtype.element_ty), mask=column < D)
    if lse is not None:
        tl.store(lse + (b * H + h) * Lq + query, (peak + tl.log2(whole)) * 0.6931471805599453)


SHARE, JOIN = Kernel(_share), Kernel(_join)


@functools.cache
def _shares(pairs: int, keys: int, block: int, slots: int) -> tuple[int, int]:
    """Into how many shares the keys are split, and the keys of one: what gives the shortest sum of waves.

    A program costs its keys and about one block more, to fill its pipeline and to write and join what it found.
    """
    blocks = -(-keys // block)
    found = min(
        (-(-pairs * n // slots) * (-(-blocks // n) + 1) + (n > 1), n) for n in range(1, min(blocks, MOST_SHARES) + 1)
    )[1]  # fmt: skip
    length = -(-blocks // found) * block
    return -(-keys // length), length


@functools.cache
def _share_at(dim: int, dtype: torch.dtype, causal: bool, window: bool, split: bool, even: bool) -> Launch:
    padded = max(64, triton.next_power_of_2(dim))
    options = CONFIGS.pick("decode", D=dim, dtype=dtype)
    options.pop("RESIDENT")
    return SHARE.at(
        CAUSAL=causal, WINDOW=window, SPLIT=split, ROWS=MOST_ROWS, DP=padded, WHOLE_D=dim == padded, EVEN=even,
        EARLY=not interpreting(), PRECISION="tf32x3", **options,
    )  # fmt: skip


@functools.cache
def _join_at(dim: int) -> Launch:
    early = not interpreting()
    return JOIN.at(
        SHARES=MOST_SHARES, DP=max(64, triton.next_power_of_2(dim)), EARLY=early, launch_pdl=early,
        **CONFIGS.pick("join"),
    )  # fmt: skip


@functools.cache
def _blocks(dim: int, dtype: torch.dtype) -> tuple[int, int]:
    """Keys of a block, and programs that a multiprocessor holds at once."""
    options = CONFIGS.pick("decode", D=dim, dtype=dtype)
    return options["BN"], options["RESIDENT"]


@dataclass(frozen=True)
class _Cut:
    """How one call is cut: its launches with their grids and the integers that follow the tensors."""

    share: Launch
    share_grid: tuple[int, int, int]
    share_numbers: tuple[float | None, ...]
    join: Launch | None  # None where one program takes all keys
    join_grid: tuple[int, int, int]
    join_numbers: tuple[int, ...]
    size: int  # float32 numbers between the two


def _cut(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, output: Tensor, causal: bool, shift: int, window: int,
    scale: float, softcap: float | None,
) -> _Cut:  # fmt: skip
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    block, resident = _blocks(dim, q.dtype)
    pairs, group = batch * kv_heads, heads // kv_heads
    shares, length = _shares(pairs, -(-keys // 256) * 256, block, resident * multiprocessors(q.device))
    split = shares > 1
    outs = output.stride()[:3]
    cap, scale = (None, scale) if softcap is None else (scale / softcap, float(softcap))
    return _Cut(
        share=_share_at(dim, q.dtype, causal, window > 0, split, keys % block == 0 and not causal and mask is None),
        share_grid=(shares * pairs, 1, 1),
        share_numbers=(
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *outs,
            *(mask.stride() if mask is not None else NO_MASK_STRIDES),
            shares, pairs, heads, group, queries, keys, dim, shift, window, scale, cap, length,
        ),
        join=_join_at(dim) if split else None,
        join_grid=(queries * heads * batch, 1, 1),
        join_numbers=(*outs, pairs, heads, group, queries, dim, shares),
        size=pairs * shares * group * queries * (dim + 3),
    )  # fmt: skip


def decode(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None, output: Tensor, lse: Tensor | None,
    causal: bool, shift: int, window: int, scale: float, softcap: float | None,
) -> None:  # fmt: skip
    """Writes ``output`` (and ``lse``). ``mask`` is None or expanded to [B, H, Lq, Lk]."""
    cut = _cut(q, k, v, mask, output, causal, shift, window, scale, softcap)
    if cut.join is None:
        cut.share(cut.share_grid, q, k, v, mask, sinks, output, lse, None, *cut.share_numbers)
    else:
        partial = torch.empty(cut.size, dtype=torch.float32, device=q.device)
        cut.share(cut.share_grid, q, k, v, mask, sinks, None, None, partial, *cut.share_numbers)
        cut.join(cut.join_grid, partial, output, lse, *cut.join_numbers)


def decode_again(
    q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor | None, causal: bool, shift: int, window: int,
    scale: float, softcap: float | None,
) -> Callable[..., None]:  # fmt: skip
    """``run(q, k, v, output)``, or ``run(q, k, v, output, lse)`` where lse is given here: the same for tensors like
    these, with everything else fixed."""
    cut = _cut(q, k, v, None, output, causal, shift, window, scale, softcap)
    outputs = (output,) if lse is None else (output, lse)
    if cut.join is None:
        return cut.share.prepare_launch(cut.share_grid, q, k, v, None, None, output, lse, None, *cut.share_numbers)
    size, empty, float32, device = cut.size, torch.empty, torch.float32, q.device
    partial = empty(size, dtype=float32, device=device)
    share = cut.share.prepare_launch(cut.share_grid, q, k, v, None, None, None, None, partial, *cut.share_numbers)
    join = cut.join.prepare_launch(
        cut.join_grid, partial, *outputs, *(() if lse is not None else (None,)), *cut.join_numbers
    )

    def run(q: Tensor, k: Tensor, v: Tensor, *outputs: Tensor) -> None:
        partial = empty(size, dtype=float32, device=device)
        share(q, k, v, partial)
        join(partial, *outputs)

    return run
