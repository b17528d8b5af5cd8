"""Known-wrong versions of ssd: each is the definition in float64 with one thing amiss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.scan.ssd.contract import sequence_of
from kernelworks.templates.linear_state.mutants import WrongSteps, mutants_of
from kernelworks.templates.linear_state.sequence import Sequence

__all__ = ["MUTANTS"]

RIGHT = WrongSteps()


def _double(t: Any) -> Any:
    return t.double() if isinstance(t, Tensor) and t.is_floating_point() else t


def _run(
    wrong: WrongSteps, *args: Any, change: Callable[[Sequence, Tensor, Tensor], Sequence] = lambda s, x, dt: s,
    skip: float = 1.0,
) -> Any:  # fmt: skip
    dtype = args[0].dtype
    x, dt, rates, b, c, skips, first, seq_idx, final = map(_double, args)
    s = change(sequence_of(x, dt, rates, b, c, first, seq_idx), x, dt)
    output, state = wrong.run(s._replace(scale=wrong.factor(s.scale)))
    if skips is not None:
        output = output + skip * skips[:, None] * x
    return (output.to(dtype), state.mT.float()) if final else output.to(dtype)


def _mutant(name: str, why: str, wrong: WrongSteps = RIGHT, **how: Any) -> Mutant:
    return Mutant(name, lambda *args: _run(wrong, *args, **how), why)


def _late(s: Sequence, x: Tensor, dt: Tensor) -> Sequence:
    return s if s.begins is None else s._replace(begins=s.begins.roll(1, 1))


def _rate_alone(s: Sequence, x: Tensor, dt: Tensor) -> Sequence:
    assert s.g is not None
    return s._replace(g=s.g / dt.clamp_min(1e-30))


MUTANTS = (
    *mutants_of(_run),
    _mutant("no decay", "the gate is left out", WrongSteps(gated=False)),
    _mutant("decay after", "the gate closes on what the step has just written", WrongSteps(gate_after=True)),
    _mutant("sequences run on", "a state goes on into the next sequence", WrongSteps(forgets_sequences=True)),
    _mutant("sequences a step late", "a sequence begins one step later", change=_late),
    _mutant("no dt of the input", "x enters as it is", change=lambda s, x, dt: s._replace(u=x)),
    _mutant("no dt of the gate", "the gate is e^A", change=_rate_alone),
    _mutant("B and C exchanged", "the state is written by C and read by B",
            change=lambda s, x, dt: s._replace(q=s.k, k=s.q)),
    _mutant("no skip", "D x is left out", skip=0.0),
)  # fmt: skip
