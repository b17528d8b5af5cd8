"""Known-wrong versions of causal_conv1d_update. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import in_float64
from kernelworks.contract import Mutant
from kernelworks.ops.convolution.causal_conv1d_update.contract import CONTRACT

__all__ = ["MUTANTS"]

_right = in_float64(CONTRACT.reference, CONTRACT.results_in_order)


def _state(change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """The new state changed: of what it should be, of the old one, and of x."""

    def run(x: Tensor, conv_state: Tensor, *rest: Any) -> Any:
        output, state = _right(x, conv_state, *rest)
        return output, change(state, conv_state, x)

    return run


def _output(**changed: Callable[..., Any]) -> Callable[..., Any]:
    """The output that other arguments give."""
    names = ("x", "conv_state", "weight", "bias", "activation")

    def run(*args: Any) -> Any:
        given = dict(zip(names, args, strict=True))
        made = _right(*(given | {n: change(**given) for n, change in changed.items()}).values())
        return made[0], _right(*args)[1]

    return run


def _moved_first(*args: Any) -> Any:
    """The state is moved on before it is read."""
    state = _right(*args)[1]
    return _right(args[0], state, *args[2:])[0], state


def _one_step(new: Tensor, old: Tensor, x: Tensor) -> Tensor:
    return torch.cat((old, x.reshape(*old.shape[:2], -1)[..., :1]), -1)[..., 1:]


def _beginning(conv_state: Tensor, weight: Tensor, **args: Any) -> Tensor:
    return conv_state.roll(conv_state.shape[2] - weight.shape[1] + 1, -1)


MUTANTS = (
    Mutant("state stays", _state(lambda new, old, x: old.clone()), "the state is not moved on"),
    Mutant("one step on", _state(_one_step), "the state moves on by one, whatever is given"),
    Mutant("state flipped", _state(lambda new, old, x: new.flip(-1)), "the newest input comes first"),
    Mutant("first entry", _state(lambda new, old, x: new[:1].expand_as(new).clone()), "one state for the batch"),
    Mutant("last input missing", _state(lambda new, old, x: torch.cat((new[..., :-1], new[..., -1:] * 0), -1)),
           "the newest input is not kept"),
    Mutant("moved first", _moved_first, "the state is moved on before it is read"),
    Mutant("state's beginning", _output(conv_state=_beginning), "the oldest inputs of a longer state are read"),
    Mutant("state ignored", _output(conv_state=lambda conv_state, **_: conv_state * 0), "what was before is 0"),
    Mutant("flipped taps", _output(weight=lambda weight, **_: weight.flip(1)), "a convolution for a correlation"),
    Mutant("bias missing", _output(bias=lambda **_: None), "the bias is not added"),
    Mutant("activation missing", _output(activation=lambda **_: None), "silu is left out"),
)  # fmt: skip
