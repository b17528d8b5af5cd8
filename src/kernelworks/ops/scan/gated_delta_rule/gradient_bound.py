"""How far the gradients of gated_delta_rule may be off: README.md derives it.

The gradient of the state runs from the last step to the first as the state runs forward, through the same matrices, so
that its error runs as the state's does. What a kernel adds up of it is at most what was written to it since the chunk's
end, with its decays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelworks.contract import rounding
from kernelworks.ops.scan.gated_delta_rule.definition import (
    EPS,
    Errors,
    Steps,
    key_roundings,
    scale_of,
    state_errors,
    steps,
)
from kernelworks.templates.recurrence import CHUNK, U32, backward_sizes

__all__ = ["gradient_bound"]

SMALLEST = 2.0**-149


class Flow(NamedTuple):
    """What flows back, [B, Hv, T, ..]: into the output, times the scale; of each state [K, V] behind its step, with
    what its own step reads; of what a step writes; and of values."""

    flow: Tensor
    states: Tensor
    written: Tensor
    value: Tensor


def _flow(run: Steps, flow: Tensor, last: Tensor) -> tuple[Flow, Tensor]:
    """And the gradient of the first state, before its decay is undone: [B, Hv, K, V]."""
    states, written, values, d_state = [], [], [], last
    for t in reversed(range(run.k.shape[2])):
        d_state = d_state + run.q[:, :, t, :, None] * flow[:, :, t, None, :]
        states.append(d_state)
        written.append((run.k[:, :, t, None, :] @ d_state).squeeze(-2))
        values.append(run.beta[:, :, t] * written[-1])
        d_state = run.decay[:, :, t, :, None] * (d_state - run.k[:, :, t, :, None] * values[-1][:, :, None, :])
    made = (torch.stack(found[::-1], 2) for found in (states, written, values))
    return Flow(flow, *made), d_state


def gradient_bound(
    args: dict[str, Any], grad_outputs: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype,
    given: dict[str, Any],
) -> dict[str, Tensor]:  # fmt: skip
    if not args["q"].shape[1]:  # nothing is computed: what flows into the state is the gradient of the first one
        return {name: rounding(value, given[name].dtype) for name, value in gradients.items()}
    normal, heads = args["use_qk_l2norm_in_kernel"], args["q"].shape[2]
    run = steps(args["q"], args["k"], args["v"], args["g"], args["beta"], args["initial_state"], normal)
    errors = state_errors(args, run)
    scale = scale_of(args["scale"], args["q"].shape[3])
    last = torch.zeros_like(run.states[:, :, -1])
    if len(grad_outputs) > 1:
        last = grad_outputs[1]
    back, first = _flow(run, scale * grad_outputs[0].transpose(1, 2), last)
    off = _errors(args, run, errors, back, last)
    group = run.k.shape[1] // max(heads, 1)
    found = {
        "q": _of_vectors(args["q"], off.query, off.query_size, group, normal),
        "k": _of_vectors(args["k"], off.key, off.key_size, group, normal),
        "v": off.value.transpose(1, 2),
        "g": off.gate.transpose(1, 2),
        "beta": off.rate.transpose(1, 2),
        "initial_state": off.first.unsqueeze(-2).expand_as(first),
    }
    few = SMALLEST * (2.0 + run.k.shape[-1] + run.v.shape[-1])
    return {
        name: rounding(value, given[name].dtype) + 1.01 * found[name] + few * (1.0 + found[name].sqrt())
        for name, value in gradients.items()
    }


class _Off(NamedTuple):
    """By how much each gradient may be off, and the magnitudes that those of queries and keys are made of. Of queries
    and keys by value head, as steps read them, the query's without the scale."""

    query: Tensor
    query_size: Tensor
    key: Tensor
    key_size: Tensor
    value: Tensor
    gate: Tensor
    rate: Tensor
    first: Tensor


def _errors(args: dict[str, Any], run: Steps, errors: Errors, back: Flow, last: Tensor) -> _Off:
    dim, value_dim = run.k.shape[-1], run.v.shape[-1]
    normal = key_roundings(run, args)
    chunk = min(CHUNK, run.k.shape[2])
    over_key, over_both = dim + chunk + 2.0 + 2.0 * normal, dim + value_dim + 2.0 * chunk + 8.0 + 4.0 * normal
    over_value = value_dim + chunk + 6.0 + 2.0 * normal
    gate = 3.0 + args["g"].transpose(1, 2).abs().clamp_max(200.0).unsqueeze(-1)
    length, asked = run.k.norm(dim=-1, keepdim=True), run.q.norm(dim=-1, keepdim=True)
    rate, flow = run.beta.abs(), back.flow.abs()
    # The gradient of the state: what is added up of it behind a step, with its own reading, and how far that is off.
    reads, writes = asked * flow, length * back.value.abs()
    norms = run.decay * torch.maximum((1.0 - run.beta * length.square()).abs(), torch.ones_like(run.beta))
    carried = (back.states - run.k.unsqueeze(-1) * back.value.unsqueeze(-2)).norm(dim=-2)
    arriving = torch.cat(((run.decay * carried)[:, :, 1:], last.norm(dim=-2).unsqueeze(2)), 2)
    held = backward_sizes(run.decay, reads, writes, arriving)
    update = U32 * rate * (over_key + gate + 3.0) * length * held
    local = run.decay * (length * update + U32 * ((4.0 + gate + normal) * held + (2.0 + normal) * (reads + writes)))
    smallest = SMALLEST * (1.0 + dim) * (1.0 + length + asked)
    off = [torch.zeros_like(last[..., 0, :])]
    for t in reversed(range(run.k.shape[2])):
        off.append(norms[:, :, t] * off[-1] + local[:, :, t] + smallest[:, :, t])
    first = off[-1] + U32 * (2.0 + gate[:, :, 0]) * run.decay[:, :, 0] * held[:, :, 0]
    d_off = torch.stack(off[:-1][::-1], 2) + U32 * (4.0 + gate + normal) * held
    # The state before and behind a step.
    ahead = run.decay * errors.state[:, :, :-1] + U32 * (2.0 + gate) * errors.added
    behind = errors.state[:, :, 1:] + U32 * (2.0 + gate) * (errors.added + errors.wrote)
    size = errors.added + errors.wrote
    unknown = run.v - run.decay * (run.k.unsqueeze(-2) @ run.states[:, :, :-1]).squeeze(-2)
    unknown_off = length * ahead + U32 * (run.v.abs() + 2.0 * unknown.abs() + (over_key + gate) * length * errors.added)
    written_off = rate * unknown_off + 2.0 * U32 * run.written.abs()
    d_written_off = length * (d_off + U32 * over_key * held)
    value_off = rate * d_written_off + 3.0 * U32 * back.value.abs()
    rate_off = d_written_off * unknown.abs() + back.written.abs() * unknown_off + d_written_off * unknown_off
    rate_off = rate_off + U32 * (value_dim + 4.0) * (back.written * unknown).abs()
    through = held + writes  # of the gradient of the state before the step's own key is taken off
    known = (run.decay.unsqueeze(-1) * run.states[:, :, :-1]).norm(dim=-2)
    carried_off = d_off + length * value_off
    gate_off = carried_off * (known + ahead) + carried * ahead
    gate_off = gate_off + U32 * (over_both + 2.0 * gate) * through * errors.added
    key_off = d_off * run.written.abs() + held * written_off + ahead * back.value.abs() + errors.added * value_off
    key_size = (held * run.written.abs() + errors.added * back.value.abs()).sum(-1, keepdim=True)
    query_size = (flow * size).sum(-1, keepdim=True)
    query = (flow * behind).sum(-1, keepdim=True) + U32 * over_value * query_size
    key = key_off.sum(-1, keepdim=True) + U32 * (over_value + gate) * key_size
    return _Off(query, query_size, key, key_size, value_off, gate_off.sum(-1), rate_off.sum(-1), first)


def _of_vectors(x: Tensor, off: Tensor, size: Tensor, group: int, normal: bool) -> Tensor:
    """Of [B, Hv, T, 1] as steps read the vectors, what the gradient of x [B, T, H, K] is off: the sum of a key head's
    value heads, and through the division by the length. The scale is in the flow."""
    off, size = (t.unflatten(1, (-1, max(group, 1))).sum(2).transpose(1, 2) for t in (off, size))
    off = off + U32 * (group + 3.0) * size
    if not normal:
        return off.expand_as(x)
    r = (x.square().sum(-1, keepdim=True) + EPS).rsqrt()
    unit = (x * r).abs()
    along = unit.sum(-1, keepdim=True)
    roundings = 1.25 * x.shape[-1] + 12.0
    return r * (off + unit * along * off + U32 * roundings * (size + unit * along * size))
