"""The gradients of block_sparse_attention on the GPU: attention's two kernels without atomics, over lists of blocks.

One keeps a tile of keys and passes over the blocks of queries that see it (gradients of key and value), the other keeps
a tile of queries and passes over the blocks of keys that it sees (gradient of query).
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.attention.attention.triton_backward import _prepare
from kernelworks.ops.attention.block_sparse_attention.triton_lists import lists_of

CONFIGS = configs(__file__)
NUMBERS = ("l_b", "l_h", "H", "Hkv", "heads", "group", "Lq", "Lk")  # whose divisibility helps nothing


@triton.jit
def _over_queries(
    dk, dv, k, v, q_at, g_at, lse_at, delta_at, list_at, first, last, key, Lq, D, q_stride, g_stride, factor,
    CUT: tl.constexpr, BM: tl.constexpr, DP: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds what the parts [first, last) of the listed blocks give. ``CUT``: the diagonal lies in them. A query beyond
    the last one has an lse of infinity, so that its weights are 0."""
    PARTS: tl.constexpr = 128 // BM
    column = tl.arange(0, DP)
    within = tl.arange(0, BM).to(tl.int64)[:, None]
    q_inner = within * q_stride + column[None, :]
    g_inner = within * g_stride + column[None, :]
    block = tl.load(list_at + first // PARTS)
    for part in tl.range(first, last):
        start = block * 128 + part % PARTS * BM
        block = tl.load(list_at + (part + 1) // PARTS)
        row = start + tl.arange(0, BM)
        if TMA:
            q, g = q_at.load([start, 0]), g_at.load([start, 0])
        else:
            inside = (row[:, None] < Lq) & (column[None, :] < D)
            q = tl.load(q_at + tl.cast(start, tl.int64) * q_stride + q_inner, mask=inside, other=0.0)
            g = tl.load(g_at + tl.cast(start, tl.int64) * g_stride + g_inner, mask=inside, other=0.0)
        lse = tl.load(lse_at + row, mask=row < Lq, other=float("inf"))
        delta = tl.load(delta_at + row, mask=row < Lq, other=0.0)
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        p = tl.exp2(s * factor - lse[None, :])
        if CUT:
            seen = key[:, None] <= row[None, :]
            p = tl.where(seen, p, 0.0)
        dv = tl.dot(p.to(g.dtype), g, dv, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(g), input_precision=PRECISION)
        ds = p * (dp - delta[None, :])
        if CUT:
            ds = tl.where(seen, ds, 0.0)
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=NUMBERS)
def _listed_keys(
    q, k, v, grad, rows, dk, dv, lists, counts, order, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, g_b, g_h, g_l, l_b,
    l_h, Hkv, group, heads, Lq, Lk, D, scale, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DP: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    SHARES: tl.constexpr = 128 // BN
    PARTS: tl.constexpr = 128 // BM
    pairs = tl.num_programs(0) // (tl.cdiv(Lk, 128) * SHARES)
    tile, pair = tl.program_id(0) // pairs, tl.program_id(0) % pairs
    b, kv_h = (pair // Hkv).to(tl.int64), (pair % Hkv).to(tl.int64)
    # The longest lists first: those of a group's first head stand for all of it.
    block = tl.load(order + 2 * (b * l_b + kv_h * group * l_h + tile // SHARES))
    key, column = block * 128 + tile % SHARES * BN + tl.arange(0, BN), tl.arange(0, DP)
    far = key.to(tl.int64)[:, None]
    inside = (key[:, None] < Lk) & (column[None, :] < D)
    k_tile = tl.load(k + b * k_b + kv_h * k_h + far * k_l + column[None, :], mask=inside, other=0.0)
    v_tile = tl.load(v + b * v_b + kv_h * v_h + far * v_l + column[None, :], mask=inside, other=0.0)
    factor = scale * 1.4426950408889634

    d_k = tl.zeros([BN, DP], tl.float32)
    d_v = tl.zeros([BN, DP], tl.float32)
    for member in range(group):
        h = kv_h * group + member
        head = b * Hkv * group + h
        q_at, g_at = q + b * q_b + h * q_h, grad + b * g_b + h * g_h
        lse_at = rows + head * Lq
        delta_at = rows + (heads + head) * Lq
        if TMA:
            q_at = tl.make_tensor_descriptor(q_at, [Lq, D], [q_l, 1], [BM, DP])
            g_at = tl.make_tensor_descriptor(g_at, [Lq, D], [g_l, 1], [BM, DP])
        of_mask = b * l_b + h * l_h + block
        list_at = lists + of_mask * tl.cdiv(Lq, 128)
        count = tl.load(counts + of_mask)
        cut = 0
        if CAUSAL:
            cut = tl.where(tl.load(list_at, mask=count > 0, other=-1) == block, PARTS, 0)
            d_k, d_v = _over_queries(
                d_k, d_v, k_tile, v_tile, q_at, g_at, lse_at, delta_at, list_at, 0, cut, key, Lq, D, q_l, g_l, factor,
                True, BM, DP, TMA, PRECISION,
            )  # fmt: skip
        d_k, d_v = _over_queries(
            d_k, d_v, k_tile, v_tile, q_at, g_at, lse_at, delta_at, list_at, cut, count * PARTS, key, Lq, D, q_l, g_l,
            factor, False, BM, DP, TMA, PRECISION,
        )  # fmt: skip
    place = (pair.to(tl.int64) * Lk + far) * D + column[None, :]
    tl.store(dk + place, (d_k * scale).to(dk.dtype.element_ty), mask=inside)
    tl.store(dv + place, d_v.to(dv.dtype.element_ty), mask=inside)


@triton.jit
def _over_keys(
    dq, q, g, lse, delta, k_at, v_at, list_at, first, last, row, Lk, D, k_stride, v_stride, factor, CUT: tl.constexpr,
    CAUSAL: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr, WHOLE_D: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds what the parts [first, last) of the listed blocks give. ``CUT``: a query may not see some of them."""
    PARTS: tl.constexpr = 128 // BN
    column = tl.arange(0, DP)
    within = tl.arange(0, BN).to(tl.int64)[:, None]
    k_inner = within * k_stride + column[None, :]
    v_inner = within * v_stride + column[None, :]
    block = tl.load(list_at + first // PARTS)
    for part in tl.range(first, last):
        start = block * 128 + part % PARTS * BN
        block = tl.load(list_at + (part + 1) // PARTS)
        key = start + tl.arange(0, BN)
        if TMA:
            k, v = k_at.load([start, 0]), v_at.load([start, 0])
        else:
            k_place = k_at + tl.cast(start, tl.int64) * k_stride + k_inner
            v_place = v_at + tl.cast(start, tl.int64) * v_stride + v_inner
            if CUT or not WHOLE_D:
                inside = (key[:, None] < Lk) & (column[None, :] < D)
                k, v = tl.load(k_place, mask=inside, other=0.0), tl.load(v_place, mask=inside, other=0.0)
            else:
                k, v = tl.load(k_place), tl.load(v_place)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        dp = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        ds = tl.exp2(s * factor - lse[:, None]) * (dp - delta[:, None])
        if CUT:
            seen = key[None, :] < Lk
            if CAUSAL:
                seen = seen & (key[None, :] <= row[:, None])
            ds = tl.where(seen, ds, 0.0)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=NUMBERS)
def _listed_queries(
    q, k, v, grad, rows, dq, lists, counts, order, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, g_b, g_h, g_l, l_b, l_h,
    H, group, heads, Lq, Lk, D, scale, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr,
    WHOLE_D: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    SHARES: tl.constexpr = 128 // BM
    PARTS: tl.constexpr = 128 // BN
    tile, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    b, h = (head // H).to(tl.int64), (head % H).to(tl.int64)
    kv_h = h // group
    of_mask = b * l_b + h * l_h
    block = tl.load(order + 2 * (of_mask + tile // SHARES))
    list_at = lists + (of_mask + block) * tl.cdiv(Lk, 128)
    count = tl.load(counts + of_mask + block)
    row, column = block * 128 + tile % SHARES * BM + tl.arange(0, BM), tl.arange(0, DP)
    far = row.to(tl.int64)[:, None]
    inside = (row[:, None] < Lq) & (column[None, :] < D)
    q_tile = tl.load(q + b * q_b + h * q_h + far * q_l + column[None, :], mask=inside, other=0.0)
    g_tile = tl.load(grad + b * g_b + h * g_h + far * g_l + column[None, :], mask=inside, other=0.0)
    place = head.to(tl.int64) * Lq + row
    lse = tl.load(rows + place, mask=row < Lq, other=float("inf"))
    delta = tl.load(rows + heads.to(tl.int64) * Lq + place, mask=row < Lq, other=0.0)
    factor = scale * 1.4426950408889634
    k_at, v_at = k + b * k_b + kv_h * k_h, v + b * v_b + kv_h * v_h
    if TMA:
        k_at = tl.make_tensor_descriptor(k_at, [Lk, D], [k_l, 1], [BN, DP])
        v_at = tl.make_tensor_descriptor(v_at, [Lk, D], [v_l, 1], [BN, DP])
    last = tl.load(list_at + count - 1, mask=count > 0, other=-1)
    cut = last * 128 + 128 > Lk
    if CAUSAL:
        cut = cut | (last == block)
    whole = count - cut.to(tl.int32)
    d_q = tl.zeros([BM, DP], tl.float32)
    d_q = _over_keys(
        d_q, q_tile, g_tile, lse, delta, k_at, v_at, list_at, 0, whole * PARTS, row, Lk, D, k_l, v_l, factor, False,
        CAUSAL, BN, DP, WHOLE_D, TMA, PRECISION,
    )  # fmt: skip
    d_q = _over_keys(
        d_q, q_tile, g_tile, lse, delta, k_at, v_at, list_at, whole * PARTS, count * PARTS, row, Lk, D, k_l, v_l,
        factor, True, CAUSAL, BN, DP, WHOLE_D, TMA, PRECISION,
    )  # fmt: skip
    tl.store(
        dq + (head.to(tl.int64) * Lq + far) * D + column[None, :], (d_q * scale).to(dq.dtype.element_ty), mask=inside
    )  # fmt: skip


PREPARE, KEYS, QUERIES = Kernel(_prepare), Kernel(_listed_keys), Kernel(_listed_queries)


@functools.cache
def _launches(dim: int, dtype: torch.dtype, causal: bool, tma: bool) -> tuple[Launch, Launch, Launch, int, int, int]:
    """The three launches, and the rows of a tile in each."""
    padded = max(64, triton.next_power_of_2(dim))
    prepare, keys, queries = (CONFIGS.pick(name, D=dim, dtype=dtype) for name in ("prepare", "keys", "queries"))
    for options in (keys, queries):
        options["TMA"] = tma and options["TMA"]
        options |= {"CAUSAL": causal, "DP": padded, "PRECISION": "tf32x3" if dtype == torch.float32 else "tf32"}
    queries["WHOLE_D"] = queries["TMA"] or dim == padded
    launches = PREPARE.at(DP=padded, **prepare), KEYS.at(**keys), QUERIES.at(**queries)
    return *launches, prepare["BM"], keys["BN"], queries["BM"]


def gradients(
    results: tuple[Tensor, ...], grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor,
    block_mask: Tensor, is_causal: bool, scale: float, tma: bool,
) -> None:  # fmt: skip
    """Writes the gradients of query, key and value, which are contiguous."""
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    every, group = batch * heads, heads // kv_heads
    prepare, over_keys, over_queries, of_rows, of_keys, of_queries = _launches(dim, q.dtype, is_causal, tma)
    rows = torch.empty(2, batch, heads, queries, dtype=torch.float32, device=q.device)  # lse in base 2, and delta
    prepare(
        (-(-queries // of_rows) * every, 1, 1), grad, output, lse, rows, *grad.stride()[:3], *output.stride()[:3],
        heads, every, queries, dim,
    )  # fmt: skip
    strides = [s for t in (q, k, v, grad) for s in t.stride()[:3]]
    seeing, seen = lists_of(block_mask, is_causal, of_keys=True), lists_of(block_mask, is_causal)
    over_keys(
        (-(-keys // 128) * (128 // of_keys) * batch * kv_heads, 1, 1), q, k, v, grad, rows, results[1], results[2],
        seeing.lists, seeing.counts, seeing.order, *strides, seeing.of_batch, seeing.of_head, kv_heads, group, every,
        queries, keys, dim, scale,
    )  # fmt: skip
    over_queries(
        (-(-queries // 128) * (128 // of_queries) * every, 1, 1), q, k, v, grad, rows, results[0], seen.lists,
        seen.counts, seen.order, *strides, seen.of_batch, seen.of_head, heads, group, every, queries, keys, dim, scale,
    )  # fmt: skip
