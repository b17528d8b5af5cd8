"""gated_delta_rule on the GPU, step by step: a program holds some columns of a head's state in registers."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs, kernel
from kernelworks.ops.scan.gated_delta_rule.contract import EPS, scale_of, state_shape

CONFIGS = configs(__file__)
LOWEST = -1e4  # of a gate: its exponential is 0


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


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None, initial_state: Tensor | None,
    output_final_state: bool, use_qk_l2norm_in_kernel: bool, out: Any = None,
) -> Any:  # fmt: skip
    output, last = out if output_final_state and out is not None else (out, None)
    if output is None:
        output = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        shape = state_shape(q, v)
        last = torch.empty(shape, dtype=torch.float32, device=v.device) if output_final_state else None
    first = None if initial_state is None else initial_state.contiguous()
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    batch, steps, heads, dim = q.shape
    value_heads, value_dim = v.shape[2:]
    settings = CONFIGS.pick("recurrent", K=dim, V=value_dim, dtype=q.dtype)
    keys, columns = triton.next_power_of_2(dim), min(settings.pop("COLUMNS"), triton.next_power_of_2(value_dim))
    if batch * value_heads:
        strides = (s for t in (q, k, v, g, beta) for s in t.stride()[:3])
        RECURRENT.at(NORMAL=use_qk_l2norm_in_kernel, EPS=EPS, LOWEST=LOWEST, KEYS=keys, COLUMNS=columns, **settings)(
            (batch * value_heads * triton.cdiv(value_dim, columns), 1, 1), q, k, v, g, beta, first, last, output,
            steps, heads, value_heads, dim, value_dim, scale_of(scale, dim), *strides,
        )  # fmt: skip
    return (output, last) if output_final_state else output
