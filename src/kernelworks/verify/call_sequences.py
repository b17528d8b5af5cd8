"""A case in several calls, each on the state that came out of the one before (``contract/continuation.py``).

Kernels may take turns: a prompt by one and the steps behind it by another are one sequence to a user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Case
from kernelworks.contract.continuation import Continuation
from kernelworks.dispatch.mutation import results_of
from kernelworks.dispatch.op import Op
from kernelworks.verify.reference import Reference, copy_tensors, device_of, output_reference

__all__ = ["Call", "call_sequence", "continuation_of", "turns"]

Call = tuple[str, Any, Reference]  # the kernel, what it gave, and what it should have given


def continuation_of(op: Op, case: Case) -> Continuation:
    """How calls of a case follow each other. Raises ValueError where the contract does not say it."""
    found = op.contract.continuation
    if found is None:
        raise ValueError(f"case {case.name!r} is of several calls, and {op.name}'s contract says no continuation")
    lengths = {expected for name, expected in _lengths(case, found)}
    if found.along and lengths != {sum(case.calls)}:
        raise ValueError(f"case {case.name!r} has calls of {sum(case.calls)} steps, and {sorted(lengths)} to take")
    return found


def _lengths(case: Case, how: Continuation) -> Iterator[tuple[str, int]]:
    made = case.make(torch.Generator().manual_seed(0), case.dtypes[0])
    return ((name, made[name].shape[dim]) for name, dim in how.along.items() if isinstance(made.get(name), Tensor))


def turns(op: Op, kernel: str) -> Iterator[tuple[str, str]]:
    """The kernels of a first call and of those behind it: this one alone, and with each other of its device."""
    yield kernel, kernel
    for other in op.kernels:
        if other.name not in (kernel, "reference") and (other.name == "torch" or _beside(op, kernel, other.name)):
            yield kernel, other.name
    if kernel != "torch":
        yield "torch", kernel


def _beside(op: Op, kernel: str, other: str) -> bool:
    """Whether two kernels run on the same tensors here."""
    return op.kernel(other).device == op.kernel(kernel).device and device_of(op, other) == device_of(op, kernel)


def _named(op: Op, result: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """All results of a call by name, those too that it wrote to."""
    return dict(zip(op.contract.outputs, results_of(op, result, args), strict=False))


def call_sequence(op: Op, kernels: Sequence[str], case: Case, expected: Reference) -> Iterator[Call]:
    """What the calls of a case give, and what they should: all of them as one, or each. ``kernels`` serve the first
    call, the second, and so on, the last of them the rest. A call that its kernel declines ends the sequence.

    A state that torch hands on is taken as it is: what follows it should be what the definition makes of that state
    (a library's recurrent cells may be less exact than the contract's bound, which no later call can mend)."""
    how, begin = continuation_of(op, case), 0
    parts: list[dict[str, Any]] = []
    args = {name: copy_tensors(value) for name, value in expected.args.items()}
    handed_on = how.along and kernels[0] == "torch" != kernels[-1]
    for number, steps in enumerate(case.calls):
        if handed_on and number == 1:
            rest = {
                n: v.narrow(how.along[n], begin, v.shape[how.along[n]] - begin) if n in how.along else v
                for n, v in args.items()
            }
            expected = replace(output_reference(op, case, expected.dtype, rest), args=rest)
            parts.clear()
        kernel = kernels[min(number, len(kernels) - 1)]
        now = {n: v.narrow(how.along[n], begin, steps) if n in how.along else v for n, v in args.items()}
        given = tuple(now.get(name) for name in op.passes["forward"].names)
        if op.kernel(kernel).guard(op.request("forward", given)) is not None:
            return
        before = {name: copy_tensors(value) for name, value in now.items()} if not how.along else {}
        with torch.no_grad():
            outputs = _named(op, op(*given, kernel=kernel), given)
        if not how.along:
            alone = output_reference(op, case, expected.dtype, before)
            yield kernel, list(outputs.values()), replace(alone, args=before)
        args |= {argument: outputs[output] for argument, output in how.state.items()}
        begin += steps
        parts.append(outputs)
    if how.along:
        joined = {
            name: torch.cat([part[name] for part in parts], how.along[name]) if name in how.along else value
            for name, value in parts[-1].items()
        }
        yield " then ".join(dict.fromkeys(kernels)), tuple(joined.values()), expected
