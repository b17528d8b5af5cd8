"""Which op of ours a call of torch's would reach once swapped, and which of its rows it would then take.

Nothing is decided here: the call is made again on tensors without data, through the function that a swapped model
calls in its place, and the dispatcher is asked about what arrives.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelworks.contract import Request
from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.choose import Choice, choose
from kernelworks.dispatch.hooks import reached
from kernelworks.dispatch.op import Op
from kernelworks.dispatch.signature import by_operator
from kernelworks.nn.functional import FUNCTIONS
from kernelworks.profile.cost.operands import Arguments, Operand
from kernelworks.profile.trace import Call

__all__ = ["Asked", "asked", "called"]


REDUCTION_CODES = dict(enumerate(("none", "mean", "sum")))  # ATen/core/Reduction.h
Make = Callable[[Operand], Tensor]


@dataclass(frozen=True)
class Asked:
    """What a call asks of the dispatcher once swapped, and what it gets."""

    op: Op
    request: Request
    choice: Choice

    @property
    def row(self) -> str:
        """``kw.linear: avx512``, or "" for torch's own."""
        return "" if self.choice.row.source is None else f"kw.{self.op.name}: {self.choice.way}"


def asked(call: Call, threads: int, device: str = "cpu", kind: str | None = None) -> Asked | None:
    """What becomes of a call once swapped; None where it stays torch's. ``kind`` is the kind of machine, else this
    one. Nothing is built for the question, so a row whose build fails later is named all the same.

    The profiler does not tell all: which form a GELU has, which gradients are wanted of a call that autograd records.
    Of what the call may be, that counts of which there is a timing.
    """
    found: list[Asked] = []
    spelling = by_operator(call.name)
    for form in spelling.forms if spelling is not None else ():
        try:
            with FakeTensorMode(), torch.no_grad():
                made = called(call, lambda operand: _without_data(operand, device), form=form)
                arrived = None if made is None else reached(made)
            if arrived is None:
                continue
            op, args, _ = arrived
            for request in _requests(call, op, args):
                its = dataclasses.replace(request, threads=threads)
                found.append(Asked(op, its, choose(op, its, kind=kind)))
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError):
            continue  # arguments of another form than the profiler tells
    timed = [
        a for a in found if a.choice.timing is not None and a.choice.timing.call == tuning_records.call_of(a.request)
    ]
    return next(iter((*timed, *found)), None)


def _requests(call: Call, op: Op, args: tuple[Any, ...]) -> Iterator[Request]:
    if not call.recorded or "backward" not in op.passes:
        yield op.request("forward", args)
        return
    named = dict(zip(op.passes["forward"].names, args, strict=True))
    able = tuple(name for name in op.contract.differentiable if isinstance(named[name], Tensor))
    for wanted in dict.fromkeys((able, able[1:], able[:1])):  # the input of a first layer wants none; weights may not
        if wanted:
            yield op.request("training", args, wanted)


def called(
    call: Call, make: Make, functions: Any = FUNCTIONS, form: Mapping[str, Any] | None = None
) -> Callable[[], Any] | None:
    """The call as its user wrote it, through ``functions``, on tensors that ``make`` makes, with what else it may have
    been given (``form``); None where it has no spelling or ``functions`` (a mapping, or ``torch.nn.functional``) has no
    such function."""
    spelling = by_operator(call.name)
    function = None if spelling is None else _called(functions, spelling.name)
    if spelling is None or function is None:
        return None
    given = Arguments(call)
    named: dict[str, Any] = {}
    names: Sequence[str] = spelling.names
    if not spelling.composite:
        schema = given.schema.arguments if given.schema else ()
        names = [names[0] if argument.name == "self" else argument.name for argument in schema]
    for name, item in zip(names, given.items, strict=False):
        value = make(item) if isinstance(item, Operand) else item
        if name == "reduction" and isinstance(value, int):
            value = REDUCTION_CODES.get(value, "mean")
        if value is not None and name in spelling.known:
            named[name] = value
    return functools.partial(function, **named, **(form or {}))


def _called(functions: Any, name: str) -> Callable[..., Any] | None:
    found: Callable[..., Any] | None = (
        functions.get(name) if isinstance(functions, dict) else getattr(functions, name, None)
    )
    return found


def _without_data(operand: Operand, device: str) -> Tensor:
    return torch.empty_strided(operand.shape, operand.stride, dtype=operand.dtype, device=device)
