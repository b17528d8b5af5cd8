"""Known-wrong versions of gated_delta_rule: each is the definition in float64 with one thing amiss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import as_float64
from kernelworks.contract import Mutant
from kernelworks.ops.scan.gated_delta_rule.contract import normalised_vectors, scale_of
from kernelworks.templates.recurrence import CHUNK

__all__ = ["MUTANTS"]

Step = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def _step(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    state = decay * state
    return state + k.unsqueeze(-1) * (beta * (v - (k.unsqueeze(-2) @ state).squeeze(-2))).unsqueeze(-2)


def _wrong(
    step: Step = _step, *, every: Callable[[int, Tensor, Tensor], Tensor] = lambda t, state, first: state,
    heads: Callable[[Tensor, int], Tensor] = lambda x, n: x.repeat_interleave(n, 2), before: bool = False,
    factor: Callable[[float], float] = lambda scale: scale, normal: Callable[[Tensor], Tensor] = normalised_vectors,
    result: Callable[[Tensor], Tensor] = lambda state: state, late: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """``every`` changes the state before a step, ``before`` reads it before the step, ``late`` leaves out the last."""

    def run(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None, initial_state: Tensor | None,
        output_final_state: bool, use_qk_l2norm_in_kernel: bool,
    ) -> Any:  # fmt: skip
        dtype, dim = q.dtype, q.shape[3]
        q, k, v, g, beta = as_float64([q, k, v, g, beta])
        if use_qk_l2norm_in_kernel:
            q, k = normal(q), normal(k)
        many = v.shape[2] // max(q.shape[2], 1)
        q, k = heads(q, many), heads(k, many)
        state = v.new_zeros((v.shape[0], v.shape[2], dim, v.shape[3]))
        first = state if initial_state is None else initial_state.double()
        state, outputs, kept = first, [], first
        for t in range(v.shape[1]):
            state = every(t, state, first)
            now = step(state, k[:, t], v[:, t], g[:, t].exp()[..., None, None], beta[:, t].unsqueeze(-1))
            read = state if before else now
            outputs.append((q[:, t].unsqueeze(-2) @ read).squeeze(-2))
            state, kept = now, state
        output = factor(scale_of(scale, dim)) * torch.stack(outputs, 1) if outputs else v
        last = kept if late else state
        return (output.to(dtype), result(last).float()) if output_final_state else output.to(dtype)

    return run


def _decay_later(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    return decay * _step(state, k, v, torch.ones_like(decay), beta)


def _no_delta(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    return decay * state + k.unsqueeze(-1) * (beta * v).unsqueeze(-2)


def _undecayed(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    known = (k.unsqueeze(-2) @ state).squeeze(-2)
    return decay * state + k.unsqueeze(-1) * (beta * (v - known)).unsqueeze(-2)


def _rate_of_value(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    state = decay * state
    return state + k.unsqueeze(-1) * (beta * v - (k.unsqueeze(-2) @ state).squeeze(-2)).unsqueeze(-2)


def _ungated(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    return _step(state, k, v, torch.ones_like(decay), beta)


def _at(length: int, change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[int, Tensor, Tensor], Tensor]:
    return lambda t, state, first: change(state, first) if t and t % length == 0 else state


MUTANTS = (
    Mutant("no decay", _wrong(_ungated), "the gate is left out"),
    Mutant("decay after", _wrong(_decay_later), "the gate closes on what the step has just written"),
    Mutant("known before the gate", _wrong(_undecayed), "what a key knows is read before the state decays"),
    Mutant("no delta", _wrong(_no_delta), "what the state knows of a key is not taken off"),
    Mutant("rate of the value alone", _wrong(_rate_of_value), "beta does not scale what is taken off"),
    Mutant("read before", _wrong(before=True), "the output does not see its own step"),
    Mutant("carry lost", _wrong(every=_at(CHUNK, lambda s, f: torch.zeros_like(s))), "each chunk starts from nothing"),
    Mutant("carry lost after 16", _wrong(every=_at(16, lambda s, f: torch.zeros_like(s))), "each 16 steps start anew"),
    Mutant("first of a chunk", _wrong(every=_at(CHUNK, lambda s, f: f)), "each chunk starts from the first state"),
    Mutant("no initial state", _wrong(every=lambda t, s, f: s - f if t == 0 else s), "the state that came in is lost"),
    Mutant("bfloat16 state", _wrong(every=lambda t, s, f: s.bfloat16().double()), "the state is carried in bfloat16"),
    Mutant("bfloat16 carry", _wrong(every=_at(16, lambda s, f: s.bfloat16().double())), "from chunk to chunk too"),
    Mutant("state turned", _wrong(result=lambda s: s.mT.reshape(s.shape)), "the state is [V, K] in memory"),
    Mutant("state of the step before", _wrong(late=True), "the last step is not in the state"),
    Mutant("heads in turn", _wrong(heads=lambda x, n: x.repeat(1, 1, n, 1)), "value head h reads key head h mod H"),
    Mutant("no scale", _wrong(factor=lambda scale: 1.0), "the scale is left out"),
    Mutant("scaled twice", _wrong(factor=lambda scale: scale * abs(scale)), "the query is scaled, and the output"),
    Mutant("not normalised", _wrong(normal=lambda x: x), "keys and queries keep their length"),
    Mutant("zeros", _wrong(factor=lambda scale: 0.0), "the output is not written"),
)
