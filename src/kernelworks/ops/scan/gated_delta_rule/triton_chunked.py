"""gated_delta_rule on the GPU by chunks of steps: a program holds some columns of a head's state in registers.

Within a chunk, what the steps write solves a unit lower triangular system (README.md). It is solved row after row, as
``chunked.cpp`` does, by no inverse: then no number is larger than what the steps themselves add up. A step reads no
later one, not even times 0, so that a NaN spoils nothing before it.
"""

import triton.language as tl

from kernelworks.build.triton import Kernel, kernel
from kernelworks.ops.scan.gated_delta_rule.triton_launch import ColumnLaunch

DEPTH = tl.constexpr(16)  # of a key that a product takes at once: a thread holds that much of both sides


@kernel
def _vectors(at, stride, t, counts, dim, EPS: tl.constexpr, NORMAL: tl.constexpr, KEYS: tl.constexpr):
    """Keys or queries of a chunk [KEYS / DEPTH, CHUNK, DEPTH], brought to a length of 1 if asked for."""
    i = tl.arange(0, KEYS // DEPTH)[:, None, None] * DEPTH + tl.arange(0, DEPTH)[None, None, :]
    inside = counts[None, :, None] & (i < dim)
    x = tl.load(at + t[None, :, None] * stride + i, mask=inside, other=0.0).to(tl.float32)
    if NORMAL:
        x = x / tl.sqrt(tl.sum(tl.sum(x * x, 2), 0) + EPS)[None, :, None]
    return x


@kernel
def _product(a, b):
    """The products of slices, added up."""
    return tl.sum(tl.dot(a, b, input_precision="ieee"), 0)


@kernel
def _row(x, is_row):
    """One row of x."""
    return tl.sum(tl.where(is_row[:, None], x, 0.0), 0)


@kernel
def _solved(system, right, seen, CHUNK: tl.constexpr):
    """``u`` with ``u + system u = right``, and ``seen u``: both matrices are lower triangles, the first without its
    diagonal. Rows that are not solved yet are 0."""
    t = tl.arange(0, CHUNK)
    u, output = tl.zeros_like(right), tl.zeros_like(right)
    for row in range(CHUNK):
        is_row = t == row
        own = _row(right, is_row) - tl.sum(_row(system, is_row)[:, None] * u, 0)
        u = tl.where(is_row[:, None], own[None, :], u)
        output = tl.where(is_row[:, None], tl.sum(_row(seen, is_row)[:, None] * u, 0)[None, :], output)
    return u, output


@kernel
def _chunked(
    q, k, v, g, beta, first, last, output, steps, heads, value_heads, dim, value_dim, scale,
    q_batch, q_step, q_head, k_batch, k_step, k_head, v_batch, v_step, v_head, g_batch, g_step, g_head,
    beta_batch, beta_step, beta_head,
    NORMAL: tl.constexpr, EPS: tl.constexpr, LOWEST: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(value_dim, COLUMNS)
    sequence = program // blocks
    batch = sequence // value_heads
    head = sequence % value_heads
    key_head = head // (value_heads // heads)
    t = tl.arange(0, CHUNK)
    j = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    i = tl.arange(0, KEYS // DEPTH)[:, None, None] * DEPTH + tl.arange(0, DEPTH)[None, :, None]
    there = (i < dim) & (j < value_dim)[None, None, :]
    place = sequence * dim * value_dim + i * value_dim + j[None, None, :]
    if first is None:
        state = tl.zeros([KEYS // DEPTH, DEPTH, COLUMNS], tl.float32)
    else:
        state = tl.load(first + place, mask=there, other=0.0)
    q_at = q + batch * q_batch + key_head * q_head
    k_at = k + batch * k_batch + key_head * k_head
    v_at = v + batch * v_batch + head * v_head + j[None, :]
    g_at = g + batch * g_batch + head * g_head
    beta_at = beta + batch * beta_batch + head * beta_head
    to = output + (batch * steps * value_heads + head) * value_dim + j[None, :]
    for begin in range(0, steps, CHUNK):
        step = begin + t.to(tl.int64)
        counts = step < steps
        key = _vectors(k_at, k_step, step, counts, dim, EPS, NORMAL, KEYS)
        query = _vectors(q_at, q_step, step, counts, dim, EPS, NORMAL, KEYS) * scale
        keys = tl.trans(key, (0, 2, 1))
        inside = counts[:, None] & (j < value_dim)[None, :]
        value = tl.load(v_at + step[:, None] * v_step, mask=inside, other=0.0).to(tl.float32)
        rate = tl.load(beta_at + step * beta_step, mask=counts, other=0.0).to(tl.float32)
        gate = tl.load(g_at + step * g_step, mask=counts, other=0.0).to(tl.float32)
        # Sums of gates are in float64, so that differences of long ones are exact.
        until = tl.cumsum(tl.maximum(gate, LOWEST, propagate_nan=tl.PropagateNan.ALL).to(tl.float64), 0)
        whole = tl.sum(tl.where(t == CHUNK - 1, until, 0.0), 0)
        since, rest = tl.exp(until.to(tl.float32)), tl.exp((whole - until).to(tl.float32))
        between = (until[:, None] - until[None, :]).to(tl.float32)
        earlier = t[:, None] > t[None, :]
        decay = tl.exp(tl.where(t[:, None] >= t[None, :], between, 0.0))
        alike, asked = _product(key, keys), _product(query, keys)
        system = tl.where(earlier, rate[:, None] * (alike * decay), 0.0)
        seen = tl.where(t[:, None] >= t[None, :], asked * decay, 0.0)
        known, before = _product(key, state), _product(query, state)
        right = rate[:, None] * (value - since[:, None] * known)
        written, within = _solved(system, right, seen, CHUNK)
        tl.store(to + step[:, None] * value_heads * value_dim, since[:, None] * before + within, mask=inside)
        kept = tl.broadcast_to((rest[:, None] * written)[None, :, :], [KEYS // DEPTH, CHUNK, COLUMNS])
        state = state * tl.exp(whole.to(tl.float32)) + tl.dot(keys, kept, input_precision="ieee")
    if last is not None:
        tl.store(last + place, state, mask=there)


CHUNKED = Kernel(_chunked)


# A product of matrices takes 16 rows and columns at least.
forward = ColumnLaunch(CHUNKED, "chunked", "triton_chunked", least=16)
