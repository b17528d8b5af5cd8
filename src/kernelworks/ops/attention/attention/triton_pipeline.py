"""The forward of attention for Hopper, its warps given roles by hand (Gluon, Triton's lower level).

One warp has the copy engine bring tiles of K and V into a ring of buffers; two groups of four warps each take 64
queries. A group starts the next scores and the last weighted sum together and works on the softmax of the former while
the matrix units finish the latter. Programs stay and take tile after tile, so that copies for the next tile run while
the last one is written. For head_dim 64 and 128 in 16 bits, with or without causal; ``triton.py`` does the rest.
"""

import functools

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernelworks.build.triton import Kernel, Launch, configs, interpreting

CONFIGS = configs(__file__)

# A store that never happens (a sum of weights is not negative). The assembler may not move the wait for the matrix
# units that follows ahead of it, nor therefore ahead of the softmax, as it does when left to itself.
LATER = gl.constexpr(
    "{ .reg .pred never; .reg .u32 zero; mov.u32 zero, 0; setp.lt.f32 never, $1, 0f00000000;"
    " @never st.volatile.shared.f32 [zero], $1; mov.b32 $0, $1; }"
)


@gluon.jit
def _place(turn, total, H, group, tiles):
    """The turn-th tile of this program: (first query, batch, head, key-value head). Long tiles come first, and every
    second round runs backwards, so that all programs get about as much."""
    programs = gl.num_programs(0)
    mine = gl.program_id(0)
    index = turn * programs + gl.where(turn % 2 == 0, mine, programs - 1 - mine)
    heads = total // tiles
    head = index % heads
    h = head % H
    return (tiles - 1 - index // heads) * 128, head // H, h, h // group


@gluon.jit
def _turns(total):
    programs = gl.num_programs(0)
    whole = total // programs
    mine = gl.program_id(0)
    last = gl.where(whole % 2 == 0, mine, programs - 1 - mine)
    return whole + (last < total - whole * programs).to(gl.int32)


@gluon.jit
def _blocks(first, Lk, shift, CAUSAL: gl.constexpr, BN: gl.constexpr):
    """How many blocks of keys 128 queries from ``first`` on take (one at least), and how many of them are cut."""
    last = Lk
    whole = Lk // BN
    if CAUSAL:
        last = gl.minimum(gl.maximum(first + 128 + shift, 0), Lk)
        whole = gl.maximum(gl.minimum(first + shift + 1, Lk), 0) // BN
    blocks = gl.maximum((last + BN - 1) // BN, 1)
    return blocks, blocks - gl.minimum(whole, blocks)


@gluon.jit
def _fetch(
    queries, keys, values, q_ring, k_ring, v_ring, q_full, q_free, k_full, k_free, v_full, v_free, total, H, group,
    tiles, Lk, shift, CAUSAL: gl.constexpr, BN: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    count = 0
    for turn in range(_turns(total)):
        first, b, h, kv_h = _place(turn, total, H, group, tiles)
        blocks, _ = _blocks(first, Lk, shift, CAUSAL, BN)
        for half in gl.static_range(2):
            slot = (turn & 1) * 2 + half
            mbarrier.wait(q_free.index(slot), ((turn >> 1) & 1) ^ 1)
            mbarrier.expect(q_full.index(slot), 64 * D * 2)
            tma.async_copy_global_to_shared(
                queries, [b, h, first + half * 64, 0], q_full.index(slot), q_ring.index(slot)
            )  # fmt: skip
        for i in range(blocks):
            slot, phase = count % STAGES, (count // STAGES) & 1
            start = (blocks - 1 - i) * BN
            mbarrier.wait(k_free.index(slot), phase ^ 1)
            mbarrier.expect(k_full.index(slot), BN * D * 2)
            tma.async_copy_global_to_shared(keys, [b, kv_h, start, 0], k_full.index(slot), k_ring.index(slot))
            mbarrier.wait(v_free.index(slot), phase ^ 1)
            mbarrier.expect(v_full.index(slot), BN * D * 2)
            tma.async_copy_global_to_shared(values, [b, kv_h, start, 0], v_full.index(slot), v_ring.index(slot))
            count += 1


@gluon.jit
def _weights(s, top, total, start, position, Lk, factor, CUT: gl.constexpr, CAUSAL: gl.constexpr):
    """Scores to weights: (weights, maximum, denominator, what earlier sums shrink by)."""
    if CUT:
        key = start + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
        seen = (key < Lk)[None, :]
        if CAUSAL:
            seen = seen & (key[None, :] <= position[:, None])
        s = gl.where(seen, s, float("-inf"))
    peak = gl.maximum(top, gl.max(s, 1) * factor)
    base = gl.where(peak == float("-inf"), 0.0, peak)
    p = gl.exp2(s * factor - base[:, None])
    shrink = gl.exp2(top - base)
    return p, peak, total * shrink + gl.sum(p, 1), shrink


@gluon.jit
def _step(
    p, o, top, total, q, k_ring, v_ring, k_full, k_free, v_full, v_free, count, start, position, Lk, factor,
    CUT: gl.constexpr, CAUSAL: gl.constexpr, BN: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr,
    HOLD: gl.constexpr,
):  # fmt: skip
    """Block ``count``: its scores, and the sum weighted by those of the block before."""
    slot, phase = count % STAGES, (count // STAGES) & 1
    old, old_phase = (count - 1) % STAGES, ((count - 1) // STAGES) & 1
    scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    mbarrier.wait(k_full.index(slot), phase)
    k = k_ring.index(slot).reshape([BN, D]).permute((1, 0))
    s = warpgroup_mma(q, k, gl.zeros([64, BN], gl.float32, scores), use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(old), old_phase)
    o = warpgroup_mma(p, v_ring.index(old).reshape([BN, D]), o, is_async=True)
    s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
    mbarrier.arrive(k_free.index(slot), count=1)
    weights, top, total, shrink = _weights(s, top, total, start, position, Lk, factor, CUT, CAUSAL)
    if HOLD:
        total = gl.inline_asm_elementwise(LATER, "=f,f", [total], dtype=gl.float32, is_pure=False, pack=1)
    o, p = warpgroup_mma_wait(num_outstanding=0, deps=(o, p))
    mbarrier.arrive(v_free.index(old), count=1)
    o = o * gl.convert_layout(shrink, gl.SliceLayout(1, o.type.layout))[:, None]
    p = gl.convert_layout(weights.to(p.dtype), p.type.layout)
    return p, o, top, total


@gluon.jit
def _attend(
    outputs, lse, q_ring, k_ring, v_ring, q_full, q_free, k_full, k_free, v_full, v_free, total_tiles, H, group, tiles,
    Lq, Lk, shift, factor, HALF: gl.constexpr, CAUSAL: gl.constexpr, BN: gl.constexpr, D: gl.constexpr,
    STAGES: gl.constexpr, HOLD: gl.constexpr,
):  # fmt: skip
    scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    rows: gl.constexpr = gl.SliceLayout(1, scores)
    dtype: gl.constexpr = q_ring.dtype
    count = 0
    for turn in range(_turns(total_tiles)):
        first, b, h, _ = _place(turn, total_tiles, H, group, tiles)
        blocks, cut = _blocks(first, Lk, shift, CAUSAL, BN)
        row = first + HALF * 64 + gl.arange(0, 64, rows)
        position = row + shift
        mine = (turn & 1) * 2 + HALF
        q = q_ring.index(mine).reshape([64, D])
        mbarrier.wait(q_full.index(mine), (turn >> 1) & 1)

        slot, phase = count % STAGES, (count // STAGES) & 1
        mbarrier.wait(k_full.index(slot), phase)
        k = k_ring.index(slot).reshape([BN, D]).permute((1, 0))
        s = warpgroup_mma(q, k, gl.zeros([64, BN], gl.float32, scores), use_acc=False, is_async=True)
        tma.store_wait(0)  # of the tile before, whose output went through its queries' place
        mbarrier.arrive(q_free.index(((turn + 1) & 1) * 2 + HALF), count=1, pred=turn > 0)
        s = warpgroup_mma_wait(num_outstanding=0, deps=(s,))
        mbarrier.arrive(k_free.index(slot), count=1)
        top = gl.full([64], float("-inf"), gl.float32, rows)
        total = gl.zeros([64], gl.float32, rows)
        weights, top, total, _ = _weights(s, top, total, (blocks - 1) * BN, position, Lk, factor, True, CAUSAL)
        p = gl.convert_layout(weights.to(dtype), operand)
        o = gl.zeros([64, D], gl.float32, sums)
        cut = gl.maximum(cut, 1)
        for i in range(1, cut):
            p, o, top, total = _step(
                p, o, top, total, q, k_ring, v_ring, k_full, k_free, v_full, v_free, count + i, (blocks - 1 - i) * BN,
                position, Lk, factor, True, CAUSAL, BN, D, STAGES, HOLD,
            )  # fmt: skip
        for i in range(cut, blocks):
            p, o, top, total = _step(
                p, o, top, total, q, k_ring, v_ring, k_full, k_free, v_full, v_free, count + i, (blocks - 1 - i) * BN,
                position, Lk, factor, False, CAUSAL, BN, D, STAGES, HOLD,
            )  # fmt: skip
        count += blocks
        old, old_phase = (count - 1) % STAGES, ((count - 1) // STAGES) & 1
        mbarrier.wait(v_full.index(old), old_phase)
        o = warpgroup_mma(p, v_ring.index(old).reshape([BN, D]), o, is_async=True)
        o, p = warpgroup_mma_wait(num_outstanding=0, deps=(o, p))
        mbarrier.arrive(v_free.index(old), count=1)

        last = gl.full([64], 0, gl.int32, rows) + Lk - 1
        if CAUSAL:
            last = gl.minimum(last, position)
        seen = gl.convert_layout(last >= 0, gl.SliceLayout(1, sums))
        whole = gl.convert_layout(total, gl.SliceLayout(1, sums))
        o = gl.where(seen[:, None], o / whole[:, None], 0.0)
        q.store(o.to(dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(outputs, [b, h, first + HALF * 64, 0], q_ring.index(mine))
        if lse is not None:
            natural = (top + gl.log2(total)) * 0.6931471805599453
            gl.store(lse + (b * H + h).to(gl.int64) * Lq + row, natural, mask=row < Lq)
    tma.store_wait(0)


@gluon.jit
def _pipeline(
    q, k, v, mask, output, lse, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, o_b, o_h, o_l, B, H, group, Lq, Lk, shift,
    factor, CAUSAL: gl.constexpr, BN: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, HOLD: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = q.dtype.element_ty
    q_shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, 64, D], dtype)
    k_shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, BN, D], dtype)
    Hkv = H // group
    queries = tma.make_tensor_descriptor(q, [B, H, Lq, D], [q_b, q_h, q_l, 1], [1, 1, 64, D], q_shared)
    keys = tma.make_tensor_descriptor(k, [B, Hkv, Lk, D], [k_b, k_h, k_l, 1], [1, 1, BN, D], k_shared)
    values = tma.make_tensor_descriptor(v, [B, Hkv, Lk, D], [v_b, v_h, v_l, 1], [1, 1, BN, D], k_shared)
    outputs = tma.make_tensor_descriptor(output, [B, H, Lq, D], [o_b, o_h, o_l, 1], [1, 1, 64, D], q_shared)
    q_ring = gl.allocate_shared_memory(dtype, [4, 1, 1, 64, D], q_shared)  # two halves of this tile and of the next
    k_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BN, D], k_shared)
    v_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BN, D], k_shared)
    q_full = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    q_free = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(4):
        mbarrier.init(q_full.index(slot), count=1)
        mbarrier.init(q_free.index(slot), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(k_free.index(slot), count=2)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(v_free.index(slot), count=2)
    tiles = (Lq + 127) // 128
    total = tiles * B * H
    gl.warp_specialize(
        [
            (
                _attend,
                (
                    outputs, lse, q_ring, k_ring, v_ring, q_full, q_free, k_full, k_free, v_full, v_free, total, H,
                    group, tiles, Lq, Lk, shift, factor, 0, CAUSAL, BN, D, STAGES, HOLD,
                ),
            ),
            (
                _attend,
                (
                    outputs, lse, q_ring, k_ring, v_ring, q_full, q_free, k_full, k_free, v_full, v_free, total, H,
                    group, tiles, Lq, Lk, shift, factor, 1, CAUSAL, BN, D, STAGES, HOLD,
                ),
            ),
            (
                _fetch,
                (
                    queries, keys, values, q_ring, k_ring, v_ring, q_full, q_free, k_full, k_free, v_full, v_free,
                    total, H, group, tiles, Lk, shift, CAUSAL, BN, D, STAGES,
                ),
            ),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


PIPELINE = Kernel(_pipeline)


@functools.cache
def pipeline_at(dim: int, dtype: torch.dtype, causal: bool, tiles: int) -> Launch | None:
    """The launch for these, or None where the table has none. ``tiles``: how many there are of 128 queries."""
    if interpreting() or dtype == torch.float32 or dim not in (64, 128):
        return None
    try:
        return PIPELINE.at(CAUSAL=causal, D=dim, **CONFIGS.pick("pipeline", D=dim, tiles=tiles))
    except LookupError:
        return None
