"""attention on the GPU: tiles of queries against tiles of keys, both products on the matrix units.

The softmax is kept up to date as keys pass. Tiles that causal or window cut are swept apart from those that every
query sees, so that the larger part of the work holds no comparison. Few queries have ``triton_decode``.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs, multiprocessors
from kernelworks.ops.attention.attention import new_output, readable
from kernelworks.ops.attention.attention.triton_backward import gradients
from kernelworks.ops.attention.attention.triton_decode import MOST_ROWS, decode, decode_again
from kernelworks.ops.attention.attention.triton_pipeline import pipeline_at
from kernelworks.ops.attention.attention.triton_softcap import tanh

CONFIGS = configs(__file__)
LOG2E = 1.4426950408889634
CONTIGUOUS = torch.contiguous_format
NUMBERS = (
    "H",
    "group",
    "Lq",
    "Lk",
    "shift",
    "window",
    "m_b",
    "m_h",
    "m_q",
    "m_k",
)  # whose divisibility helps nothing: one build serves all


@triton.jit
def _sweep(
    acc, total, top, some, q, keys_at, values_at, mask_at, first, last, position, Lk, D, k_stride, v_stride,
    mask_stride, window, factor, cap, CUT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BN: tl.constexpr,
    DP: tl.constexpr, WHOLE_D: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One run over the keys [first, last). ``CUT``: some query of the tile may not see some of them. ``cap``: None, or
    what a score's tangent is taken of."""
    column = tl.arange(0, DP)
    within = tl.arange(0, BN).to(tl.int64)[:, None]
    k_inner = within * k_stride + column[None, :]
    v_inner = within * v_stride + column[None, :]
    for start in tl.range(first, last, BN):
        key = start + tl.arange(0, BN)
        if TMA:
            k = keys_at.load([start, 0])
        else:
            k_place = keys_at + tl.cast(start, tl.int64) * k_stride + k_inner
            if CUT:
                k = tl.load(k_place, mask=(key[:, None] < Lk) & (column[None, :] < D), other=0.0)
            elif WHOLE_D:
                k = tl.load(k_place)
            else:
                k = tl.load(k_place, mask=column[None, :] < D, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if cap is not None:
            s = tanh(s * cap)
        if CUT:
            seen = key[None, :] < Lk
            if CAUSAL:
                seen = seen & (key[None, :] <= position[:, None])
            if WINDOW:
                seen = seen & (key[None, :] > position[:, None] - window)
            if mask_at is not None:
                seen = seen & (tl.load(mask_at + key.to(tl.int64)[None, :] * mask_stride, mask=seen, other=0) != 0)
                some = tl.maximum(some, tl.max(seen.to(tl.int32), 1))
            s = tl.where(seen, s, float("-inf"))
        peak = tl.maximum(top, tl.max(s, 1) * factor)
        base = tl.where(peak == float("-inf"), 0.0, peak)  # nothing seen so far: exp2(-inf - -inf) would be NaN
        p = tl.exp2(s * factor - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        if TMA:
            v = values_at.load([start, 0])
        else:
            v_place = values_at + tl.cast(start, tl.int64) * v_stride + v_inner
            if CUT:
                v = tl.load(v_place, mask=(key[:, None] < Lk) & (column[None, :] < D), other=0.0)
            elif WHOLE_D:
                v = tl.load(v_place)
            else:
                v = tl.load(v_place, mask=column[None, :] < D, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        top = peak
    return acc, total, top, some


@triton.jit(do_not_specialize=NUMBERS)
def _forward(
    q, k, v, mask, output, lse, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, o_b, o_h, o_l, m_b, m_h, m_q, m_k,
    H, group, Lq, Lk, D, shift, window, factor, cap, sinks, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    SIGN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr, WHOLE_D: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # Tiles of the last queries see most keys under causal: they start first, for all heads.
    tiles = tl.cdiv(Lq, BM)
    heads = tl.num_programs(0) // tiles
    tile = tiles - 1 - tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    b, h = (head // H).to(tl.int64), (head % H).to(tl.int64)
    kv_h = h // group

    row = tile * BM + tl.arange(0, BM)
    column = tl.arange(0, DP)
    position = row + shift
    inside = (row[:, None] < Lq) & (column[None, :] < D)
    q_tile = tl.load(
        q + b * q_b + h * q_h + row.to(tl.int64)[:, None] * q_l + column[None, :], mask=inside, other=0.0
    )  # fmt: skip
    if SIGN != 1:
        q_tile = (q_tile.to(tl.float32) * SIGN).to(q_tile.dtype)
    k_base, v_base = k + b * k_b + kv_h * k_h, v + b * v_b + kv_h * v_h
    if TMA:
        keys_at = tl.make_tensor_descriptor(k_base, [Lk, D], [k_l, 1], [BN, DP])
        values_at = tl.make_tensor_descriptor(v_base, [Lk, D], [v_l, 1], [BN, DP])
    else:
        keys_at, values_at = k_base, v_base
    mask_at = None
    if mask is not None:
        mask_at = mask + b * m_b + h * m_h + tl.minimum(row, Lq - 1).to(tl.int64)[:, None] * m_q

    # Keys [first, last) are seen by some query of the tile, [whole_first, whole_last) by every one.
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

    acc = tl.zeros([BM, DP], tl.float32)
    total = tl.zeros([BM], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    some = tl.zeros([BM], tl.int32)
    if sinks is not None:  # as if a key without a value had passed
        top = tl.zeros([BM], tl.float32) + tl.load(sinks + h).to(tl.float32) * 1.4426950408889634
        total += 1.0
    if WINDOW:
        acc, total, top, some = _sweep(
            acc, total, top, some, q_tile, keys_at, values_at, mask_at, first, whole_first, position, Lk, D, k_l, v_l,
            m_k, window, factor, cap, True, CAUSAL, WINDOW, BN, DP, WHOLE_D, TMA, PRECISION,
        )  # fmt: skip
    if mask is None:
        acc, total, top, some = _sweep(
            acc, total, top, some, q_tile, keys_at, values_at, mask_at, whole_first, whole_last, position, Lk, D, k_l,
            v_l, m_k, window, factor, cap, False, CAUSAL, WINDOW, BN, DP, WHOLE_D, TMA, PRECISION,
        )  # fmt: skip
    acc, total, top, some = _sweep(
        acc, total, top, some, q_tile, keys_at, values_at, mask_at, whole_last, last, position, Lk, D, k_l, v_l,
        m_k, window, factor, cap, True, CAUSAL, WINDOW, BN, DP, WHOLE_D, TMA, PRECISION,
    )  # fmt: skip

    if mask is None:
        nearest = tl.full([BM], 0, tl.int32)
        farthest = tl.full([BM], 0, tl.int32) + Lk - 1
        if CAUSAL:
            farthest = tl.minimum(farthest, position)
        if WINDOW:
            nearest = tl.maximum(nearest, position - window + 1)
        any_seen = nearest <= farthest
    else:
        any_seen = some > 0
    out = tl.where(any_seen[:, None], acc / total[:, None], 0.0)
    o_place = output + b * o_b + h * o_h + row.to(tl.int64)[:, None] * o_l + column[None, :]
    tl.store(o_place, out.to(output.dtype.element_ty), mask=inside)
    if lse is not None:
        natural = (top + tl.log2(total)) * 0.6931471805599453
        tl.store(lse + head.to(tl.int64) * Lq + row, natural, mask=row < Lq)


FORWARD = Kernel(_forward)


@functools.cache
def _forward_at(
    dim: int, dtype: torch.dtype, causal: bool, window: bool, sign: int, tma: bool, tiles: int, queries: int,
    capped: bool,
) -> tuple[Launch, int]:  # fmt: skip
    """The launch, and the queries of a tile. ``tiles``: how many there are of 128 queries."""
    padded = max(64, triton.next_power_of_2(dim))
    options = CONFIGS.pick("forward", D=dim, dtype=dtype, tiles=tiles, queries=queries, capped=int(capped))
    options["TMA"] = tma and options["TMA"]
    launch = FORWARD.at(
        CAUSAL=causal, WINDOW=window, SIGN=sign, DP=padded, WHOLE_D=options["TMA"] or dim == padded,
        PRECISION="tf32x3" if dtype == torch.float32 else "tf32", **options,
    )  # fmt: skip
    return launch, options["BM"]


def _aligned(*tensors: Tensor) -> bool:
    """Whether the copy engine can fetch tiles of these: addresses and strides in multiples of 16 bytes."""
    for t in tensors:
        size = t.element_size()
        if t.data_ptr() % 16 or t.stride(0) * size % 16 or t.stride(1) * size % 16 or t.stride(2) * size % 16:
            return False
    return True


def _find_launch(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, output: Tensor, causal: bool, shift: int, window: int | None,
    factor: float, softcap: float | None, sinks: Tensor | None,
) -> tuple[Launch, tuple[int, int, int], tuple[Any, ...]]:  # fmt: skip
    """The launch for these, its grid, and what follows ``q, k, v, mask, output, lse``."""
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    sign, cap, scaled = (factor > 0) - (factor < 0), None, abs(factor) or 1.0
    if softcap is not None:  # the tangents of scores are what is scaled, and compared before that
        sign, cap, scaled = 1, factor / softcap, softcap
    tiles = min(-(-queries // 128) * batch * heads, 1024)
    tma = _aligned(k, v)
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *output.stride()[:3])
    plain = mask is None and window is None and cap is None and sinks is None
    if tma and plain and sign == 1 and _aligned(q, output):
        pipeline = pipeline_at(dim, q.dtype, causal, tiles)
        if pipeline is not None:
            total = -(-queries // 128) * batch * heads
            return pipeline, (min(total, multiprocessors(q.device)), 1, 1), (
                *strides, batch, heads, heads // kv_heads, queries, keys, shift, LOG2E * scaled,
            )  # fmt: skip
    launch, rows = _forward_at(
        dim, q.dtype, causal, window is not None, sign, tma, tiles, min(queries, 1024), cap is not None
    )
    return launch, (-(-queries // rows) * batch * heads, 1, 1), (
        *strides, *(mask.stride() if mask is not None else (0, 0, 0, 0)), heads, heads // kv_heads, queries, keys, dim,
        shift, window or 0, LOG2E * scaled, cap, sinks,
    )  # fmt: skip


def forward(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None, mask: Tensor | None,
    with_lse: bool, softcap: float | None = None, sinks: Tensor | None = None, out: Any = None,
) -> Any:  # fmt: skip
    """As the op package's other launches: the output, and lse where it is asked for."""
    output, lse = out if with_lse and out is not None else (out, None)
    if output is None:
        output = new_output(q)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if with_lse else None
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    if not (batch and heads and queries):
        return (output, lse) if with_lse else output
    if not keys:
        output.zero_()
        if with_lse and lse is not None:
            lse.copy_(sinks[:, None]) if sinks is not None else lse.fill_(-torch.inf)
        return (output, lse) if with_lse else output
    q, k, v = readable(q), readable(k), readable(v)
    if mask is not None:
        mask = mask.expand(batch, heads, queries, keys)
    if sinks is not None:
        sinks = sinks.contiguous()
    factor = dim**-0.5 if scale is None else float(scale)
    shift = keys - queries if causal == "bottom_right" else 0
    if queries * heads <= MOST_ROWS * kv_heads:
        decode(q, k, v, mask, sinks, output, lse, causal is not None, shift, window or 0, factor, softcap)
    else:
        launch, grid, rest = _find_launch(
            q, k, v, mask, output, causal is not None, shift, window, factor, softcap, sinks
        )
        launch(grid, q, k, v, mask, output, lse, *rest)
    return (output, lse) if with_lse else output


def prepare_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None, mask: Tensor | None,
    with_lse: bool, softcap: float | None = None, sinks: Tensor | None = None,
) -> Callable[..., Any] | None:  # fmt: skip
    """What serves calls like this one without working anything out again; None where something must be copied."""
    queries, keys = q.shape[2], k.shape[2]
    if (
        mask is not None
        or sinks is not None
        or not (q.numel() and keys)
        or any(readable(t) is not t or t.data_ptr() & 15 for t in (q, k, v))
    ):
        return None
    lse_shape, device, empty, float32 = q.shape[:3], q.device, torch.empty, torch.float32
    output = new_output(q)
    factor = q.shape[3] ** -0.5 if scale is None else float(scale)
    shift = keys - queries if causal == "bottom_right" else 0
    run: Callable[..., None]
    if queries * q.shape[1] <= MOST_ROWS * k.shape[1]:
        lse = empty(lse_shape, dtype=float32, device=device) if with_lse else None
        run = decode_again(q, k, v, output, lse, causal is not None, shift, window or 0, factor, softcap)
    else:
        launch, grid, rest = _find_launch(
            q, k, v, None, output, causal is not None, shift, window, factor, softcap, None
        )

        def run(q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor | None = None) -> None:
            launch(grid, q, k, v, None, output, lse, *rest)

    def call(
        q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None,
        mask: Tensor | None, with_lse: bool, softcap: float | None = None, sinks: None = None, out: Any = None,
    ) -> Any:  # fmt: skip
        if out is not None or (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15:
            return forward(q, k, v, causal, window, scale, mask, with_lse, softcap, sinks, out)
        output = new_output(q)
        if with_lse:
            lse = empty(lse_shape, dtype=float32, device=device)
            run(q, k, v, output, lse)
            return output, lse
        run(q, k, v, output)
        return output

    return call


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor | None, causal: str | None,
    window: int | None, scale: float | None, mask: Tensor | None, needs: list[bool], softcap: float | None = None,
    sinks: Tensor | None = None, out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As the op package's other launches: the gradients of q, k, v and sinks."""
    if out is not None:
        results: Any = out
    else:
        results = tuple(torch.empty_like(t, memory_format=CONTIGUOUS) for t in (q, k, v))
        results += (q.new_empty(0) if sinks is None else torch.empty_like(sinks),)
    if q.numel() == 0 or k.numel() == 0:
        for result in results:
            result.zero_()
        return tuple(results)
    if lse is None or lse.numel() == 0:  # the forward was not asked for it
        output, lse = forward(q, k, v, causal, window, scale, mask, True, softcap, sinks)
    lse = lse.contiguous()
    grad, q, k, v, output = (readable(t) for t in (grad, q, k, v, output))
    if mask is not None:
        mask = mask.expand(*q.shape[:3], k.shape[2])
    gradients(
        tuple(results), grad, q, k, v, output, lse, mask, sinks, causal is not None,
        k.shape[2] - q.shape[2] if causal == "bottom_right" else 0, window or 0,
        q.shape[3] ** -0.5 if scale is None else float(scale), softcap, _aligned(grad, q, k, v),
    )  # fmt: skip
    return tuple(results)
