"""The gradients of attention on the GPU. Weights are formed again from the saved lse, in two kernels without atomics.

One kernel keeps a tile of keys and passes over the queries (gradients of k and v), the other keeps a tile of queries
and passes over the keys (gradient of q). Each forms the scores anew: seven products where five would do, and in return
every sum is made in one place, in a fixed order. The first one works on transposed tiles, so that every operand that
comes out of a product is used as it lies in registers.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.attention.attention.triton_softcap import tanh

CONFIGS = configs(__file__)
# Whose divisibility helps nothing: one build serves all.
NUMBERS = ("H", "Hkv", "heads", "group", "Lq", "Lk", "shift", "window", "m_b", "m_h", "m_q", "m_k")


@triton.jit(do_not_specialize=NUMBERS)
def _prepare(
    grad, output, lse, rows, g_b, g_h, g_l, o_b, o_h, o_l, H, heads, Lq, D, BM: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """rows[0] = lse in base 2 (inf for a query that sees nothing, so that its weights are 0), rows[1] = delta."""
    tile, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    b, h = (head // H).to(tl.int64), (head % H).to(tl.int64)
    row, column = tile * BM + tl.arange(0, BM), tl.arange(0, DP)
    inside = (row[:, None] < Lq) & (column[None, :] < D)
    far = row.to(tl.int64)[:, None]
    g = tl.load(grad + b * g_b + h * g_h + far * g_l + column[None, :], mask=inside, other=0.0)
    o = tl.load(output + b * o_b + h * o_h + far * o_l + column[None, :], mask=inside, other=0.0)
    delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    place = head.to(tl.int64) * Lq + row
    natural = tl.load(lse + place, mask=row < Lq, other=0.0)
    base = tl.where(natural == float("-inf"), float("inf"), natural * 1.4426950408889634)
    tl.store(rows + place, base, mask=row < Lq)
    tl.store(rows + tl.cast(heads, tl.int64) * Lq + place, delta, mask=row < Lq)


@triton.jit
def _over_queries(
    dk, dv, k, v, q_at, g_at, lse_at, delta_at, mask_at, first, last, key, Lq, Lk, D, q_stride, g_stride, mask_stride,
    shift, window, factor, cap, CUT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BM: tl.constexpr,
    DP: tl.constexpr, WHOLE_D: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds what the queries [first, last) give. ``CUT``: some may not see some key of the tile, or not exist."""
    column = tl.arange(0, DP)
    within = tl.arange(0, BM).to(tl.int64)[:, None]
    q_inner = within * q_stride + column[None, :]
    g_inner = within * g_stride + column[None, :]
    for start in tl.range(first, last, BM):
        row = start + tl.arange(0, BM)
        if TMA:
            q, g = q_at.load([start, 0]), g_at.load([start, 0])
        else:
            q_place = q_at + tl.cast(start, tl.int64) * q_stride + q_inner
            g_place = g_at + tl.cast(start, tl.int64) * g_stride + g_inner
            if CUT or not WHOLE_D:
                inside = (row[:, None] < Lq) & (column[None, :] < D)
                q, g = tl.load(q_place, mask=inside, other=0.0), tl.load(g_place, mask=inside, other=0.0)
            else:
                q, g = tl.load(q_place), tl.load(g_place)
        if CUT:
            lse = tl.load(lse_at + row, mask=row < Lq, other=float("inf"))
            delta = tl.load(delta_at + row, mask=row < Lq, other=0.0)
        else:
            lse, delta = tl.load(lse_at + row), tl.load(delta_at + row)
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        if cap is not None:
            s = tanh(s * cap)
        p = tl.exp2(s * factor - lse[None, :])
        if CUT:
            seen = (key[:, None] < Lk) & (row[None, :] < Lq)
            if CAUSAL:
                seen = seen & (key[:, None] <= row[None, :] + shift)
            if WINDOW:
                seen = seen & (key[:, None] > row[None, :] + shift - window)
            if mask_at is not None:
                seen = seen & (tl.load(mask_at + row.to(tl.int64)[None, :] * mask_stride, mask=seen, other=0) != 0)
            p = tl.where(seen, p, 0.0)
        dv = tl.dot(p.to(g.dtype), g, dv, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(g), input_precision=PRECISION)
        ds = p * (dp - delta[None, :])
        if cap is not None:
            ds = ds * (1.0 - s * s)
        if CUT:
            ds = tl.where(seen, ds, 0.0)
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=NUMBERS)
def _keys(
    q, k, v, grad, rows, mask, dk, dv, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, g_b, g_h, g_l, m_b, m_h, m_q, m_k,
    Hkv, group, heads, Lq, Lk, D, shift, window, scale, cap, softcap, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr, WHOLE_D: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # Under causal the first keys are seen by most queries: they start first.
    tiles = tl.cdiv(Lk, BN)
    pairs = tl.num_programs(0) // tiles
    tile, pair = tl.program_id(0) // pairs, tl.program_id(0) % pairs
    b, kv_h = (pair // Hkv).to(tl.int64), (pair % Hkv).to(tl.int64)
    key, column = tile * BN + tl.arange(0, BN), tl.arange(0, DP)
    far = key.to(tl.int64)[:, None]
    inside = (key[:, None] < Lk) & (column[None, :] < D)
    k_tile = tl.load(k + b * k_b + kv_h * k_h + far * k_l + column[None, :], mask=inside, other=0.0)
    v_tile = tl.load(v + b * v_b + kv_h * v_h + far * v_l + column[None, :], mask=inside, other=0.0)
    factor = scale * 1.4426950408889634
    if cap is not None:
        factor = softcap * 1.4426950408889634

    # Queries [first, last) see some key of the tile, [whole_first, whole_last) every one.
    first, last = 0, Lq
    whole_first, whole_last = 0, Lq // BM * BM
    if CAUSAL:
        first = tl.minimum(tl.maximum(tile * BN - shift, 0), Lq) // BM * BM
        whole_first = tl.cdiv(tl.minimum(tl.maximum(tile * BN + BN - 1 - shift, 0), Lq), BM) * BM
    if WINDOW:
        last = tl.minimum(tl.maximum(tile * BN + BN - 1 - shift + window, 0), Lq)
        whole_last = tl.minimum(tl.maximum(tile * BN - shift + window, 0), Lq) // BM * BM
    if mask is not None:
        whole_last = first
    whole_first = tl.minimum(whole_first, tl.cdiv(last, BM) * BM)
    whole_last = tl.maximum(whole_last, whole_first)

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
        mask_at = None
        if mask is not None:
            mask_at = mask + b * m_b + h * m_h + tl.minimum(key, Lk - 1).to(tl.int64)[:, None] * m_k
        d_k, d_v = _over_queries(
            d_k, d_v, k_tile, v_tile, q_at, g_at, lse_at, delta_at, mask_at, first, whole_first, key, Lq, Lk, D, q_l,
            g_l, m_q, shift, window, factor, cap, True, CAUSAL, WINDOW, BM, DP, WHOLE_D, TMA, PRECISION,
        )  # fmt: skip
        if mask is None:
            d_k, d_v = _over_queries(
                d_k, d_v, k_tile, v_tile, q_at, g_at, lse_at, delta_at, mask_at, whole_first, whole_last, key, Lq, Lk,
                D, q_l, g_l, m_q, shift, window, factor, cap, False, CAUSAL, WINDOW, BM, DP, WHOLE_D, TMA, PRECISION,
            )  # fmt: skip
        d_k, d_v = _over_queries(
            d_k, d_v, k_tile, v_tile, q_at, g_at, lse_at, delta_at, mask_at, whole_last, last, key, Lq, Lk, D, q_l,
            g_l, m_q, shift, window, factor, cap, True, CAUSAL, WINDOW, BM, DP, WHOLE_D, TMA, PRECISION,
        )  # fmt: skip
    place = (pair.to(tl.int64) * Lk + far) * D + column[None, :]
    tl.store(dk + place, (d_k * scale).to(dk.dtype.element_ty), mask=inside)
    tl.store(dv + place, d_v.to(dv.dtype.element_ty), mask=inside)


@triton.jit
def _over_keys(
    dq, q, g, lse, delta, k_at, v_at, mask_at, first, last, position, Lk, D, k_stride, v_stride, mask_stride, window,
    factor, cap, CUT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr,
    WHOLE_D: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds what the keys [first, last) give. ``CUT``: some query of the tile may not see some of them."""
    column = tl.arange(0, DP)
    within = tl.arange(0, BN).to(tl.int64)[:, None]
    k_inner = within * k_stride + column[None, :]
    v_inner = within * v_stride + column[None, :]
    for start in tl.range(first, last, BN):
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
        if cap is not None:
            s = tanh(s * cap)
        dp = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        ds = tl.exp2(s * factor - lse[:, None]) * (dp - delta[:, None])
        if cap is not None:
            ds = ds * (1.0 - s * s)
        if CUT:
            seen = key[None, :] < Lk
            if CAUSAL:
                seen = seen & (key[None, :] <= position[:, None])
            if WINDOW:
                seen = seen & (key[None, :] > position[:, None] - window)
            if mask_at is not None:
                seen = seen & (tl.load(mask_at + key.to(tl.int64)[None, :] * mask_stride, mask=seen, other=0) != 0)
            ds = tl.where(seen, ds, 0.0)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=NUMBERS)
def _queries(
    q, k, v, grad, rows, mask, dq, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, g_b, g_h, g_l, m_b, m_h, m_q, m_k,
    H, group, Lq, Lk, D, shift, window, scale, cap, softcap, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr, WHOLE_D: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(Lq, BM)
    heads = tl.num_programs(0) // tiles
    tile = tiles - 1 - tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    b, h = (head // H).to(tl.int64), (head % H).to(tl.int64)
    kv_h = h // group
    row, column = tile * BM + tl.arange(0, BM), tl.arange(0, DP)
    far = row.to(tl.int64)[:, None]
    inside = (row[:, None] < Lq) & (column[None, :] < D)
    q_tile = tl.load(q + b * q_b + h * q_h + far * q_l + column[None, :], mask=inside, other=0.0)
    g_tile = tl.load(grad + b * g_b + h * g_h + far * g_l + column[None, :], mask=inside, other=0.0)
    place = head.to(tl.int64) * Lq + row
    lse = tl.load(rows + place, mask=row < Lq, other=float("inf"))
    delta = tl.load(rows + heads.to(tl.int64) * Lq + place, mask=row < Lq, other=0.0)
    position = row + shift
    factor = scale * 1.4426950408889634
    if cap is not None:
        factor = softcap * 1.4426950408889634
    k_at, v_at = k + b * k_b + kv_h * k_h, v + b * v_b + kv_h * v_h
    if TMA:
        k_at = tl.make_tensor_descriptor(k_at, [Lk, D], [k_l, 1], [BN, DP])
        v_at = tl.make_tensor_descriptor(v_at, [Lk, D], [v_l, 1], [BN, DP])
    mask_at = None
    if mask is not None:
        mask_at = mask + b * m_b + h * m_h + tl.minimum(row, Lq - 1).to(tl.int64)[:, None] * m_q

    first, last = 0, Lk
    whole_first, whole_last = 0, Lk // BN * BN
    if CAUSAL:
        last = tl.minimum(tl.maximum(tile * BM + BM + shift, 0), Lk)
        whole_last = tl.maximum(tl.minimum(tile * BM + shift + 1, Lk), 0) // BN * BN
    if WINDOW:
        first = tl.maximum(tile * BM + shift - window + 1, 0) // BN * BN
        whole_first = tl.cdiv(tl.maximum(tile * BM + BM - 1 + shift - window + 1, 0), BN) * BN
        whole_first = tl.minimum(whole_first, tl.cdiv(last, BN) * BN)
    if mask is not None:
        whole_last = first
    whole_last = tl.maximum(whole_last, whole_first)
    d_q = tl.zeros([BM, DP], tl.float32)
    if WINDOW:
        d_q = _over_keys(
            d_q, q_tile, g_tile, lse, delta, k_at, v_at, mask_at, first, whole_first, position, Lk, D, k_l, v_l, m_k,
            window, factor, cap, True, CAUSAL, WINDOW, BN, DP, WHOLE_D, TMA, PRECISION,
        )  # fmt: skip
    if mask is None:
        d_q = _over_keys(
            d_q, q_tile, g_tile, lse, delta, k_at, v_at, mask_at, whole_first, whole_last, position, Lk, D, k_l, v_l,
            m_k, window, factor, cap, False, CAUSAL, WINDOW, BN, DP, WHOLE_D, TMA, PRECISION,
        )  # fmt: skip
    d_q = _over_keys(
        d_q, q_tile, g_tile, lse, delta, k_at, v_at, mask_at, whole_last, last, position, Lk, D, k_l, v_l, m_k,
        window, factor, cap, True, CAUSAL, WINDOW, BN, DP, WHOLE_D, TMA, PRECISION,
    )  # fmt: skip
    tl.store(
        dq + (head.to(tl.int64) * Lq + far) * D + column[None, :], (d_q * scale).to(dq.dtype.element_ty), mask=inside
    )  # fmt: skip


PREPARE, KEYS, QUERIES = Kernel(_prepare), Kernel(_keys), Kernel(_queries)


@functools.cache
def _launches(
    dim: int, dtype: torch.dtype, causal: bool, window: bool, tma: bool, capped: bool
) -> tuple[Launch, Launch, int, int]:
    """The two launches, and the rows of a tile in each."""
    padded = max(64, triton.next_power_of_2(dim))
    keys, queries = (CONFIGS.pick(name, D=dim, dtype=dtype, capped=int(capped)) for name in ("keys", "queries"))
    for options in (keys, queries):
        options["TMA"] = tma and options["TMA"]
        options |= {
            "CAUSAL": causal, "WINDOW": window, "DP": padded, "WHOLE_D": options["TMA"] or dim == padded,
            "PRECISION": "tf32x3" if dtype == torch.float32 else "tf32",
        }  # fmt: skip
    return KEYS.at(**keys), QUERIES.at(**queries), keys["BN"], queries["BM"]


@functools.cache
def _prepare_at(dim: int, dtype: torch.dtype) -> tuple[Launch, int]:
    options = CONFIGS.pick("prepare", D=dim, dtype=dtype)
    return PREPARE.at(DP=max(64, triton.next_power_of_2(dim)), **options), options["BM"]


def lse_and_delta(grad: Tensor, output: Tensor, lse: Tensor) -> Tensor:
    """[2, B, H, Lq]: lse in base 2, and delta."""
    batch, heads, queries, dim = grad.shape
    prepare, tile = _prepare_at(dim, grad.dtype)
    rows = torch.empty(2, batch, heads, queries, dtype=torch.float32, device=grad.device)
    prepare(
        (-(-queries // tile) * batch * heads, 1, 1), grad, output, lse, rows, *grad.stride()[:3],
        *output.stride()[:3], heads, batch * heads, queries, dim,
    )  # fmt: skip
    return rows


def of_sinks(sinks: Tensor, rows: Tensor) -> Tensor:
    """The gradient of sinks, by what ``lse_and_delta`` gives: what the weights of keys leave of delta."""
    weights = torch.exp2(sinks.float()[:, None] * 1.4426950408889634 - rows[0])
    return (weights * rows[1]).sum((0, 2)).neg_().to(sinks.dtype)


def gradients(
    results: tuple[Tensor, ...], grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor,
    mask: Tensor | None, sinks: Tensor | None, causal: bool, shift: int, window: int, scale: float,
    softcap: float | None, tma: bool,
) -> None:  # fmt: skip
    """Writes the gradients of q, k, v and sinks. ``mask`` is None or expanded to [B, H, Lq, Lk]; lse is contiguous."""
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    every, group = batch * heads, heads // kv_heads
    over_keys, over_queries, key_tile, query_tile = _launches(
        dim, q.dtype, causal, window > 0, tma, softcap is not None
    )
    cap, softcap = (None, None) if softcap is None else (scale / softcap, float(softcap))
    rows = lse_and_delta(grad, output, lse)
    inputs, gs = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3]), grad.stride()[:3]
    ms = mask.stride() if mask is not None else (0, 0, 0, 0)
    if sinks is not None:
        results[3].copy_(of_sinks(sinks, rows))
    over_keys(
        (-(-keys // key_tile) * batch * kv_heads, 1, 1), q, k, v, grad, rows, mask, results[1], results[2], *inputs,
        *gs, *ms, kv_heads, group, every, queries, keys, dim, shift, window, scale, cap,
        softcap,
    )  # fmt: skip
    over_queries(
        (-(-queries // query_tile) * every, 1, 1), q, k, v, grad, rows, mask, results[0], *inputs, *gs, *ms, heads,
        group, queries, keys, dim, shift, window, scale, cap, softcap,
    )  # fmt: skip
