"""The linear state template: sequences whose state forgets and writes without looking at what is there.

    S_t = e^g_t S_{t-1} + k_t u_t^T,   output_t = scale S_t^T q_t

linear_attention has no gate and ``u = v``; ssd has ``g = A dt`` and ``u = dt x``. An op package says how its arguments
are those (``Sequence``). What follows is made here: the definition, the op in torch's functions by chunks, both bounds,
launches of ``simd/states/linear_state.hpp``, and what kernels of such ops get wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelworks.build.sharing import choose_threads
from kernelworks.templates.recurrence import CHUNK, U32, added_up, backward_sizes, state_error

__all__ = [
    "MAX_DIM", "GradientErrors", "Sequence", "backward_cpp", "by_chunks", "flat", "forward_cpp", "gradient_errors",
    "new_gradients", "output_error", "run_steps",
]  # fmt: skip

MAX_DIM = 256  # of a head's key and of its value
SMALLEST = 2.0**-149
SHUT_GATE = -1e4  # a gate that lets nothing through
NANOSECONDS = 0.1  # about what an element of the state takes one thread of a CPU in a step


class Sequence(NamedTuple):
    """q, k [B, T, H, K]; what is written u [B, T, Hv, V]; gates [B, T, Hv] or None for none; where a state is new
    [B, T] or None; what queries are multiplied by; the first state [B, Hv, K, V] or None."""

    q: Tensor
    k: Tensor
    u: Tensor
    g: Tensor | None
    begins: Tensor | None
    scale: float
    first: Tensor | None

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.q.shape[0], self.u.shape[2], self.q.shape[3], self.u.shape[3])


class Steps(NamedTuple):
    """[B, Hv, T, ..]: vectors and decays as steps read them, and the states before each and behind the last
    [B, Hv, T + 1, K, V]."""

    q: Tensor
    k: Tensor
    u: Tensor
    decay: Tensor
    states: Tensor


def _by_head(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // max(x.shape[2], 1), 2).transpose(1, 2)


def _decay(s: Sequence) -> Tensor:
    """[B, Hv, T, 1]."""
    shape = (*s.u.shape[:3], 1)
    decay = s.u.new_ones(shape) if s.g is None else s.g.exp().unsqueeze(-1)
    if s.begins is not None:
        decay = decay.masked_fill(s.begins[:, :, None, None], 0.0)
    return decay.transpose(1, 2)


def _steps(s: Sequence) -> Steps:
    heads = s.u.shape[2]
    q, k, u, decay = _by_head(s.q, heads), _by_head(s.k, heads), s.u.transpose(1, 2), _decay(s)
    state = s.u.new_zeros(s.state_shape) if s.first is None else s.first
    states = [state]
    for t in range(u.shape[2]):
        kept = decay[:, :, t, :, None] * state
        if s.begins is not None:  # not even times 0
            kept = kept.masked_fill(s.begins[:, t, None, None, None], 0.0)
        state = kept + k[:, :, t, :, None] * u[:, :, t, None, :]
        states.append(state)
    return Steps(q, k, u, decay, torch.stack(states, 2))


def run_steps(s: Sequence) -> tuple[Tensor, Tensor]:
    """The definition: the output [B, T, Hv, V] and the last state [B, Hv, K, V]."""
    run = _steps(s)
    output = s.scale * (run.q.unsqueeze(-2) @ run.states[:, :, 1:]).squeeze(-2)
    return output.transpose(1, 2), run.states[:, :, -1]


def by_chunks(s: Sequence) -> tuple[Tensor, Tensor]:
    """The same in torch's functions by chunks of up to 64 steps, in float32; differentiable, twice too."""
    heads, count = s.u.shape[2], s.u.shape[1]
    state = s.u.new_zeros(s.state_shape) if s.first is None else s.first.to(s.u.dtype)
    if not count or not s.u.numel():
        return s.u * 1, state * 1
    q, k = (_by_head(x, heads) for x in (s.q * s.scale, s.k))
    u = s.u.transpose(1, 2)
    gates = s.u.new_zeros(s.u.shape[:3]) if s.g is None else s.g
    if s.begins is not None:
        gates = gates.masked_fill(s.begins[:, :, None], SHUT_GATE)
    gates, outputs = gates.transpose(1, 2).double().clamp_min(SHUT_GATE), []
    for begin in range(0, count, CHUNK):
        qc, kc, uc, gc = (x[:, :, begin : begin + CHUNK] for x in (q, k, u, gates))
        n = qc.shape[2]
        until = gc.cumsum(-1)  # in float64, so that differences of long gates are exact
        between = (until.unsqueeze(-1) - until.unsqueeze(-2)).to(u.dtype)
        later = torch.ones(n, n, dtype=torch.bool, device=u.device).triu(1)
        decay = between.masked_fill(later, -torch.inf).exp()
        since = until.to(u.dtype).exp().unsqueeze(-1)
        outputs.append(since * (qc @ state) + ((qc @ kc.mT) * decay) @ uc)
        rest = (until[..., -1:] - until).to(u.dtype).exp().unsqueeze(-1)
        state = since[:, :, -1:] * state + (rest * kc).mT @ uc
    return torch.cat(outputs, 2).transpose(1, 2), state


# ---------------------------------------------------------------- bounds


def _gate_roundings(s: Sequence) -> Tensor:
    """Of an exponential and its argument, [B, Hv, T, 1]; of no gate none."""
    if s.g is None:
        return s.u.new_zeros((s.u.shape[0], s.u.shape[2], s.u.shape[1], 1))
    return 3.0 + s.g.transpose(1, 2).abs().clamp_max(200.0).unsqueeze(-1)


class _Forward(NamedTuple):
    added: Tensor
    wrote: Tensor
    off: Tensor  # [B, Hv, T + 1, V]


def _forward_errors(s: Sequence, run: Steps, own: float) -> _Forward:
    """``own``: roundings of what is written, before it is multiplied with the key."""
    gate = _gate_roundings(s)
    wrote = run.k.norm(dim=-1, keepdim=True) * run.u.abs()
    added = run.decay * added_up(run.decay, wrote, run.states.norm(dim=-2)[:, :, :-1])
    local = U32 * ((2.0 + gate) * added + (2.0 + own) * wrote) + SMALLEST * (1.0 + run.k.shape[-1])
    return _Forward(added, wrote, state_error(run.decay, local, torch.zeros_like(added[:, :, 0]) if added.shape[2] else
                                              run.states[:, :, 0, 0] * 0.0))  # fmt: skip


def output_error(s: Sequence, own: float) -> tuple[Tensor, Tensor]:
    """How far the output [B, T, Hv, V], before its last rounding, and the last state [B, Hv, 1, V] may be off."""
    run = _steps(s)
    errors = _forward_errors(s, run, own)
    chain = run.k.shape[-1] + min(CHUNK, run.k.shape[2]) + 2.0
    inside = run.q.norm(dim=-1, keepdim=True) * (
        errors.off[:, :, 1:] + U32 * (chain + _gate_roundings(s)) * (errors.added + errors.wrote)
    )
    inside = abs(s.scale) * (inside + SMALLEST * (run.k.shape[-1] + 1)).transpose(1, 2) + SMALLEST
    return inside, errors.off[:, :, -1].unsqueeze(-2)


class GradientErrors(NamedTuple):
    """By how much each gradient may be off before its last rounding, and the gradients themselves of what is written
    and of gates: q, k [B, T, H, 1], u [B, T, Hv, V], g [B, T, Hv], the first state [B, Hv, 1, V]."""

    q: Tensor
    k: Tensor
    u: Tensor
    g: Tensor
    first: Tensor
    d_u: Tensor
    d_g: Tensor


def gradient_errors(s: Sequence, flow: Tensor, last: Tensor | None, own: float) -> GradientErrors:
    """Of what flows into the output [B, T, Hv, V] and into the last state, of one step at least. The gradient of the
    state runs from the last step to the first; what is added up of it, and its error, as of the state."""
    run, gate = _steps(s), _gate_roundings(s)
    errors = _forward_errors(s, run, own)
    flow = s.scale * flow.transpose(1, 2)
    states, d_state = [], torch.zeros_like(run.states[:, :, 0]) if last is None else last
    arriving = []
    for t in reversed(range(run.k.shape[2])):
        arriving.append(d_state.norm(dim=-2))
        states.append(d_state + run.q[:, :, t, :, None] * flow[:, :, t, None, :])
        d_state = run.decay[:, :, t, :, None] * states[-1]
    d_states = torch.stack(states[::-1], 2)
    dim, value_dim, chunk = run.k.shape[-1], run.u.shape[-1], min(CHUNK, run.k.shape[2])
    length = run.k.norm(dim=-1, keepdim=True)
    reads = run.q.norm(dim=-1, keepdim=True) * flow.abs()
    held = backward_sizes(run.decay, reads, torch.zeros_like(reads), torch.stack(arriving[::-1], 2))
    local = run.decay * U32 * ((3.0 + gate) * held + 3.0 * reads) + SMALLEST * (1.0 + dim)
    off = [torch.zeros_like(held[:, :, 0])]
    for t in reversed(range(run.k.shape[2])):
        off.append(run.decay[:, :, t] * off[-1] + local[:, :, t])
    first = off[-1] + U32 * (2.0 + gate[:, :, 0]) * run.decay[:, :, 0] * held[:, :, 0]
    d_off = torch.stack(off[:-1][::-1], 2) + U32 * (3.0 + gate) * held
    ahead = run.decay * errors.off[:, :, :-1] + U32 * (2.0 + gate) * errors.added
    size = errors.added + errors.wrote
    behind = errors.off[:, :, 1:] + U32 * (2.0 + gate) * size
    known = (run.decay.unsqueeze(-1) * run.states[:, :, :-1]).norm(dim=-2)
    d_u = (run.k.unsqueeze(-2) @ d_states).squeeze(-2)
    u_off = length * (d_off + U32 * (dim + chunk + 2.0) * held)
    g_off = d_off * (known + ahead) + d_states.norm(dim=-2) * ahead
    g_off = g_off + U32 * (dim + value_dim + 2.0 * chunk + 8.0 + 2.0 * gate + own) * held * errors.added
    over_value = value_dim + chunk + 4.0 + gate + own
    q_off = flow.abs() * (behind + U32 * over_value * size)
    k_off = run.u.abs() * (d_off + U32 * over_value * held)
    sizes = (flow.abs() * size, run.u.abs() * held)
    group = run.k.shape[1] // max(s.k.shape[2], 1)

    def of_key_heads(off: Tensor, terms: Tensor) -> Tensor:
        whole = (
            off.sum(-1, keepdim=True) + U32 * (group + 2.0) * terms.sum(-1, keepdim=True) + SMALLEST * (dim + value_dim)
        )
        summed: Tensor = whole.unflatten(1, (-1, max(group, 1))).sum(2).transpose(1, 2)
        return summed

    d_g = (d_states * run.decay.unsqueeze(-1) * run.states[:, :, :-1]).sum((-1, -2))
    return GradientErrors(
        of_key_heads(q_off, sizes[0]), of_key_heads(k_off, sizes[1]), u_off.transpose(1, 2),
        (g_off.sum(-1) + SMALLEST * dim * value_dim).transpose(1, 2), first.unsqueeze(-2), d_u.transpose(1, 2),
        d_g.transpose(1, 2),
    )  # fmt: skip


# ---------------------------------------------------------------- launches


def flat(x: Tensor) -> Tensor:
    """With unit stride in the last dimension, which is all that kernels ask."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def new_gradients(given: Many[Tensor | None], needs: Many[bool]) -> tuple[Tensor, ...]:
    """Room for the gradients that are wanted of tensors that are given; empty for others."""
    some = next(t for t in given if t is not None)
    return tuple(
        t.new_empty(t.shape) if t is not None and need else some.new_empty(0)
        for t, need in zip(given, needs, strict=True)
    )


def _nanoseconds(q: Tensor, v: Tensor) -> float:
    return NANOSECONDS * (q.shape[1] + 4) * math.prod((q.shape[0], v.shape[2], q.shape[3], v.shape[3]))


def forward_cpp(
    function: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, *given: Any, outputs: tuple[Tensor, Tensor | None]
) -> None:  # fmt: skip
    """``given``: factors, rates, skips, sequences, first state, scale, turned."""
    kernel, threads = choose_threads(function, _nanoseconds(q, v))
    kernel(*outputs, flat(q), flat(k), flat(v), *given, threads)


def backward_cpp(
    function: Callable[..., Any], gradients: Many[Tensor | None], grad: Tensor, grad_last: Tensor | None, q: Tensor,
    k: Tensor, v: Tensor, *given: Any,
) -> None:  # fmt: skip
    """``gradients``: of q, k, v, gates, factors, first state, or None where none is wanted."""
    kernel, threads = choose_threads(function, 4 * _nanoseconds(q, v))
    last = None if grad_last is None else grad_last.contiguous()
    kernel(*gradients, flat(grad), last, flat(q), flat(k), flat(v), *given, threads)
