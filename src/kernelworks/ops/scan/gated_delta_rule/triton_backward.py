"""The gradients of gated_delta_rule on the GPU, by chunks of steps (``simd/states/state_chunks.hpp`` has the formulas).

Three launches: the states at the start of each chunk, from the first step to the last; then, from the last to the
first, what each chunk sends back, a program for some columns of a head's state; then the gradients of queries and
keys, sums over the columns' programs and over the value heads of a key head. No sum is taken by atomic additions, so
that the same call gives the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs, kernel
from kernelworks.ops.scan.gated_delta_rule.contract import EPS, scale_of, state_shape
from kernelworks.ops.scan.gated_delta_rule.triton_chunked import CHUNKED, DEPTH, _product, _row, _vectors
from kernelworks.ops.scan.gated_delta_rule.triton_launch import LOWEST, ColumnLaunch

PLACES = 16  # of a gradient that a program of the last launch writes


@kernel
def _solved(system, right, rate, BACKWARD: tl.constexpr, CHUNK: tl.constexpr):
    """``x`` with ``x + system (rate x) = right`` (backward: its transpose), row after row, and ``rate x``."""
    t = tl.arange(0, CHUNK)
    x, scaled = tl.zeros_like(right), tl.zeros_like(right)
    for n in range(CHUNK):
        row = CHUNK - 1 - n if BACKWARD else n
        is_row = t == row
        if BACKWARD:
            along = tl.sum(tl.where(is_row[None, :], system, 0.0), 1)
        else:
            along = _row(system, is_row)
        own = _row(right, is_row) - tl.sum(along[:, None] * scaled, 0)
        x = tl.where(is_row[:, None], own[None, :], x)
        scaled = tl.where(is_row[:, None], own[None, :] * rate[:, None], scaled)
    return x, scaled


@kernel
def _gates(at, stride, step, counts, LOWEST: tl.constexpr):
    """Running sums of a chunk's gates in float64, so that differences of long ones are exact, and the whole sum."""
    gate = tl.load(at + step * stride, mask=counts, other=0.0).to(tl.float32)
    gate = tl.maximum(gate, LOWEST, propagate_nan=tl.PropagateNan.ALL).to(tl.float64)
    return tl.cumsum(gate, 0), tl.sum(gate, 0)


@kernel
def _of_slices(x, SLICES: tl.constexpr):
    """x [A, B] as the same for all slices of a key."""
    return tl.broadcast_to(x[None, :, :], [SLICES, x.shape[0], x.shape[1]])


@kernel
def _states(
    k, v, g, beta, first, states, steps, heads, value_heads, dim, value_dim,
    k_batch, k_step, k_head, v_batch, v_step, v_head, g_batch, g_step, g_head, beta_batch, beta_step, beta_head,
    NORMAL: tl.constexpr, EPS: tl.constexpr, LOWEST: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """states [B Hv, chunks, K, V]: at the start of each chunk."""
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(value_dim, COLUMNS)
    sequence = program // blocks
    batch, head = sequence // value_heads, sequence % value_heads
    key_head = head // (value_heads // heads)
    t = tl.arange(0, CHUNK)
    j = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    i = tl.arange(0, KEYS // DEPTH)[:, None, None] * DEPTH + tl.arange(0, DEPTH)[None, :, None]
    there = (i < dim) & (j < value_dim)[None, None, :]
    place = i * value_dim + j[None, None, :]
    if first is None:
        state = tl.zeros([KEYS // DEPTH, DEPTH, COLUMNS], tl.float32)
    else:
        state = tl.load(first + sequence * dim * value_dim + place, mask=there, other=0.0)
    to = states + sequence * tl.cdiv(steps, CHUNK) * dim * value_dim + place
    k_at = k + batch * k_batch + key_head * k_head
    v_at = v + batch * v_batch + head * v_head + j[None, :]
    for begin in range(0, steps, CHUNK):
        tl.store(to, state, mask=there)
        to += dim * value_dim
        step = begin + t.to(tl.int64)
        counts = step < steps
        key = _vectors(k_at, k_step, step, counts, dim, EPS, NORMAL, KEYS)
        keys = tl.trans(key, (0, 2, 1))
        inside = counts[:, None] & (j < value_dim)[None, :]
        value = tl.load(v_at + step[:, None] * v_step, mask=inside, other=0.0).to(tl.float32)
        rate = tl.load(
            beta + batch * beta_batch + head * beta_head + step * beta_step, mask=counts, other=0.0
        ).to(tl.float32)  # fmt: skip
        until, whole = _gates(g + batch * g_batch + head * g_head, g_step, step, counts, LOWEST)
        since, rest = tl.exp(until.to(tl.float32)), tl.exp((whole - until).to(tl.float32))
        between = (until[:, None] - until[None, :]).to(tl.float32)
        decay = tl.exp(tl.where(t[:, None] > t[None, :], between, 0.0))
        system = tl.where(t[:, None] > t[None, :], _product(key, keys) * decay, 0.0)
        right = value - since[:, None] * _product(key, state)
        _, written = _solved(system, right, rate, False, CHUNK)
        kept = _of_slices(rest[:, None] * written, KEYS // DEPTH)
        state = state * tl.exp(whole.to(tl.float32)) + tl.dot(keys, kept, input_precision="ieee")


@triton.jit
def _backward(
    q, k, v, g, beta, states, flow, last, d_query, d_key, d_value, d_gate, d_rate, d_first,
    steps, heads, value_heads, dim, value_dim, scale,
    q_batch, q_step, q_head, k_batch, k_step, k_head, v_batch, v_step, v_head, g_batch, g_step, g_head,
    beta_batch, beta_step, beta_head, flow_batch, flow_step, flow_head,
    NORMAL: tl.constexpr, EPS: tl.constexpr, LOWEST: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """d_query and d_key [blocks, B Hv, T, K], d_gate and d_rate [blocks, B Hv, T], of the program's columns alone;
    d_value [B, T, Hv, V] and d_first [B Hv, K, V]."""
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(value_dim, COLUMNS)
    sequence = program // blocks
    batch, head = sequence // value_heads, sequence % value_heads
    key_head = head // (value_heads // heads)
    sequences = tl.num_programs(0).to(tl.int64) // blocks
    SLICES: tl.constexpr = KEYS // DEPTH
    t = tl.arange(0, CHUNK)
    j = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    i = tl.arange(0, SLICES)[:, None, None] * DEPTH + tl.arange(0, DEPTH)[None, :, None]
    there = (i < dim) & (j < value_dim)[None, None, :]
    place = i * value_dim + j[None, None, :]
    if last is None:
        d_state = tl.zeros([SLICES, DEPTH, COLUMNS], tl.float32)
    else:
        d_state = tl.load(last + sequence * dim * value_dim + place, mask=there, other=0.0)
    chunks = tl.cdiv(steps, CHUNK)
    of_steps = (program % blocks * sequences + sequence) * steps
    along = tl.arange(0, SLICES)[:, None, None] * DEPTH + tl.arange(0, DEPTH)[None, None, :]
    lower, below = t[:, None] >= t[None, :], t[:, None] > t[None, :]
    for n in range(chunks):
        chunk = chunks - 1 - n
        step = chunk * CHUNK + t.to(tl.int64)
        counts = step < steps
        state = tl.load(states + (sequence * chunks + chunk) * dim * value_dim + place, mask=there, other=0.0)
        key = _vectors(k + batch * k_batch + key_head * k_head, k_step, step, counts, dim, EPS, NORMAL, KEYS)
        query = _vectors(q + batch * q_batch + key_head * q_head, q_step, step, counts, dim, EPS, NORMAL, KEYS) * scale
        keys = tl.trans(key, (0, 2, 1))
        inside = counts[:, None] & (j < value_dim)[None, :]
        value = tl.load(
            v + batch * v_batch + head * v_head + j[None, :] + step[:, None] * v_step, mask=inside, other=0.0
        ).to(tl.float32)  # fmt: skip
        into = tl.load(
            flow + batch * flow_batch + head * flow_head + step[:, None] * flow_step + j[None, :], mask=inside,
            other=0.0,
        ).to(tl.float32)  # fmt: skip
        rate = tl.load(
            beta + batch * beta_batch + head * beta_head + step * beta_step, mask=counts, other=0.0
        ).to(tl.float32)  # fmt: skip
        until, whole = _gates(g + batch * g_batch + head * g_head, g_step, step, counts, LOWEST)
        since, rest = tl.exp(until.to(tl.float32)), tl.exp((whole - until).to(tl.float32))
        decay = tl.exp(tl.where(lower, (until[:, None] - until[None, :]).to(tl.float32), 0.0))
        system = tl.where(below, _product(key, keys) * decay, 0.0)
        seen = tl.where(lower, _product(query, keys) * decay, 0.0)
        known, asked, kept = _product(key, state), _product(query, state), _product(key, d_state)
        own, written = _solved(system, value - since[:, None] * known, rate, False, CHUNK)
        right = rest[:, None] * kept + tl.dot(tl.trans(seen), into, input_precision="ieee")
        back, made = _solved(system, right, rate, True, CHUNK)
        tl.store(
            d_value + ((batch * steps + step[:, None]) * value_heads + head) * value_dim + j[None, :], made, mask=inside
        )
        of_flow = tl.dot(into, tl.trans(written), input_precision="ieee")
        of_update = -tl.dot(made, tl.trans(written), input_precision="ieee")
        # All that crosses a gate: pairs of a step from it on with one before it, and what reads or leaves the state.
        pair = tl.where(lower, of_flow * seen, 0.0) + tl.where(below, of_update * system, 0.0)
        pair = tl.dot(pair, tl.where(t[:, None] < t[None, :], 1.0, 0.0), input_precision="ieee")
        reads = since * (tl.sum(into * asked, 1) - tl.sum(made * known, 1))
        leaves = rest * tl.sum(written * kept, 1)
        through = tl.exp(whole.to(tl.float32)) * tl.sum(tl.sum(tl.sum(state * d_state, 2), 1), 0)
        gate = tl.sum(tl.where(lower, pair + reads[:, None], 0.0), 0) + through
        gate += tl.sum(tl.where(t[:, None] < t[None, :], leaves[:, None], 0.0), 0)
        tl.store(d_gate + of_steps + step, gate, mask=counts)
        tl.store(d_rate + of_steps + step, tl.sum(back * own, 1), mask=counts)
        of_flow = _of_slices(tl.where(lower, of_flow * decay, 0.0), SLICES)
        of_update = tl.where(below, of_update * decay, 0.0)
        both = _of_slices(of_update + tl.trans(of_update), SLICES)
        read = _of_slices(since[:, None] * into, SLICES)
        forgets = _of_slices(-since[:, None] * made, SLICES)
        writes = _of_slices(rest[:, None] * written, SLICES)
        turned = tl.trans(state, (0, 2, 1))
        queries = tl.dot(read, turned, input_precision="ieee") + tl.dot(of_flow, key, input_precision="ieee")
        mine = tl.dot(forgets, turned, input_precision="ieee") + tl.dot(both, key, input_precision="ieee")
        mine += tl.dot(writes, tl.trans(d_state, (0, 2, 1)), input_precision="ieee")
        mine += tl.dot(tl.trans(of_flow, (0, 2, 1)), query, input_precision="ieee")
        to = (of_steps + step[None, :, None]) * dim + along
        tl.store(d_query + to, queries, mask=counts[None, :, None] & (along < dim))
        tl.store(d_key + to, mine, mask=counts[None, :, None] & (along < dim))
        d_state = d_state * tl.exp(whole.to(tl.float32))
        d_state += tl.dot(tl.trans(query, (0, 2, 1)), read, input_precision="ieee")
        d_state += tl.dot(keys, forgets, input_precision="ieee")
    if d_first is not None:
        tl.store(d_first + sequence * dim * value_dim + place, d_state, mask=there)


@kernel
def _of_vectors(
    parts, x, out, places, blocks, sequences, steps, heads, group, dim, scale, x_batch, x_step, x_head,
    NORMAL: tl.constexpr, EPS: tl.constexpr, PLACES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """out [B, T, H, K] of parts [blocks, B Hv, T, K]: their sum over blocks and a key head's value heads, through the
    division by the length."""
    at = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    head, step, batch = at % heads, at // heads % steps, at // heads // steps
    i = tl.arange(0, KEYS)
    inside = (at < places)[:, None] & (i < dim)[None, :]
    total = tl.zeros([PLACES, KEYS], tl.float32)
    for block in range(blocks):
        for n in range(group):
            of = (block * sequences + batch * heads * group + head * group + n) * steps + step
            total += tl.load(parts + of[:, None] * dim + i[None, :], mask=inside, other=0.0)
    if NORMAL:
        given = x + batch * x_batch + step * x_step + head * x_head
        vector = tl.load(given[:, None] + i[None, :], mask=inside, other=0.0).to(tl.float32)
        length = tl.sqrt(tl.sum(vector * vector, 1) + EPS)[:, None]
        vector = vector / length
        total = (total - vector * tl.sum(vector * total, 1)[:, None]) / length
    tl.store(out + at[:, None] * dim + i[None, :], total * scale, mask=inside)


STATES, BACKWARD, VECTORS = Kernel(_states), Kernel(_backward), Kernel(_of_vectors)
CONFIGS = configs(__file__)

# A product of matrices takes 16 rows and columns at least.
forward = ColumnLaunch(CHUNKED, "chunked", "triton_backward", least=16)


def backward(
    grad: Tensor, grad_state: Tensor | None, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor,
    scale: float | None, initial_state: Tensor | None, output_final_state: bool, use_qk_l2norm_in_kernel: bool,
    needs: list[bool], out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    given = (q, k, v, g, beta, initial_state)
    made = out if out is not None else tuple(
        t.new_empty(t.shape) if t is not None and need else q.new_empty(0) for t, need in zip(given, needs, strict=True)
    )  # fmt: skip
    first, last = (None if t is None else t.contiguous() for t in (initial_state, grad_state))
    q, k, v, grad = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v, grad))
    (batch, steps, heads, dim), (value_heads, value_dim) = q.shape, v.shape[2:]
    sequences = batch * value_heads
    wanted = [to if need and t is not None else None for to, need, t in zip(made, needs, given, strict=True)]
    if not sequences:
        return tuple(made)
    settings = CONFIGS.pick("backward", op_kernel="triton_backward", K=dim, V=value_dim, dtype=q.dtype)
    chunk, columns = settings["CHUNK"], min(settings["COLUMNS"], max(16, triton.next_power_of_2(value_dim)))
    blocks, keys = triton.cdiv(value_dim, columns), max(16, triton.next_power_of_2(dim))
    constants = settings | {
        "NORMAL": use_qk_l2norm_in_kernel, "EPS": EPS, "LOWEST": LOWEST, "KEYS": keys, "COLUMNS": columns,
    }  # fmt: skip

    def room(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=q.device)

    states = room(sequences, triton.cdiv(steps, chunk), *state_shape(q, v)[2:])
    d_query, d_key = room(blocks, sequences, steps, dim), room(blocks, sequences, steps, dim)
    d_gate, d_rate = room(blocks, sequences, steps), room(blocks, sequences, steps)
    d_value = wanted[2] if wanted[2] is not None else torch.empty(v.shape, dtype=v.dtype, device=v.device)
    strides = [s for t in (k, v, g, beta) for s in t.stride()[:3]]
    grid = (sequences * blocks, 1, 1)
    STATES.at(**constants)(
        grid, k, v, g, beta, first, states, steps, heads, value_heads, dim, value_dim, *strides
    )  # fmt: skip
    BACKWARD.at(**constants)(
        grid, q, k, v, g, beta, states, grad, last, d_query, d_key, d_value, d_gate, d_rate, wanted[5], steps, heads,
        value_heads, dim, value_dim, scale_of(scale, dim), *q.stride()[:3], *strides, *grad.stride()[:3],
    )  # fmt: skip
    places = batch * steps * heads
    for to, parts, x, factor in (
        (wanted[0], d_query, q, scale_of(scale, dim)), (wanted[1], d_key, k, 1.0)
    ):  # fmt: skip
        if to is not None and places:
            VECTORS.at(NORMAL=use_qk_l2norm_in_kernel, EPS=EPS, PLACES=PLACES, KEYS=keys, num_warps=4)(
                (triton.cdiv(places, PLACES), 1, 1), parts, x, to, places, blocks, sequences, steps, heads,
                value_heads // heads, dim, factor, *x.stride()[:3],
            )  # fmt: skip
    for to, numbers in ((wanted[3], d_gate), (wanted[4], d_rate)):
        if to is not None:
            to.copy_(numbers.sum(0).view(batch, value_heads, steps).transpose(1, 2))
    return tuple(made)
