"""Which op of ours a call of torch's would reach once swapped, and which of its kernels it would then take.

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
from kernelworks.dispatch.hooks import find_first_op
from kernelworks.dispatch.op import Op
from kernelworks.dispatch.signature import by_operator
from kernelworks.dispatch.torch_network import TorchNetwork, network_of
from kernelworks.nn.functional import FUNCTIONS
from kernelworks.profile.cost.operands import Arguments, Operand
from kernelworks.profile.trace import Call

__all__ = ["SwappedCall", "rebuild_call", "swap_call"]


REDUCTION_CODES = dict(enumerate(("none", "mean", "sum")))  # ATen/core/Reduction.h
Make = Callable[[Operand], Tensor]


@dataclass(frozen=True)
class SwappedCall:
    """What a call asks of the dispatcher once swapped, and what it gets."""

    op: Op
    request: Request
    choice: Choice

    @property
    def kernel(self) -> str:
        """``kw.linear: avx512``, or "" for torch's own."""
        return "" if self.choice.kernel.source is None else f"kw.{self.op.name}: {self.choice.way}"


def swap_call(call: Call, threads: int, device: str = "cpu", kind: str | None = None) -> SwappedCall | None:
    """What becomes of a call once swapped; None if it stays torch's. ``kind`` is the kind of machine, else this
    one. Nothing is built for the question, so a kernel whose build fails later is named all the same.

    The profiler does not record everything: which approximation a GELU uses, which gradients are wanted of a call that
    autograd records. Of what the call may be, the first with a tuning record counts.
    """
    network = network_of(call.name)
    if network is not None:
        return _swap_network(network, call, threads, device, kind)
    found: list[SwappedCall] = []
    torch_signature = by_operator(call.name)
    for unrecorded in torch_signature.unrecorded_arguments if torch_signature is not None else ():
        try:
            with FakeTensorMode(), torch.no_grad():
                made = rebuild_call(call, lambda operand: _without_data(operand, device), unrecorded=unrecorded)
                arrived = None if made is None else find_first_op(made)
            if arrived is None:
                continue
            op, args, _ = arrived
            for request in _requests(call, op, args):
                its = dataclasses.replace(request, threads=threads)
                found.append(SwappedCall(op, its, choose(op, its, kind=kind)))
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError):
            continue  # arguments of another kind than the profiler records
    timed = [
        a
        for a in found
        if a.choice.tuning_record is not None and a.choice.tuning_record.call == tuning_records.call_of(a.request)
    ]
    return next(iter((*timed, *found)), None)


def _swap_network(torchs: TorchNetwork, call: Call, threads: int, device: str, kind: str | None) -> SwappedCall | None:
    """Of a network that is one call of the op: one layer in one direction. A swap leaves it to torch where autograd
    records it, and no tuning record speaks of several calls at once."""
    if any(each.recorded for each in (call, *call.children)):
        return None
    try:
        with FakeTensorMode(), torch.no_grad():
            network = torchs.read(*(_operands_without_data(item, device) for item in Arguments(call).items))
            if isinstance(network, str) or network.calls > 1:
                return None
            request = torchs.op.request("forward", torchs.arguments(network, network.x, 0))
        its = dataclasses.replace(request, threads=threads)
        return SwappedCall(torchs.op, its, choose(torchs.op, its, kind=kind))
    except (TypeError, ValueError, AttributeError, RuntimeError, IndexError):
        return None  # arguments of another kind than the profiler records


def _operands_without_data(item: Any, device: str) -> Any:
    if isinstance(item, list):
        return [_operands_without_data(each, device) for each in item]
    return _without_data(item, device) if isinstance(item, Operand) else item


def _requests(call: Call, op: Op, args: tuple[Any, ...]) -> Iterator[Request]:
    if not call.recorded or "backward" not in op.passes:
        yield op.request("forward", args)
        return
    named = dict(zip(op.passes["forward"].names, args, strict=True))
    able = tuple(name for name in op.contract.differentiable if isinstance(named[name], Tensor))
    for wanted in dict.fromkeys((able, able[1:], able[:1])):  # the input of a first layer wants none; weights may not
        if wanted:
            yield op.request("training", args, wanted)


def rebuild_call(
    call: Call, make: Make, functions: Any = FUNCTIONS, unrecorded: Mapping[str, Any] | None = None
) -> Callable[[], Any] | None:
    """The call as its user wrote it, through ``functions``, on tensors that ``make`` makes, with what else it may have
    been given (``unrecorded``); None if it has no torch signature, or if ``functions`` (a mapping, or
    ``torch.nn.functional``) has no such function."""
    torch_signature = by_operator(call.name)
    function = None if torch_signature is None else _called(functions, torch_signature.name)
    if torch_signature is None or function is None:
        return None
    given = Arguments(call)
    named: dict[str, Any] = {}
    names: Sequence[str] = torch_signature.names
    if not torch_signature.composite:
        schema = given.schema.arguments if given.schema else ()
        names = [names[0] if argument.name == "self" else argument.name for argument in schema]
    for name, item in zip(names, given.items, strict=False):
        value = make(item) if isinstance(item, Operand) else item
        if name == "reduction" and isinstance(value, int):
            value = REDUCTION_CODES.get(value, "mean")
        if value is not None and name in torch_signature.name_set:
            named[name] = value
    named |= torch_signature.other_operators.get(call.name.removeprefix("aten::"), {})
    return functools.partial(function, **named, **(unrecorded or {}))


def _called(functions: Any, name: str) -> Callable[..., Any] | None:
    found: Callable[..., Any] | None = (
        functions.get(name) if isinstance(functions, dict) else getattr(functions, name, None)
    )
    return found


def _without_data(operand: Operand, device: str) -> Tensor:
    return torch.empty_strided(operand.shape, operand.stride, dtype=operand.dtype, device=device)
