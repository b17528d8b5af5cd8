"""What a call of gated_delta_rule goes through, step by step, and how far a right kernel's state may be off there."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelworks.templates.recurrence import CHUNK, U32, added_up, state_error

__all__ = [
    "EPS", "Errors", "Steps", "key_roundings", "normalised_vectors", "scale_of", "state_errors", "steps",
    "sum_roundings",
]  # fmt: skip

EPS = 1e-6  # beside a key's squared length, as fla and transformers have it


def scale_of(scale: float | None, dim: int) -> float:
    return float(dim**-0.5 if scale is None else scale)


def normalised_vectors(x: Tensor) -> Tensor:
    """Brought to a length of 1 along the last dimension."""
    return x * (x.square().sum(-1, keepdim=True) + EPS).rsqrt()


def _by_head(x: Tensor, heads: int) -> Tensor:
    """[B, T, H, D] as [B, Hv, T, D]."""
    return x.repeat_interleave(heads // max(x.shape[2], 1), 2).transpose(1, 2)


class Steps(NamedTuple):
    """What one call went through, [B, Hv, T, ..]: arguments as steps read them, states before each step and behind the
    last [B, Hv, T + 1, K, V], and what each step wrote beside its key."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor
    states: Tensor
    written: Tensor


def steps(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor | None, normal: bool
) -> Steps:  # fmt: skip
    heads, count = v.shape[2], v.shape[1]
    if normal:
        q, k = normalised_vectors(q), normalised_vectors(k)
    q, k = _by_head(q, heads), _by_head(k, heads)
    v, decay, beta = v.transpose(1, 2), g.transpose(1, 2).exp().unsqueeze(-1), beta.transpose(1, 2).unsqueeze(-1)
    state = v.new_zeros((*k.shape[:2], k.shape[3], v.shape[3])) if initial_state is None else initial_state
    states, written = [state], []
    for t in range(count):
        state = decay[:, :, t, :, None] * state
        known = (k[:, :, t, None, :] @ state).squeeze(-2)
        written.append(beta[:, :, t] * (v[:, :, t] - known))
        state = state + k[:, :, t, :, None] * written[-1][:, :, None, :]
        states.append(state)
    made = torch.stack(written, 2) if written else v
    return Steps(q, k, v, decay, beta, torch.stack(states, 2), made)


class Errors(NamedTuple):
    """[B, Hv, T, V] but for the state's [B, Hv, T + 1, V]: norms of what is added up before a step and of what it
    writes, and how far each column of the state is off."""

    added: Tensor
    wrote: Tensor
    state: Tensor


def state_errors(args: dict[str, Any], run: Steps) -> Errors:
    """As README.md derives it."""
    chain = sum_roundings(run, args)
    length = run.k.norm(dim=-1, keepdim=True)
    sizes = run.states.norm(dim=-2)
    wrote = length * run.written.abs()
    added = run.decay * added_up(run.decay, wrote, sizes[:, :, :-1])
    gate = 3.0 + args["g"].transpose(1, 2).abs().clamp_max(200.0).unsqueeze(-1)  # of an exponential, and its argument
    update = U32 * run.beta.abs() * (run.v.abs() + run.written.abs() + (chain + gate) * length * added)
    local = length * update + U32 * ((2.0 + gate) * added + (2.0 + key_roundings(run, args)) * wrote)
    norms = run.decay * torch.maximum((1.0 - run.beta * length.square()).abs(), torch.ones_like(run.beta))
    smallest = 2.0**-149 * (1.0 + run.k.shape[-1]) * (1.0 + length)
    return Errors(added, wrote, state_error(norms, local + smallest, torch.zeros_like(sizes[:, :, 0])))


def key_roundings(run: Steps, args: dict[str, Any]) -> float:
    """Roundings of a key that is brought to a length of 1 in float32: of its squares' sum, in parts, and three more."""
    return run.k.shape[-1] / 4.0 + 3.0 if args["use_qk_l2norm_in_kernel"] else 0.0


def sum_roundings(run: Steps, args: dict[str, Any]) -> float:
    """Of a sum over a key, and over the steps of a chunk."""
    return run.k.shape[-1] + min(CHUNK, run.k.shape[2]) + 2.0 + 2.0 * key_roundings(run, args)
