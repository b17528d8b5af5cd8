"""Recurrences with a linear state in Triton, by chunks of steps: what ``simd/states/linear_state.hpp`` is on a CPU, and
tells the arguments of. ``simd/states/state_chunks.hpp`` has the formulas.

A program holds some columns of a head's state in registers. Sums over columns and over the value heads of a key head
are taken by a launch of its own, without atomic additions: the same call gives the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Configs, Kernel, kernel

__all__ = ["MOST_KEYS", "LinearLaunch"]

MOST_KEYS = 128  # elements of a key with which a chunk fits the registers
PLACES = 16  # of a gradient that a program of the last launch writes
DEPTH = tl.constexpr(16)  # of a key that a product takes at once: a thread holds that much of both sides
SHUT_GATE = tl.constexpr(-1e4)  # a gate that lets nothing through


@kernel
def _vectors(at, stride, step, counts, dim, KEYS: tl.constexpr):
    """Keys or queries of a chunk [KEYS / DEPTH, CHUNK, DEPTH]."""
    i = tl.arange(0, KEYS // DEPTH)[:, None, None] * DEPTH + tl.arange(0, DEPTH)[None, None, :]
    inside = counts[None, :, None] & (i < dim)
    return tl.load(at + step[None, :, None] * stride + i, mask=inside, other=0.0).to(tl.float32)


@kernel
def _product(a, b):
    """The products of slices, added up."""
    return tl.sum(tl.dot(a, b, input_precision="ieee"), 0)


@kernel
def _of_slices(x, SLICES: tl.constexpr):
    """x [A, B] as the same for all slices of a key."""
    return tl.broadcast_to(x[None, :, :], [SLICES, x.shape[0], x.shape[1]])


@kernel
def _numbers(factors, rates, sequences, batch, head, step, counts, f_batch, f_step, f_head, r_head, s_batch, s_step):
    """Of a chunk: factors, running sums of gates in float64 and their whole sum."""
    factor = tl.where(counts, 1.0, 0.0)
    if factors is not None:
        factor = tl.load(factors + batch * f_batch + head * f_head + step * f_step, mask=counts, other=0.0).to(
            tl.float32
        )
    gate = (factor * 0.0).to(tl.float64)
    if rates is not None:
        gate = tl.load(rates + head * r_head).to(tl.float64) * factor.to(tl.float64)
        gate = tl.maximum(gate, SHUT_GATE, propagate_nan=tl.PropagateNan.ALL)
    if sequences is not None:
        of = sequences + batch * s_batch + step * s_step
        before = counts & (step > 0)
        anew = before & (tl.load(of, mask=before, other=0) != tl.load(of - s_step, mask=before, other=0))
        gate = tl.where(anew, SHUT_GATE, gate)
    return factor, tl.cumsum(gate, 0), tl.sum(gate, 0)


@triton.jit
def _forward(
    q, k, v, factors, rates, skips, sequences, first, output, last, states,
    steps, heads, value_heads, dim, value_dim, scale, key_stride, value_stride,
    q_batch, q_step, q_head, k_batch, k_step, k_head, v_batch, v_step, v_head, f_batch, f_step, f_head, r_head,
    skip_head, s_batch, s_step,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """``output`` and ``last``, or ``states`` [B Hv, chunks, K, V] at the start of each chunk."""
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(value_dim, COLUMNS)
    sequence = program // blocks
    batch, head = sequence // value_heads, sequence % value_heads
    key_head = head // (value_heads // heads)
    SLICES: tl.constexpr = KEYS // DEPTH
    t = tl.arange(0, CHUNK)
    j = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    i = tl.arange(0, SLICES)[:, None, None] * DEPTH + tl.arange(0, DEPTH)[None, :, None]
    there = (i < dim) & (j < value_dim)[None, None, :]
    place = sequence * dim * value_dim + i * key_stride + j[None, None, :] * value_stride
    state = tl.zeros([SLICES, DEPTH, COLUMNS], tl.float32)
    if first is not None:
        state = tl.load(first + place, mask=there, other=0.0)
    for begin in range(0, steps, CHUNK):
        step = begin + t.to(tl.int64)
        counts = step < steps
        inside = counts[:, None] & (j < value_dim)[None, :]
        key = _vectors(k + batch * k_batch + key_head * k_head, k_step, step, counts, dim, KEYS)
        keys = tl.trans(key, (0, 2, 1))
        value = tl.load(
            v + batch * v_batch + head * v_head + j[None, :] + step[:, None] * v_step, mask=inside, other=0.0
        ).to(tl.float32)  # fmt: skip
        factor, until, whole = _numbers(
            factors, rates, sequences, batch, head, step, counts, f_batch, f_step, f_head, r_head, s_batch, s_step
        )
        written = factor[:, None] * value
        if states is not None:
            at = states + (sequence * tl.cdiv(steps, CHUNK) + begin // CHUNK) * dim * value_dim
            tl.store(at + i * value_dim + j[None, None, :], state, mask=there)
        if output is not None:
            query = _vectors(q + batch * q_batch + key_head * q_head, q_step, step, counts, dim, KEYS) * scale
            lower = t[:, None] >= t[None, :]
            decay = tl.exp(tl.where(lower, (until[:, None] - until[None, :]).to(tl.float32), 0.0))
            seen = tl.where(lower, _product(query, keys) * decay, 0.0)
            made = tl.exp(until.to(tl.float32))[:, None] * _product(query, state)
            for row in range(CHUNK):  # no step reads a later one, not even times 0
                own = tl.sum(tl.where((t == row)[:, None], seen, 0.0), 0)
                own = tl.sum(tl.where((t <= row)[:, None], own[:, None] * written, 0.0), 0)
                made = tl.where((t == row)[:, None], made + own[None, :], made)
            if skips is not None:
                made += tl.load(skips + head * skip_head).to(tl.float32) * value
            to = output + ((batch * steps + step[:, None]) * value_heads + head) * value_dim + j[None, :]
            tl.store(to, made, mask=inside)
        kept = _of_slices(tl.exp((whole - until).to(tl.float32))[:, None] * written, SLICES)
        state = state * tl.exp(whole.to(tl.float32)) + tl.dot(keys, kept, input_precision="ieee")
    if last is not None:
        tl.store(last + place, state, mask=there)


@triton.jit
def _backward(
    q, k, v, factors, rates, skips, sequences, states, flow, last, d_query, d_key, d_value, d_gate, d_factor, d_first,
    steps, heads, value_heads, dim, value_dim, scale, key_stride, value_stride,
    q_batch, q_step, q_head, k_batch, k_step, k_head, v_batch, v_step, v_head, f_batch, f_step, f_head, r_head,
    skip_head, s_batch, s_step, flow_batch, flow_step, flow_head,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """d_query and d_key [blocks, B Hv, T, K], d_gate and d_factor [blocks, B Hv, T], of the program's columns alone;
    d_value [B, T, Hv, V] and d_first."""
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(value_dim, COLUMNS)
    sequence = program // blocks
    batch, head = sequence // value_heads, sequence % value_heads
    key_head = head // (value_heads // heads)
    SLICES: tl.constexpr = KEYS // DEPTH
    t = tl.arange(0, CHUNK)
    j = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    i = tl.arange(0, SLICES)[:, None, None] * DEPTH + tl.arange(0, DEPTH)[None, :, None]
    there = (i < dim) & (j < value_dim)[None, None, :]
    place = sequence * dim * value_dim + i * key_stride + j[None, None, :] * value_stride
    d_state = tl.zeros([SLICES, DEPTH, COLUMNS], tl.float32)
    if last is not None:
        d_state = tl.load(last + place, mask=there, other=0.0)
    chunks = tl.cdiv(steps, CHUNK)
    of_steps = (program % blocks * (tl.num_programs(0).to(tl.int64) // blocks) + sequence) * steps
    along = tl.arange(0, SLICES)[:, None, None] * DEPTH + tl.arange(0, DEPTH)[None, None, :]
    lower, before = t[:, None] >= t[None, :], t[:, None] < t[None, :]
    for n in range(chunks):
        chunk = chunks - 1 - n
        step = chunk * CHUNK + t.to(tl.int64)
        counts = step < steps
        inside = counts[:, None] & (j < value_dim)[None, :]
        at = states + (sequence * chunks + chunk) * dim * value_dim
        state = tl.load(at + i * value_dim + j[None, None, :], mask=there, other=0.0)
        key = _vectors(k + batch * k_batch + key_head * k_head, k_step, step, counts, dim, KEYS)
        query = _vectors(q + batch * q_batch + key_head * q_head, q_step, step, counts, dim, KEYS) * scale
        keys = tl.trans(key, (0, 2, 1))
        value = tl.load(
            v + batch * v_batch + head * v_head + j[None, :] + step[:, None] * v_step, mask=inside, other=0.0
        ).to(tl.float32)  # fmt: skip
        into = tl.load(
            flow + batch * flow_batch + head * flow_head + step[:, None] * flow_step + j[None, :], mask=inside,
            other=0.0,
        ).to(tl.float32)  # fmt: skip
        factor, until, whole = _numbers(
            factors, rates, sequences, batch, head, step, counts, f_batch, f_step, f_head, r_head, s_batch, s_step
        )
        since, rest = tl.exp(until.to(tl.float32)), tl.exp((whole - until).to(tl.float32))
        decay = tl.exp(tl.where(lower, (until[:, None] - until[None, :]).to(tl.float32), 0.0))
        seen = tl.where(lower, _product(query, keys) * decay, 0.0)
        asked, kept = _product(query, state), _product(key, d_state)
        written = factor[:, None] * value
        made = rest[:, None] * kept + tl.dot(tl.trans(seen), into, input_precision="ieee")
        mine = factor[:, None] * made
        if skips is not None:
            mine += tl.load(skips + head * skip_head).to(tl.float32) * into
        to = d_value + ((batch * steps + step[:, None]) * value_heads + head) * value_dim + j[None, :]
        tl.store(to, mine, mask=inside)
        of_flow = tl.dot(into, tl.trans(written), input_precision="ieee")
        if d_factor is not None:
            tl.store(d_factor + of_steps + step, tl.sum(made * value, 1), mask=counts)
        if d_gate is not None:
            # All that crosses a gate: pairs of a step from it on with one before it, what reads or leaves the state.
            pair = tl.dot(tl.where(lower, of_flow * seen, 0.0), tl.where(before, 1.0, 0.0), input_precision="ieee")
            reads = since * tl.sum(into * asked, 1)
            gate = tl.sum(tl.where(lower, pair + reads[:, None], 0.0), 0)
            gate += tl.exp(whole.to(tl.float32)) * tl.sum(tl.sum(tl.sum(state * d_state, 2), 1), 0)
            gate += tl.sum(tl.where(before, (rest * tl.sum(written * kept, 1))[:, None], 0.0), 0)
            tl.store(d_gate + of_steps + step, gate, mask=counts)
        of_flow = _of_slices(tl.where(lower, of_flow * decay, 0.0), SLICES)
        read, writes = _of_slices(since[:, None] * into, SLICES), _of_slices(rest[:, None] * written, SLICES)
        queries = tl.dot(read, tl.trans(state, (0, 2, 1)), input_precision="ieee")
        queries += tl.dot(of_flow, key, input_precision="ieee")
        own = tl.dot(writes, tl.trans(d_state, (0, 2, 1)), input_precision="ieee")
        own += tl.dot(tl.trans(of_flow, (0, 2, 1)), query, input_precision="ieee")
        to = (of_steps + step[None, :, None]) * dim + along
        tl.store(d_query + to, queries * scale, mask=counts[None, :, None] & (along < dim))
        tl.store(d_key + to, own, mask=counts[None, :, None] & (along < dim))
        d_state = d_state * tl.exp(whole.to(tl.float32))
        d_state += tl.dot(tl.trans(query, (0, 2, 1)), read, input_precision="ieee")
    if d_first is not None:
        tl.store(d_first + place, d_state, mask=there)


@kernel
def _of_key_heads(
    parts, out, places, blocks, sequences, steps, heads, group, dim, PLACES: tl.constexpr, KEYS: tl.constexpr
):  # fmt: skip
    """out [B, T, H, K] of parts [blocks, B Hv, T, K]: their sum over blocks and a key head's value heads."""
    at = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    head, step, batch = at % heads, at // heads % steps, at // heads // steps
    i = tl.arange(0, KEYS)
    inside = (at < places)[:, None] & (i < dim)[None, :]
    total = tl.zeros([PLACES, KEYS], tl.float32)
    for block in range(blocks):
        for n in range(group):
            of = (block * sequences + batch * heads * group + head * group + n) * steps + step
            total += tl.load(parts + of[:, None] * dim + i[None, :], mask=inside, other=0.0)
    tl.store(out + at[:, None] * dim + i[None, :], total, mask=inside)


FORWARD, BACKWARD, KEY_HEADS = Kernel(_forward), Kernel(_backward), Kernel(_of_key_heads)


class LinearLaunch:
    """How an op package launches them: ``given`` are factors [B, T, Hv], rates [Hv], skips [Hv], sequences [B, T] and
    the first state, each a tensor or None, then scale, and whether the state is [V, K]."""

    def __init__(self, configs: Configs) -> None:
        self.configs = configs

    def _call(self, pass_: str, q: Tensor, k: Tensor, v: Tensor, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Sizes and strides as both kernels take them, constants, blocks of columns."""
        factors, rates, skips, sequences, _, scale, turned = given
        (_, steps, heads, dim), (value_heads, value_dim) = q.shape, v.shape[2:]
        settings = dict(self.configs.pick(pass_, op_kernel="triton", K=dim, V=value_dim, dtype=q.dtype))
        columns = min(settings.pop("COLUMNS"), max(16, triton.next_power_of_2(value_dim)))
        constants = settings | {"KEYS": max(16, triton.next_power_of_2(dim)), "COLUMNS": columns}
        strides = [s for t in (q, k, v) for s in t.stride()[:3]]
        strides += [0, 0, 0] if factors is None else factors.stride()
        strides += [0 if t is None else t.stride(0) for t in (rates, skips)]
        strides += [0, 0] if sequences is None else sequences.stride()
        sizes = (steps, heads, value_heads, dim, value_dim, scale, *((1, dim) if turned else (value_dim, 1)))
        return sizes, strides, constants, triton.cdiv(value_dim, columns)

    def forward(self, output: Tensor, last: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *given: Any) -> None:
        q, k, v = map(_flat, (q, k, v))
        sizes, strides, constants, blocks = self._call("forward", q, k, v, given)
        if count := q.shape[0] * v.shape[2] * blocks:
            FORWARD.at(**constants)((count, 1, 1), q, k, v, *given[:5], output, last, None, *sizes, *strides)

    def backward(
        self, made: tuple[Tensor | None, ...], numbers: tuple[bool, bool], grad: Tensor, grad_last: Tensor | None,
        q: Tensor, k: Tensor, v: Tensor, *given: Any,
    ) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
        """``made``: gradients of q, k, v and the first state, or None. Returns those of gates and factors [B, T, Hv] in
        float32, where ``numbers`` asks for them."""
        q, k, v, grad = map(_flat, (q, k, v, grad))
        last = None if grad_last is None else grad_last.contiguous()
        sizes, strides, constants, blocks = self._call("backward", q, k, v, given)
        (batch, steps, heads, dim), (value_heads, value_dim) = q.shape, v.shape[2:]
        sequences = batch * value_heads

        def room(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=q.device)

        d_gate, d_factor = (room(blocks, sequences, steps) if wanted else None for wanted in numbers)
        if sequences:
            states = room(sequences, triton.cdiv(steps, constants["CHUNK"]), dim, value_dim)
            d_query, d_key = room(blocks, sequences, steps, dim), room(blocks, sequences, steps, dim)
            d_value = made[2] if made[2] is not None else torch.empty(v.shape, dtype=v.dtype, device=v.device)
            grid = (sequences * blocks, 1, 1)
            FORWARD.at(**constants)(grid, q, k, v, *given[:5], None, None, states, *sizes, *strides)
            BACKWARD.at(**constants)(
                grid, q, k, v, *given[:4], states, grad, last, d_query, d_key, d_value, d_gate, d_factor, made[3],
                *sizes, *strides, *grad.stride()[:3],
            )  # fmt: skip
            if places := batch * steps * heads:
                launch = KEY_HEADS.at(PLACES=PLACES, KEYS=constants["KEYS"], num_warps=4)
                for to, parts in ((made[0], d_query), (made[1], d_key)):
                    if to is not None:
                        launch(
                            (triton.cdiv(places, PLACES), 1, 1), parts, to, places, blocks, sequences, steps, heads,
                            value_heads // heads, dim,
                        )  # fmt: skip
        shape = (batch, value_heads, steps)
        return tuple(None if t is None else t.sum(0).view(shape).transpose(1, 2) for t in (d_gate, d_factor))  # type: ignore[return-value]


def _flat(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
