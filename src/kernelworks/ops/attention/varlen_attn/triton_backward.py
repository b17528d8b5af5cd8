"""The gradients of varlen_attn on the GPU: attention's two kernels without atomics, over the tiles of all sequences.

One keeps a tile of a sequence's keys and passes over its queries (gradients of key and value), the other keeps a tile
of queries and passes over the keys (gradient of query).
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.attention.attention.triton_backward import _over_keys, _over_queries, _prepare
from kernelworks.ops.attention.varlen_attn.triton_sequences import ends_of, sequence_of

CONFIGS = configs(__file__)
# Whose divisibility helps nothing: one build serves all.
NUMBERS = ("H", "Hkv", "heads", "group", "T", "Tk", "N", "offset", "window")


@triton.jit(do_not_specialize=NUMBERS)
def _packed_keys(
    q, k, v, grad, rows, dk, dv, ends_q, ends_k, q_h, q_l, k_h, k_l, v_h, v_l, g_h, g_l, Hkv, group, T, Tk, N, D,
    offset, window, scale, WINDOW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr,
    WHOLE_D: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    unit, kv_h = tl.program_id(0) // Hkv, (tl.program_id(0) % Hkv).to(tl.int64)
    sequence, before, _ = sequence_of(ends_k, N, unit, BN)
    if sequence >= N:
        return
    tile = unit - before  # under causal the first keys are seen by most queries: they start first
    first_q, Lq = ends_of(ends_q, sequence, T)
    first_k, Lk = ends_of(ends_k, sequence, Tk)
    shift = Lk - Lq + offset
    key, column = tile * BN + tl.arange(0, BN), tl.arange(0, DP)
    far = first_k + key.to(tl.int64)[:, None]
    inside = (key[:, None] < Lk) & (column[None, :] < D)
    k_tile = tl.load(k + kv_h * k_h + far * k_l + column[None, :], mask=inside, other=0.0)
    v_tile = tl.load(v + kv_h * v_h + far * v_l + column[None, :], mask=inside, other=0.0)
    factor = scale * 1.4426950408889634

    # Queries [first, last) see some key of the tile, [whole_first, whole_last) every one.
    first = tl.minimum(tl.maximum(tile * BN - shift, 0), Lq) // BM * BM
    whole_first = tl.cdiv(tl.minimum(tl.maximum(tile * BN + BN - 1 - shift, 0), Lq), BM) * BM
    last = Lq
    whole_last = Lq // BM * BM
    if WINDOW:
        last = tl.minimum(tl.maximum(tile * BN + BN - 1 - shift + window, 0), Lq)
        whole_last = tl.minimum(tl.maximum(tile * BN - shift + window, 0), Lq) // BM * BM
    whole_first = tl.minimum(whole_first, tl.cdiv(last, BM) * BM)
    whole_last = tl.maximum(whole_last, whole_first)

    d_k = tl.zeros([BN, DP], tl.float32)
    d_v = tl.zeros([BN, DP], tl.float32)
    for member in range(group):
        h = kv_h * group + member
        q_at, g_at = q + h * q_h + first_q * q_l, grad + h * g_h + first_q * g_l
        lse_at = rows + h * T + first_q
        delta_at = lse_at + tl.cast(Hkv * group, tl.int64) * T
        if TMA:
            q_at = tl.make_tensor_descriptor(q_at, [tl.maximum(Lq, 1), D], [q_l, 1], [BM, DP])
            g_at = tl.make_tensor_descriptor(g_at, [tl.maximum(Lq, 1), D], [g_l, 1], [BM, DP])
        d_k, d_v = _over_queries(
            d_k, d_v, k_tile, v_tile, q_at, g_at, lse_at, delta_at, None, first, whole_first, key, Lq, Lk, D, q_l, g_l,
            0, shift, window, factor, None, True, True, WINDOW, BM, DP, WHOLE_D, TMA, PRECISION,
        )  # fmt: skip
        d_k, d_v = _over_queries(
            d_k, d_v, k_tile, v_tile, q_at, g_at, lse_at, delta_at, None, whole_first, whole_last, key, Lq, Lk, D, q_l,
            g_l, 0, shift, window, factor, None, False, True, WINDOW, BM, DP, WHOLE_D, TMA, PRECISION,
        )  # fmt: skip
        d_k, d_v = _over_queries(
            d_k, d_v, k_tile, v_tile, q_at, g_at, lse_at, delta_at, None, whole_last, last, key, Lq, Lk, D, q_l, g_l, 0,
            shift, window, factor, None, True, True, WINDOW, BM, DP, WHOLE_D, TMA, PRECISION,
        )  # fmt: skip
    place = (far * Hkv + kv_h) * D + column[None, :]
    tl.store(dk + place, (d_k * scale).to(dk.dtype.element_ty), mask=inside)
    tl.store(dv + place, d_v.to(dv.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=NUMBERS)
def _packed_queries(
    q, k, v, grad, rows, dq, ends_q, ends_k, q_h, q_l, k_h, k_l, v_h, v_l, g_h, g_l, H, group, T, Tk, N, D, offset,
    window, scale, WINDOW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr, WHOLE_D: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    unit, h = tl.program_id(0) // H, (tl.program_id(0) % H).to(tl.int64)
    sequence, before, tiles = sequence_of(ends_q, N, unit, BM)
    if sequence >= N:
        return
    tile = tiles - 1 - (unit - before)
    first_q, Lq = ends_of(ends_q, sequence, T)
    first_k, Lk = ends_of(ends_k, sequence, Tk)
    shift = Lk - Lq + offset
    kv_h = h // group
    row, column = tile * BM + tl.arange(0, BM), tl.arange(0, DP)
    far = first_q + row.to(tl.int64)[:, None]
    inside = (row[:, None] < Lq) & (column[None, :] < D)
    q_tile = tl.load(q + h * q_h + far * q_l + column[None, :], mask=inside, other=0.0)
    g_tile = tl.load(grad + h * g_h + far * g_l + column[None, :], mask=inside, other=0.0)
    place = h * T + first_q + row
    lse = tl.load(rows + place, mask=row < Lq, other=float("inf"))
    delta = tl.load(rows + tl.cast(H, tl.int64) * T + place, mask=row < Lq, other=0.0)
    position = row + shift
    factor = scale * 1.4426950408889634
    k_at, v_at = k + kv_h * k_h + first_k * k_l, v + kv_h * v_h + first_k * v_l
    if TMA:
        k_at = tl.make_tensor_descriptor(k_at, [tl.maximum(Lk, 1), D], [k_l, 1], [BN, DP])
        v_at = tl.make_tensor_descriptor(v_at, [tl.maximum(Lk, 1), D], [v_l, 1], [BN, DP])

    first = 0
    whole_first = 0
    last = tl.minimum(tl.maximum(tile * BM + BM + shift, 0), Lk)
    whole_last = tl.maximum(tl.minimum(tile * BM + shift + 1, Lk), 0) // BN * BN
    if WINDOW:
        first = tl.maximum(tile * BM + shift - window + 1, 0) // BN * BN
        whole_first = tl.cdiv(tl.maximum(tile * BM + BM - 1 + shift - window + 1, 0), BN) * BN
        whole_first = tl.minimum(whole_first, tl.cdiv(last, BN) * BN)
    whole_last = tl.maximum(whole_last, whole_first)
    d_q = tl.zeros([BM, DP], tl.float32)
    if WINDOW:
        d_q = _over_keys(
            d_q, q_tile, g_tile, lse, delta, k_at, v_at, None, first, whole_first, position, Lk, D, k_l, v_l, 0, window,
            factor, None, True, True, WINDOW, BN, DP, WHOLE_D, TMA, PRECISION,
        )  # fmt: skip
    d_q = _over_keys(
        d_q, q_tile, g_tile, lse, delta, k_at, v_at, None, whole_first, whole_last, position, Lk, D, k_l, v_l, 0,
        window, factor, None, False, True, WINDOW, BN, DP, WHOLE_D, TMA, PRECISION,
    )  # fmt: skip
    d_q = _over_keys(
        d_q, q_tile, g_tile, lse, delta, k_at, v_at, None, whole_last, last, position, Lk, D, k_l, v_l, 0, window,
        factor, None, True, True, WINDOW, BN, DP, WHOLE_D, TMA, PRECISION,
    )  # fmt: skip
    tl.store(dq + (far * H + h) * D + column[None, :], (d_q * scale).to(dq.dtype.element_ty), mask=inside)


PREPARE, KEYS, QUERIES = Kernel(_prepare), Kernel(_packed_keys), Kernel(_packed_queries)


@functools.cache
def _launches(
    dim: int, dtype: torch.dtype, window: bool, tma: bool
) -> tuple[Launch, Launch, Launch, int, int, int]:  # fmt: skip
    """The three launches, and the rows of a tile in each."""
    padded = max(64, triton.next_power_of_2(dim))
    prepare, keys, queries = (CONFIGS.pick(name, D=dim, dtype=dtype) for name in ("prepare", "keys", "queries"))
    for options in (keys, queries):
        options["TMA"] = tma and options["TMA"]
        options |= {
            "WINDOW": window, "DP": padded, "WHOLE_D": options["TMA"] or dim == padded,
            "PRECISION": "tf32x3" if dtype == torch.float32 else "tf32",
        }  # fmt: skip
    launches = PREPARE.at(DP=padded, **prepare), KEYS.at(**keys), QUERIES.at(**queries)
    return *launches, prepare["BM"], keys["BN"], queries["BM"]


def gradients(
    results: tuple[Tensor, ...], grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor,
    ends_q: Tensor, ends_k: Tensor, offset: int, window: int, scale: float, tma: bool,
) -> None:  # fmt: skip
    """Writes the gradients of query, key and value, which are contiguous. Inputs are [1, H, T, D]."""
    _, heads, tokens, dim = q.shape
    _, kv_heads, keys, _ = k.shape
    sequences = ends_q.shape[0] - 1
    prepare, over_keys, over_queries, of_rows, of_keys, of_queries = _launches(dim, q.dtype, window > 0, tma)
    rows = torch.empty(2, heads, tokens, dtype=torch.float32, device=q.device)  # lse in base 2, and delta
    prepare(
        (-(-tokens // of_rows) * heads, 1, 1), grad, output, lse, rows, *grad.stride()[:3], *output.stride()[:3], heads,
        heads, tokens, dim,
    )  # fmt: skip
    strides = [s for t in (q, k, v, grad) for s in t.stride()[1:3]]
    rest = (heads // kv_heads, tokens, keys, sequences, dim, offset, window, scale)
    over_keys(
        ((keys + sequences * (of_keys - 1)) // of_keys * kv_heads, 1, 1), q, k, v, grad, rows, results[1], results[2],
        ends_q, ends_k, *strides, kv_heads, *rest,
    )  # fmt: skip
    over_queries(
        ((tokens + sequences * (of_queries - 1)) // of_queries * heads, 1, 1), q, k, v, grad, rows, results[0], ends_q,
        ends_k, *strides, heads, *rest,
    )  # fmt: skip
