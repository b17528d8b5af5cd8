"""Known-wrong versions of causal_conv1d. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.convolution.causal_conv1d.contract import CONTRACT, reference
from kernelworks.templates.mutants import VECTOR, generic

__all__ = ["MUTANTS"]

NAMES = ("x", "weight", "bias", "initial_states", "activation", "return_final_states")


def _rounded(made: tuple[Tensor, ...], dtype: torch.dtype) -> Any:
    rounded = tuple(t.to(dtype) for t in made)
    return rounded if len(rounded) > 1 else rounded[0]


def _with(**changed: Callable[..., Any]) -> Callable[..., Any]:
    """The definition of changed arguments: each of a function of all of them."""

    def run(*args: Any) -> Any:
        wide: dict[str, Any] = {n: a.double() if isinstance(a, Tensor) else a for n, a in zip(NAMES, args, strict=True)}
        made = {n: change(**wide) for n, change in changed.items()}
        return _rounded(reference(**(wide | made)), args[0].dtype)

    return run


def _then(change: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Any]:
    """The definition, its results changed with a look at the arguments."""

    def run(*args: Any) -> Any:
        wide: dict[str, Any] = {n: a.double() if isinstance(a, Tensor) else a for n, a in zip(NAMES, args, strict=True)}
        return _rounded(change(reference(**wide), **wide), args[0].dtype)

    return run


def _only_x(made: tuple[Tensor, ...], **args: Any) -> tuple[Tensor, ...]:
    """Final states of this chunk alone: what it is too short for is 0."""
    if len(made) == 1:
        return made
    return made[0], reference(**args | {"initial_states": None})[1]


def _states_in_order(made: tuple[Tensor, ...], **args: Any) -> tuple[Tensor, ...]:
    return (made[0], *(t.flip(-1) for t in made[1:]))


def _own_entry(made: tuple[Tensor, ...], **args: Any) -> tuple[Tensor, ...]:
    return (made[0], *(t[:1].expand_as(t) for t in made[1:]))


def _carry_lost(made: tuple[Tensor, ...], **args: Any) -> tuple[Tensor, ...]:
    """Each block of 512 begins with zeros."""
    parts = [reference(**args | {"x": part, "initial_states": None})[0] for part in args["x"].split(512, -1)[1:]]
    return (torch.cat((made[0][..., :512], *parts), -1), *made[1:])


def _low_precision(*args: Any) -> Any:
    """Every product and sum is rounded to bfloat16."""
    x, weight, bias, states, activation, final = args
    W, L = weight.shape[1], x.shape[-1]
    before = x.new_zeros(*x.shape[:-1], W - 1) if states is None else states
    padded, taps = torch.cat((before, x), -1).bfloat16(), weight.bfloat16()
    total = torch.zeros(x.shape, dtype=torch.bfloat16)
    for k in range(W):
        total = total + padded[..., k : k + L] * taps[:, k : k + 1]
    total = (total if bias is None else total + bias.bfloat16()[:, None]).to(x.dtype)
    output = total if activation is None else torch.nn.functional.silu(total)
    return (output, torch.cat((before, x), -1)[..., L:].clone()) if final else output


def _shifted(x: Tensor, **args: Any) -> Tensor:
    return torch.nn.functional.pad(x, (1, 0))[..., :-1]


def _next(x: Tensor, **args: Any) -> Tensor:
    return torch.nn.functional.pad(x, (0, 1))[..., 1:]


def _stale_channels(made: tuple[Tensor, ...], **args: Any) -> tuple[Tensor, ...]:
    output = made[0].clone()
    if output.shape[1] % VECTOR:
        output[:, output.shape[1] // VECTOR * VECTOR :] = 0.0
    return (output, *made[1:])


MUTANTS = (
    *generic(CONTRACT.reference, ("x",), NAMES, CONTRACT.results_in_order),
    Mutant("flipped taps", _with(weight=lambda weight, **_: weight.flip(1)), "a convolution for a correlation"),
    Mutant("one too late", _with(x=_shifted), "the newest input is left out"),
    Mutant("one too early", _with(x=_next), "an input of the future is read"),
    Mutant("first tap missing", _with(weight=lambda weight, **_: torch.cat((weight[:, :1] * 0, weight[:, 1:]), 1)),
           "the oldest input is left out"),
    Mutant("states ignored", _with(initial_states=lambda **_: None), "a chunk begins with zeros"),
    Mutant("states flipped", _with(initial_states=lambda initial_states, **_:
           None if initial_states is None else initial_states.flip(-1)), "the last state is read first"),
    Mutant("first entry's states", _with(initial_states=lambda initial_states, **_:
           None if initial_states is None else initial_states[:1].expand_as(initial_states)), "one for the batch"),
    Mutant("bias missing", _with(bias=lambda **_: None), "the bias is not added"),
    Mutant("activation missing", _with(activation=lambda **_: None), "silu is left out"),
    Mutant("activation always", _with(activation=lambda **_: "silu"), "silu where none was asked for"),
    Mutant("final states of this chunk", _then(_only_x), "a chunk shorter than the window forgets what was before"),
    Mutant("final states flipped", _then(_states_in_order), "the newest state is written first"),
    Mutant("final states of one entry", _then(_own_entry), "the first entry's states for the batch"),
    Mutant("blocks begin anew", _then(_carry_lost), "what a block of a line hands on is lost"),
    Mutant("stale channels", _then(_stale_channels), "the tail of the channels is never written"),
    Mutant("bfloat16 sums", _low_precision, "products and sums are rounded to bfloat16"),
)  # fmt: skip
