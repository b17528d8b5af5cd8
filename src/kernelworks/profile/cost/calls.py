"""The work of a call: from our contracts for our ops, from the formula table for aten's, else from what it calls."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from kernelworks.contract import Request, TensorSpec
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.signature import TorchSignature, composite_by_operator
from kernelworks.profile.cost import NOTHING, Work
from kernelworks.profile.cost.aten import formula
from kernelworks.profile.cost.external_ops import EXTERNAL_FORMULAS
from kernelworks.profile.cost.formulas import Formula
from kernelworks.profile.cost.inductor import generated_work
from kernelworks.profile.cost.operands import Arguments, Operand, total_bytes
from kernelworks.profile.cost.results import results
from kernelworks.profile.cost.schema import by_schema, is_composite, no_tensors
from kernelworks.profile.trace import Call

__all__ = ["ARGUMENT_ERRORS", "op_and_pass", "op_request", "work"]

OURS = "kernelworks::"
ARGUMENT_ERRORS = (
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    AttributeError,
)  # arguments of another form than is known
NOTABLE_NS = 200_000  # of an op that is not torch's, from which on what its parts do not account for is asked about


def work(call: Call) -> Work | None:
    """The least that the call must do, or None if neither a contract nor a formula says.

    An op without a formula that is made of other ops does their arithmetic, and moves what any implementation must
    move: each tensor that it was given once, and what it returns. What its parts write and read among themselves is
    not counted: one kernel would keep it in registers. If one of the parts has no formula either, or the op has a
    kernel of its own, it is unmodelled.
    """
    parts = _parts(call)
    if parts is None:
        return None
    if len(parts) == 1 and parts[0][0] is call:
        return parts[0][1]
    return _whole(call, parts)


def _parts(call: Call) -> list[tuple[Call, Work]] | None:
    """The calls at and below this one that have a formula, with their work; None if one has none."""
    if call.kernel is not None:
        written = generated_work(call.kernel, Arguments(call))
        return None if written is None else [(call, written)]
    found = _contracted(call) if call.name.startswith(OURS) else _known(call)
    if found is not None:
        return [(call, found)]
    if not is_composite(call.name, call.overload) and composite_by_operator(call.name) is None:
        return None
    if not call.children:
        return [] if _hands_back(call) else None
    if not call.name.startswith("aten::") and _does_more(call):
        return None
    parts: list[tuple[Call, Work]] = []
    for child in call.children:
        its = _parts(child)
        if its is None:
            return None
        parts += its
    return parts


def _does_more(call: Call) -> bool:
    """Whether an op that is not torch's spends its time in what is no op: NumPy, a library, a kernel of its own."""
    own = call.end - call.start
    return own > NOTABLE_NS and sum(child.end - child.start for child in call.children) < own / 2


def _whole(call: Call, parts: list[tuple[Call, Work]]) -> Work:
    """The work of a composite: the arithmetic of its parts, the bytes of its own arguments and results."""
    total = sum((its for _, its in parts), NOTHING)
    if not total.read + total.written:
        return total
    a = Arguments(call)
    given: dict[int, list[Operand]] = {}
    for operand in a.all_operands:
        given.setdefault(operand.storage, []).append(operand)
    if 0 in given:  # recorded without addresses
        read = min(total.read, float(total_bytes(a.all_operands)))
    else:
        touched = dict.fromkeys(given, 0.0)
        for part, its in parts:
            _touch(touched, Arguments(part).all_operands, its.read)
        read = min(total.read, sum(min(size, total_bytes(given[storage])) for storage, size in touched.items()))
    return dataclasses.replace(total, read=read, written=_written(a, parts, total))


def _touch(touched: dict[int, float], operands: list[Operand], read: float) -> None:
    """Adds to each storage what a part reads of it: its operands there, or all that it reads if that is less."""
    for storage in {o.storage for o in operands} & touched.keys():
        touched[storage] += min(read, total_bytes(o for o in operands if o.storage == storage))


def _written(a: Arguments, parts: list[tuple[Call, Work]], total: Work) -> float:
    """Bytes of what the call returns and of what it writes into its arguments.

    If torch's rules of shapes do not tell what it returns, it is what the call left behind and no part of it has
    read: not what autograd keeps.
    """
    found = results(a)
    if found is not None:
        new = sum(o.bytes for o in found)
    elif composite_by_operator(a.call.name) is not None:  # what it left behind is what it returned
        new = sum(size for _, size in a.call.made)
    elif a.call.tensors:
        used = set[int]()
        for part in (Arguments(part) for part, its in parts if its.read):
            used |= {o.storage for o in part.all_operands} - {o.storage for o in part.mutated_operands}
        new = sum(size for at, size in a.call.made if at not in used)
    else:  # recorded without addresses
        new = next((int(its.written) for _, its in reversed(parts) if its.written), 0)
    return min(float(total.written), float(new + total_bytes(a.mutated_operands)))


def _known(call: Call) -> Work | None:
    """By the table's formula, else by what torch's schema says of the op; a function that is made of several operators
    by the contract of the op that says the same."""
    if call.name in EXTERNAL_FORMULAS:
        return _try(EXTERNAL_FORMULAS[call.name], call)
    torch_signature = composite_by_operator(call.name)  # that of a function of torch's with no operator of its own
    if torch_signature is not None:
        return _signature_work(call, torch_signature)
    if not call.name.startswith("aten::"):
        return None
    for count in (formula(call.name), by_schema):
        found = _try(count, call) if count else None
        if found is not None and not (found.read + found.written and _scattered(call)):
            return found
    return None


def _signature_work(call: Call, torch_signature: TorchSignature) -> Work | None:
    given = [_bare(item) if isinstance(item, Operand) else item for item in Arguments(call).items]
    try:
        asked = torch_signature.ours(**dict(zip(torch_signature.names, given, strict=True)))
        return (
            None
            if isinstance(asked, str)
            else _by_contract(torch_signature.op, torch_signature.op.request("forward", asked))
        )
    except (*ARGUMENT_ERRORS, RuntimeError):
        return None


def _bare(operand: Operand) -> torch.Tensor:
    return torch.empty_strided(operand.shape, operand.stride, dtype=operand.dtype, device="meta")


def _scattered(call: Call) -> bool:
    """Whether an argument has sizes and no strides: sparse, or in a layout of oneDNN's own. What it holds is not in its
    sizes, by which formulas count."""
    for shape, stride in zip(call.shapes, call.strides, strict=False):
        listed = bool(shape) and isinstance(shape[0], list)
        each = zip(shape, stride, strict=False) if listed else [(shape, stride)]
        if any(sizes and not steps for sizes, steps in each):
            return True
    return False


def _hands_back(call: Call) -> bool:
    """Whether a composite that called nothing has nothing to do: it returns an argument, or no tensor at all."""
    a = Arguments(call)
    return results(a) == [] or (not call.made and a.schema is not None and no_tensors(a.schema))


def _try(count: Formula, call: Call) -> Work | None:
    try:
        found = count(Arguments(call))
    except (*ARGUMENT_ERRORS, RuntimeError):
        return None  # arguments of another form than the formula knows: what the op calls may still be known
    return found


def op_and_pass(name: str) -> tuple[Op, str] | None:
    """The op of ours and the pass that an operator of this name runs; None if it is none of ours."""
    plain = name.removeprefix(OURS)
    pass_ = "backward" if plain.endswith("_backward") else "forward"
    op = OPS.get(plain.removesuffix("_backward")) if name.startswith(OURS) else None
    return None if op is None or pass_ not in op.passes else (op, pass_)


def op_request(call: Call, device: str = "cpu") -> tuple[Op, Request] | None:
    """The op of ours that a call is of and what it asks for, as of tensors on ``device``; None for any other call."""
    found = op_and_pass(call.name)
    if found is None:
        return None
    op, pass_ = found
    try:
        args = dict(zip(op.passes[pass_].names, _specs(call, op.passes[pass_].schema, device), strict=False))
    except ARGUMENT_ERRORS:
        return None
    return op, Request(op.name, pass_, args, torch.get_num_threads())


def _contracted(call: Call) -> Work | None:
    found = op_request(call)
    try:
        return None if found is None else _by_contract(*found)
    except ARGUMENT_ERRORS:
        return None


def _by_contract(op: Op, request: Request) -> Work:
    """Of what hangs on values, which a call's record does not hold, the least that there may be."""
    if op.contract.values is not None and not request.values:
        request = dataclasses.replace(request, values=op.contract.values.least)
    cost, dtype = op.contract.cost(request), str(op.contract.unit(request)).removeprefix("torch.")
    return Work(cost.flop, cost.transcendental, cost.bytes_read, cost.bytes_written, dtype, op.contract.elementary)


def _specs(call: Call, schema: str, device: str) -> list[Any]:
    """The arguments as a contract's cost wants them, a backward's strings as its forward had them; if nobody saw
    them their default stands."""
    arguments = torch._C.parse_schema(schema).arguments
    words = dict(call.place.words)
    specs: list[Any] = []
    for item, argument in zip(Arguments(call).items, arguments, strict=False):
        if isinstance(item, Operand):
            specs.append(_spec(item, device))
        elif isinstance(item, list) and item and isinstance(item[0], Operand):
            specs.append(tuple(_spec(o, device) for o in item))
        elif item is None and argument.name in words:
            specs.append(words[argument.name])
        elif item is None and argument.has_default_value():
            specs.append(argument.default_value)
        else:
            specs.append(item)
    return specs


def _spec(operand: Operand, device: str) -> TensorSpec:
    return TensorSpec(operand.shape, operand.dtype, operand.stride, device)
