"""paged_attention on the GPU: rows are the queries of a group's heads, keys are looked up in the table tile by tile.

Where sequences end is known on the device alone, so as many programs start as there may be tiles of queries, as in
varlen_attn. A tile of keys may cross pages: each key's row is an address of its own. A block that is none of the cache
is not seen, and no slot is read that holds no key.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.attention.paged_attention import heads_of_pages
from kernelworks.ops.attention.varlen_attn.triton_sequences import ends_of, sequence_of

CONFIGS = configs(__file__)
LOG2E = 1.4426950408889634
NUMBERS = ("Hkv", "group", "T", "S", "M", "N", "P", "window")  # whose divisibility helps nothing


@triton.jit(do_not_specialize=NUMBERS)
def _paged(
    q, k, v, output, ends_q, lengths, table, q_l, q_h, k_n, k_h, k_p, v_n, v_h, v_p, t_s, t_m, Hkv, group, T, S, M, N,
    D, P, window, factor, WINDOW: tl.constexpr, SIGN: tl.constexpr, TOKENS: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, DP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    unit, kv_h = tl.program_id(0) // Hkv, (tl.program_id(0) % Hkv).to(tl.int64)
    sequence, before, tiles = sequence_of(ends_q, S, unit, TOKENS)
    if sequence >= S:
        return
    tile = tiles - 1 - (unit - before)  # the last queries see most keys: they start first
    first_q, Lq = ends_of(ends_q, sequence, T)
    Lk = tl.minimum(tl.maximum(tl.load(lengths + sequence).to(tl.int32), 0), M * P)

    row, column = tl.arange(0, BM), tl.arange(0, DP)
    token = tile * TOKENS + row // group
    head = kv_h * group + row % group
    inside = ((row < TOKENS * group) & (token < Lq))[:, None] & (column[None, :] < D)
    far = first_q + token.to(tl.int64)[:, None]
    q_tile = tl.load(q + far * q_l + head[:, None] * q_h + column[None, :], mask=inside, other=0.0)
    if SIGN != 1:
        q_tile = (q_tile.to(tl.float32) * SIGN).to(q_tile.dtype)
    position = token + (Lk - Lq)

    last = tl.minimum(tl.maximum(tile * TOKENS + TOKENS + Lk - Lq, 0), Lk)
    first = 0
    if WINDOW:
        first = tl.maximum(tile * TOKENS + Lk - Lq - window + 1, 0) // BN * BN
    blocks_at = table + tl.cast(sequence, tl.int64) * t_s
    k_at, v_at = k + kv_h * k_h + column[None, :], v + kv_h * v_h + column[None, :]
    acc = tl.zeros([BM, DP], tl.float32)
    total = tl.zeros([BM], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    some = tl.zeros([BM], tl.int32)
    for start in tl.range(first, last, BN):
        key = start + tl.arange(0, BN)
        block = tl.load(blocks_at + (key // P) * t_m, mask=key < last, other=-1).to(tl.int64)
        held = (block >= 0) & (block < N)
        slot = (key % P).to(tl.int64)
        there = held[:, None] & (column[None, :] < D)
        k_tile = tl.load(k_at + block[:, None] * k_n + slot[:, None] * k_p, mask=there, other=0.0)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
        seen = held[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            seen = seen & (key[None, :] > position[:, None] - window)
        some = tl.maximum(some, tl.max(seen.to(tl.int32), 1))
        s = tl.where(seen, s, float("-inf"))
        peak = tl.maximum(top, tl.max(s, 1) * factor)
        base = tl.where(peak == float("-inf"), 0.0, peak)  # nothing seen so far: exp2(-inf - -inf) would be NaN
        p = tl.exp2(s * factor - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(p, 1)
        v_tile = tl.load(v_at + block[:, None] * v_n + slot[:, None] * v_p, mask=there, other=0.0)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * shrink[:, None], input_precision=PRECISION)
        top = peak

    out = tl.where((some > 0)[:, None], acc / total[:, None], 0.0)
    o_place = (far * (Hkv * group) + head[:, None]) * D + column[None, :]
    tl.store(output + o_place, out.to(output.dtype.element_ty), mask=inside)


PAGED = Kernel(_paged)


@functools.cache
def _paged_at(dim: int, dtype: torch.dtype, window: bool, sign: int, group: int, queries: int) -> tuple[Launch, int]:
    """The launch, and the queries of a tile. ``queries``: how many there are of a sequence, about."""
    options = CONFIGS.pick("paged", D=dim, dtype=dtype, rows=min(queries * group, 1024))
    rows = max(options.pop("BM"), triton.next_power_of_2(group))
    tokens = rows // group
    launch = PAGED.at(
        WINDOW=window, SIGN=sign, TOKENS=tokens, BM=rows, DP=max(64, triton.next_power_of_2(dim)),
        PRECISION="tf32x3" if dtype == torch.float32 else "tf32", **options,
    )  # fmt: skip
    return launch, tokens


def forward(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, cu_seq_q: Tensor, seqused_k: Tensor, block_table: Tensor,
    scale: float | None, window: int | None, out: Any = None,
) -> Tensor:  # fmt: skip
    """As the op package's other launches: the output."""
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    (tokens, heads, dim), sequences = query.shape, seqused_k.shape[0]
    if not (tokens and heads and sequences and block_table.shape[1] and key_cache.shape[0]):
        return output.zero_()
    q = query if query.stride(2) == 1 or dim == 1 else query.contiguous()
    k, v = heads_of_pages(key_cache), heads_of_pages(value_cache)
    blocks, kv_heads, page, _ = k.shape
    factor = dim**-0.5 if scale is None else float(scale)
    launch, most = _paged_at(
        dim, query.dtype, window is not None, (factor > 0) - (factor < 0), heads // kv_heads, -(-tokens // sequences)
    )
    launch(
        ((tokens + sequences * (most - 1)) // most * kv_heads, 1, 1), q, k, v, output, cu_seq_q.contiguous(),
        seqused_k.contiguous(), block_table, *q.stride()[:2], *k.stride()[:3], *v.stride()[:3], *block_table.stride(),
        kv_heads, heads // kv_heads, tokens, sequences, block_table.shape[1], blocks, dim, page,
        min(window or 0, 2**30), LOG2E * (abs(factor) or 1.0),
    )  # fmt: skip
    return output
