"""block_sparse_attention on the GPU: tiles of queries against the blocks of keys on their lists.

``triton_lists`` makes the lists. Only a list's last block can be cut, by the diagonal or by the end of the keys: those
before it are swept without a comparison.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.attention.attention import new_output, readable
from kernelworks.ops.attention.attention.triton import _aligned
from kernelworks.ops.attention.block_sparse_attention.triton_backward import gradients
from kernelworks.ops.attention.block_sparse_attention.triton_lists import Lists, lists_of

CONFIGS = configs(__file__)
LOG2E = 1.4426950408889634
NUMBERS = ("l_b", "l_h", "H", "group", "Lq", "Lk")  # whose divisibility helps nothing: one build serves all


@triton.jit
def _sweep(
    acc, total, top, q, keys_at, values_at, list_at, first, last, row, Lk, D, k_stride, v_stride, factor,
    CUT: tl.constexpr, CAUSAL: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr, WHOLE_D: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The parts [first, last) of the listed blocks, BN keys each. ``CUT``: a query may not see some of them."""
    PARTS: tl.constexpr = 128 // BN
    column = tl.arange(0, DP)
    within = tl.arange(0, BN).to(tl.int64)[:, None]
    k_inner = within * k_stride + column[None, :]
    v_inner = within * v_stride + column[None, :]
    block = tl.load(list_at + first // PARTS)
    for part in tl.range(first, last):
        start = block * 128 + part % PARTS * BN
        block = tl.load(list_at + (part + 1) // PARTS)  # of the next one: is there when it is asked for
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
        if CUT:
            seen = key[None, :] < Lk
            if CAUSAL:
                seen = seen & (key[None, :] <= row[:, None])
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
    return acc, total, top


@triton.jit(do_not_specialize=NUMBERS)
def _listed(
    q, k, v, output, lse, lists, counts, order, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, o_b, o_h, o_l, l_b, l_h, H,
    group, Lq, Lk, D, factor, CAUSAL: tl.constexpr, SIGN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DP: tl.constexpr, WHOLE_D: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # The longest lists start first, of all heads.
    SHARES: tl.constexpr = 128 // BM
    heads = tl.num_programs(0) // (tl.cdiv(Lq, 128) * SHARES)
    tile, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    b, h = (head // H).to(tl.int64), (head % H).to(tl.int64)
    kv_h = h // group
    of_mask = b * l_b + h * l_h
    block = tl.load(order + 2 * (of_mask + tile // SHARES))
    blocks = tl.cdiv(Lk, 128)
    list_at = lists + (of_mask + block) * blocks
    count = tl.load(counts + of_mask + block)

    row = block * 128 + tile % SHARES * BM + tl.arange(0, BM)
    column = tl.arange(0, DP)
    inside = (row[:, None] < Lq) & (column[None, :] < D)
    far = row.to(tl.int64)[:, None]
    q_tile = tl.load(q + b * q_b + h * q_h + far * q_l + column[None, :], mask=inside, other=0.0)
    if SIGN != 1:
        q_tile = (q_tile.to(tl.float32) * SIGN).to(q_tile.dtype)
    k_base, v_base = k + b * k_b + kv_h * k_h, v + b * v_b + kv_h * v_h
    if TMA:
        keys_at = tl.make_tensor_descriptor(k_base, [Lk, D], [k_l, 1], [BN, DP])
        values_at = tl.make_tensor_descriptor(v_base, [Lk, D], [v_l, 1], [BN, DP])
    else:
        keys_at, values_at = k_base, v_base

    last = tl.load(list_at + count - 1, mask=count > 0, other=-1)
    cut = last * 128 + 128 > Lk
    if CAUSAL:
        cut = cut | (last == block)
    whole = count - cut.to(tl.int32)
    PARTS: tl.constexpr = 128 // BN
    acc = tl.zeros([BM, DP], tl.float32)
    total = tl.zeros([BM], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    acc, total, top = _sweep(
        acc, total, top, q_tile, keys_at, values_at, list_at, 0, whole * PARTS, row, Lk, D, k_l, v_l, factor, False,
        CAUSAL, BN, DP, WHOLE_D, TMA, PRECISION,
    )  # fmt: skip
    acc, total, top = _sweep(
        acc, total, top, q_tile, keys_at, values_at, list_at, whole * PARTS, count * PARTS, row, Lk, D, k_l, v_l,
        factor, True, CAUSAL, BN, DP, WHOLE_D, TMA, PRECISION,
    )  # fmt: skip
    # Of a listed block every query sees a key, also where the diagonal cuts it.
    out = tl.where(count > 0, acc / total[:, None], 0.0)
    o_place = output + b * o_b + h * o_h + far * o_l + column[None, :]
    tl.store(o_place, out.to(output.dtype.element_ty), mask=inside)
    if lse is not None:
        natural = (top + tl.log2(total)) * 0.6931471805599453
        tl.store(lse + head.to(tl.int64) * Lq + row, natural, mask=row < Lq)


FORWARD = Kernel(_listed)


@functools.cache
def _forward_at(
    dim: int, dtype: torch.dtype, causal: bool, sign: int, tma: bool, tiles: int
) -> tuple[Launch, int]:  # fmt: skip
    """The launch, and the queries of a tile. ``tiles``: how many there are of 128 queries."""
    padded = max(64, triton.next_power_of_2(dim))
    options = CONFIGS.pick("forward", D=dim, dtype=dtype, tiles=tiles)
    options["TMA"] = tma and options["TMA"]
    launch = FORWARD.at(
        CAUSAL=causal, SIGN=sign, DP=padded, WHOLE_D=options["TMA"] or dim == padded,
        PRECISION="tf32x3" if dtype == torch.float32 else "tf32", **options,
    )  # fmt: skip
    return launch, options["BM"]


def _run(
    q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor | None, lists: Lists, is_causal: bool, factor: float
) -> None:  # fmt: skip
    batch, heads, queries, dim = q.shape
    tiles = -(-queries // 128) * batch * heads
    launch, rows = _forward_at(
        dim, q.dtype, is_causal, (factor > 0) - (factor < 0), _aligned(k, v), min(tiles, 1024)
    )  # fmt: skip
    strides = [s for t in (q, k, v, output) for s in t.stride()[:3]]
    launch(
        (tiles * (128 // rows), 1, 1), q, k, v, output, lse, lists.lists, lists.counts, lists.order, *strides,
        lists.of_batch, lists.of_head, heads, heads // k.shape[1], queries, k.shape[2], dim,
        LOG2E * (abs(factor) or 1.0),
    )  # fmt: skip


def forward(
    query: Tensor, key: Tensor, value: Tensor, block_mask: Tensor, is_causal: bool, scale: float | None,
    enable_gqa: bool, with_lse: bool, out: Any = None,
) -> Any:  # fmt: skip
    """As the op package's other launches: the output, and lse where it is asked for."""
    output, lse = out if with_lse and out is not None else (out, None)
    if output is None:
        output = new_output(query)
        lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device) if with_lse else None
    if query.numel():
        if key.shape[2]:
            q, k, v = readable(query), readable(key), readable(value)
            factor = query.shape[3] ** -0.5 if scale is None else float(scale)
            _run(q, k, v, output, lse, lists_of(block_mask, is_causal), is_causal, factor)
        else:
            output.zero_()
            if lse is not None:
                lse.fill_(-torch.inf)
    return (output, lse) if with_lse else output


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor | None, block_mask: Tensor,
    is_causal: bool, scale: float | None, enable_gqa: bool, needs: list[bool], out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As the op package's other launches: the gradients of query, key and value."""
    inputs = (query, key, value)
    results = tuple(t.new_empty(t.shape) for t in inputs) if out is None else tuple(out)
    if not (query.numel() and key.numel()):
        for result in results:
            result.zero_()
        return results
    if lse is None or lse.numel() == 0:  # the forward was not asked for it
        output, lse = forward(*inputs, block_mask, is_causal, scale, enable_gqa, True)
    g, q, k, v, o = (readable(t) for t in (grad, *inputs, output))
    gradients(
        results, g, q, k, v, o, lse.contiguous(), block_mask, is_causal,
        query.shape[3] ** -0.5 if scale is None else float(scale), _aligned(g, q, k, v),
    )  # fmt: skip
    return results
