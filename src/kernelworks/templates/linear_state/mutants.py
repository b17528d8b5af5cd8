"""What kernels of recurrences with a linear state get wrong: steps in float64 with one thing amiss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.templates.linear_state.sequence import Sequence
from kernelworks.templates.recurrence import CHUNK

__all__ = ["WrongSteps", "mutants_of"]

Change = Callable[[Tensor, Tensor], Tensor]


def _same(state: Tensor, first: Tensor) -> Tensor:
    return state


@dataclass(frozen=True)
class WrongSteps:
    """``change`` of the state (and the first one) ahead of each ``every`` steps, with ``at_once`` of the first one too;
    ``before`` reads the state before the step, ``late`` leaves out the last step from the state that is returned."""

    change: Change = _same
    every: int = 1
    at_once: bool = False
    before: bool = False
    late: bool = False
    turned: bool = False
    gated: bool = True
    gate_after: bool = False
    heads_in_turn: bool = False
    forgets_sequences: bool = False
    factor: Callable[[float], float] = lambda scale: scale

    def run(self, s: Sequence) -> tuple[Tensor, Tensor]:
        repeat = s.u.shape[2] // max(s.q.shape[2], 1)
        q, k = (x.repeat(1, 1, repeat, 1) if self.heads_in_turn else x.repeat_interleave(repeat, 2) for x in (s.q, s.k))
        first = s.u.new_zeros(s.state_shape) if s.first is None else s.first
        state, kept, outputs = first, first, []
        for t in range(s.u.shape[1]):
            if t % self.every == 0 and (t or self.at_once):
                state = self.change(state, first)
            if s.begins is not None and not self.forgets_sequences:
                state = state.masked_fill(s.begins[:, t, None, None, None], 0.0)
            decay = s.g[:, t].exp()[:, :, None, None] if s.g is not None and self.gated else torch.ones_like(state)
            new = k[:, t].unsqueeze(-1) * s.u[:, t].unsqueeze(-2)
            now = decay * (state + new) if self.gate_after else decay * state + new
            outputs.append((q[:, t].unsqueeze(-2) @ (state if self.before else now)).squeeze(-2))
            state, kept = now, state
        output = s.scale * torch.stack(outputs, 1) if outputs else s.u
        last = kept if self.late else state
        return output, last.mT.reshape(last.shape) if self.turned else last


def mutants_of(run: Callable[..., Any]) -> Iterator[Mutant]:
    """``run(wrong, *args)`` is the op with these steps."""
    bfloat16: Change = lambda state, first: state.bfloat16().double()  # noqa: E731
    nothing: Change = lambda state, first: torch.zeros_like(state)  # noqa: E731
    for name, wrong, why in (
        ("read before", WrongSteps(before=True), "the output does not see its own step"),
        ("carry lost", WrongSteps(nothing, CHUNK), "each chunk starts from nothing"),
        ("carry lost after 16", WrongSteps(nothing, 16), "each 16 steps start anew"),
        ("first of a chunk", WrongSteps(lambda state, first: first, CHUNK), "each chunk starts from the first state"),
        (
            "no initial state",
            WrongSteps(lambda s, f: torch.zeros_like(s), 10**9, True),
            "the state that came in is lost",
        ),
        ("bfloat16 state", WrongSteps(bfloat16), "the state is carried in bfloat16"),
        ("bfloat16 carry", WrongSteps(bfloat16, 16), "from chunk to chunk too"),
        ("state turned", WrongSteps(turned=True), "the state lies the other way round in memory"),
        ("state of the step before", WrongSteps(late=True), "the last step is not in the state"),
        ("heads in turn", WrongSteps(heads_in_turn=True), "value head h reads key head h mod H"),
        ("no scale", WrongSteps(factor=lambda scale: 2.0), "the scale is another"),
        ("scaled twice", WrongSteps(factor=lambda scale: scale * 0.5), "the scale is counted twice"),
        ("zeros", WrongSteps(factor=lambda scale: 0.0), "the output is not written"),
    ):
        yield Mutant(name, lambda *args, wrong=wrong: run(wrong, *args), why)
