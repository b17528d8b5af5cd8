"""gated_delta_rule on the GPU, step by step: a program holds some columns of a head's state in registers."""

import triton.language as tl

from kernelworks.build.triton import Kernel, kernel
from kernelworks.ops.scan.gated_delta_rule.triton_launch import ColumnLaunch


@kernel
def _read(at, i, inside, EPS: tl.constexpr, NORMAL: tl.constexpr):
    x = tl.load(at + i, mask=inside, other=0.0).to(tl.float32)
    if NORMAL:
        x = x / tl.sqrt(tl.sum(x * x, 0) + EPS)
    return x


@kernel
def _recurrent(
    q, k, v, g, beta, first, last, output, steps, heads, value_heads, dim, value_dim, scale,
    q_batch, q_step, q_head, k_batch, k_step, k_head, v_batch, v_step, v_head, g_batch, g_step, g_head,
    beta_batch, beta_step, beta_head,
    NORMAL: tl.constexpr, EPS: tl.constexpr, LOWEST: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(value_dim, COLUMNS)
    sequence = program // blocks
    batch = sequence // value_heads
    head = sequence % value_heads
    key_head = head // (value_heads // heads)
    i = tl.arange(0, KEYS)
    j = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    there = (i < dim)[:, None] & (j < value_dim)[None, :]
    place = sequence * dim * value_dim + i[:, None] * value_dim + j[None, :]
    if first is None:
        state = tl.zeros([KEYS, COLUMNS], tl.float32)
    else:
        state = tl.load(first + place, mask=there, other=0.0)
    q_at = q + batch * q_batch + key_head * q_head
    k_at = k + batch * k_batch + key_head * k_head
    v_at = v + batch * v_batch + head * v_head
    g_at = g + batch * g_batch + head * g_head
    beta_at = beta + batch * beta_batch + head * beta_head
    to = output + (batch * steps * value_heads + head) * value_dim
    for _ in range(steps):
        key = _read(k_at, i, i < dim, EPS, NORMAL)
        query = _read(q_at, i, i < dim, EPS, NORMAL) * scale
        value = tl.load(v_at + j, mask=j < value_dim, other=0.0).to(tl.float32)
        decay = tl.exp(tl.maximum(tl.load(g_at).to(tl.float32), LOWEST, propagate_nan=tl.PropagateNan.ALL))
        state = state * decay
        update = tl.load(beta_at).to(tl.float32) * (value - tl.sum(state * key[:, None], 0))
        state += key[:, None] * update[None, :]
        tl.store(to + j, tl.sum(state * query[:, None], 0), mask=j < value_dim)
        q_at += q_step
        k_at += k_step
        v_at += v_step
        g_at += g_step
        beta_at += beta_step
        to += value_heads * value_dim
    if last is not None:
        tl.store(last + place, state, mask=there)


RECURRENT = Kernel(_recurrent)


forward = ColumnLaunch(RECURRENT, "recurrent", "triton")
