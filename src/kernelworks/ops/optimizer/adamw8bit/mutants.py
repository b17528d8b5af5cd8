"""Known-wrong steps with states of 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.optimizer.adamw8bit.codes import AVERAGE, ROOT, decode, encode, scales_of, spread
from kernelworks.ops.optimizer.adamw8bit.contract import ARGUMENTS, MUTATES, STATES, reference, step_values

__all__ = ["MUTANTS"]

Call = dict[str, Any]


def _mutant(name: str, why: str, change: Callable[[Call], tuple[Tensor, ...]]) -> Mutant:
    """What ``change`` makes of a call, written to what the op writes to."""

    def run(*args: Any) -> None:
        call = dict(zip(ARGUMENTS, args, strict=True))
        for target, made in zip(MUTATES, change(call), strict=True):
            call[target].copy_(made)

    return Mutant(name, run, why)


def _other(**changed: Callable[[Call], Any]) -> Callable[[Call], tuple[Tensor, ...]]:
    return lambda call: reference(**call | {name: f(call) for name, f in changed.items()})


def _stale(call: Call, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    made = reference(**call)
    return tuple(call[name] if name in names else new for name, new in zip(MUTATES, made, strict=True))


def _coded(call: Call, code: Callable[[Tensor, Tensor, int], Tensor]) -> tuple[Tensor, ...]:
    p, _, m_scale, _, r_scale = reference(**call)
    _, m, r = step_values(**call)
    n = len(p)
    return p, code(m, spread(m_scale, n), AVERAGE), m_scale, code(r, spread(r_scale, n), ROOT), r_scale


def _truncated(x: Tensor, scale: Tensor, k: int) -> Tensor:
    """The code below, towards 0."""
    near = encode(x / scale, k)
    above = (decode(near, k) * scale).abs() > x.abs()
    return torch.where(above & (near > 0), near - 1, near)


def _after_rounding(call: Call) -> tuple[Tensor, ...]:
    """The parameter moves by what the codes hold."""
    p, codes_m, m_scale, codes_r, r_scale = reference(**call)
    n = len(p)
    m, r = decode(codes_m, AVERAGE) * spread(m_scale, n), decode(codes_r, ROOT) * spread(r_scale, n)
    t, root = call["step"], (1 - call["beta2"] ** call["step"]) ** 0.5
    update = m / (1 - call["beta1"] ** t) / (r / root + call["eps"])
    old = call["param"].double()
    return old - call["lr"] * (call["weight_decay"] * old + update), codes_m, m_scale, codes_r, r_scale


def _one_scale(call: Call) -> tuple[Tensor, ...]:
    _, m, r = step_values(**call)
    made = list(reference(**call))
    for place, x, k in ((1, m, AVERAGE), (3, r, ROOT)):
        if len(x):
            made[place + 1] = scales_of(x, k).max().expand_as(made[place + 1])
            made[place] = encode(x / spread(made[place + 1], len(x)), k)
    return tuple(made)


def _last_block(call: Call) -> tuple[Tensor, ...]:
    made = [t.clone() for t in reference(**call)]
    kept = len(call["param"]) // 256 * 256
    for place, name in enumerate(MUTATES):
        at = kept // (256 if name.endswith("scale") else 1)
        made[place][at:] = call[name][at:]
    return tuple(made)


MUTANTS = (
    _mutant("nothing done", "no step at all", lambda call: _stale(call, MUTATES)),
    _mutant("states not written", "the states stay as they were", lambda call: _stale(call, STATES)),
    _mutant("scales not written", "codes beside the scales of the step before",
            lambda call: _stale(call, ("exp_avg_scale", "rms_scale"))),
    _mutant("parameter not written", "the states alone move", lambda call: _stale(call, ("param",))),
    _mutant("no bias correction", "the first steps come out too small", _other(step=lambda call: 10**9)),
    _mutant("one step behind", "the correction of the next step", _other(step=lambda call: call["step"] + 1)),
    _mutant("betas swapped", "beta1 for beta2",
            _other(beta1=lambda call: call["beta2"], beta2=lambda call: call["beta1"])),
    _mutant("missing decay", "weight_decay is not applied", _other(weight_decay=lambda call: 0.0)),
    _mutant("maximize ignored", "the sign of the gradient", _other(maximize=lambda call: False)),
    _mutant("codes towards 0", "codes are cut off, not rounded", lambda call: _coded(call, _truncated)),
    _mutant("codes without signs", "the sign bit is never written",
            lambda call: _coded(call, lambda x, s, k: encode(x.abs() / s, k))),
    _mutant("codes one too high", "each code is the next one",
            lambda call: _coded(call, lambda x, s, k: encode(x / s, k) + 1)),
    _mutant("step after rounding", "the parameter moves by what the codes hold", _after_rounding),
    _mutant("one scale", "all blocks share the largest scale", _one_scale),
    _mutant("last block stale", "a block that is not full is never written", _last_block),
)  # fmt: skip
