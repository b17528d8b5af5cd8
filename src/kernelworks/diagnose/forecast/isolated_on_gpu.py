"""Calls of our ops as a program on a GPU makes them, timed by themselves.

Each is made again on arguments of its shapes and strides that come from device memory: its kernels' time as the
profiler has it, its host time with nothing recording it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks.contract.limits import Limit, size_along
from kernelworks.diagnose.forecast.isolated_costs import OURS, IsolatedCosts, Kind, kind_of, shapes_of, takes_torchs
from kernelworks.dispatch.op import Op
from kernelworks.profile.cost.calls import op_and_pass
from kernelworks.profile.cost.operands import Arguments, Operand
from kernelworks.profile.cost.shapes import Signature, signature
from kernelworks.profile.on_gpu import waiting
from kernelworks.profile.recording import record
from kernelworks.profile.timeline import Cost
from kernelworks.profile.trace import Call

__all__ = ["Words", "time_isolated"]

CALLS = 8  # so many calls of each kind are timed
MOST_COPIES, MOST_BYTES = 16, 8 << 30  # a call's arguments are copied at most so often, and to so many bytes


class Words(TorchDispatchMode):
    """The strings and the lists of truths among the arguments of our calls, backwards too, which the profiler does not
    record: by name and shapes of a call, their places. A causal attention does half of the work of one that is not."""

    sees_kernelworks = True

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.found: dict[Any, dict[int, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "kernelworks":
            words = {place: value for place, value in enumerate(args) if _is_word(value)}
            self.found[func._schema.name, _sizes(shapes_of(args))] = words
        return func(*args, **(kwargs or {}))

    def of(self, call: Call) -> dict[int, Any]:
        """Those of a call like this one."""
        return self.found.get((call.name, _sizes(signature(call))), {})


def _is_word(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and isinstance(value[0], bool))


def _sizes(shapes: Signature) -> tuple[tuple[int, ...], ...]:
    return tuple(shape for shape, _ in shapes)


def time_isolated(calls: Iterable[Call], words: Words, l2_bytes: int, budget_s: float = math.inf) -> IsolatedCosts:
    """What each call signature of ours takes. Those that cannot be made up are left out, and those that ``budget_s``
    does not allow, of which the least frequent ones come last."""
    begin = time.perf_counter()
    kinds: dict[Kind, list[Call]] = {}
    training = False
    for call in calls:
        training = training or call.backward
        if call.name.startswith(OURS):
            kinds.setdefault(kind_of(call), []).append(call)
    found: dict[Kind, Cost] = {}
    torchs: set[Kind] = set()
    learned: dict[str, Cost] = {}  # by the name of a backward whose forward makes the gradients
    for kind, alike in sorted(kinds.items(), key=lambda item: (item[1][0].backward, -len(item[1]))):
        call = alike[0]
        if time.perf_counter() - begin > budget_s:
            break
        try:
            if _takes_torchs(call, words):
                torchs.add(kind)
            pair = _learned(call, words) if training and not call.backward else None
            if pair is not None:
                found[kind], learned[f"{call.name}_backward"] = pair
            elif call.name in learned:
                found[kind] = learned[call.name]
            else:
                found[kind] = _timed(call, words, l2_bytes, training=training and not call.backward)
        except (TypeError, ValueError, RuntimeError, KeyError, IndexError):
            continue  # arguments that only the program can make
        finally:
            torch.cuda.empty_cache()
    return IsolatedCosts(found, torchs)


def _takes_torchs(call: Call, words: Words) -> bool:
    op, pass_ = _asked(call)
    kernel = words.of(call).get(len(op.passes[pass_].names))
    try:
        return takes_torchs(op, pass_, _arguments(op, pass_, call, words), kernel)
    except (TypeError, ValueError, RuntimeError):
        return False  # it is timed as it is


def _asked(call: Call) -> tuple[Op, str]:
    """The op of ours and the pass that a call is of."""
    found = op_and_pass(call.name)
    if found is None:
        raise KeyError(call.name)
    return found


def _timed(call: Call, words: Words, l2_bytes: int, *, training: bool) -> Cost:
    name = call.name.removeprefix(OURS)
    op, pass_ = _asked(call)
    first = _arguments(op, pass_, call, words)
    size = sum(t.nbytes for t in _tensors(first))
    copies = max(1, min(MOST_COPIES, math.ceil(2 * l2_bytes / max(size, 1)), MOST_BYTES // max(size, 1)))
    sets = [first, *(_arguments(op, pass_, call, words) for _ in range(copies - 1))]
    packet = getattr(torch.ops.kernelworks, name)

    def through_torch() -> None:
        for i in range(CALLS):
            packet(*sets[i % copies])

    def plainly(i: int) -> Any:
        return op(*sets[i % copies]) if pass_ == "forward" else op.run("backward", tuple(sets[i % copies]))

    with torch.no_grad():
        through_torch()
        trace = record(waiting(through_torch), gpu=True)
        spans = [[w.seconds for r in c.runtime for w in r.works] for c in trace.calls if c.name == call.name]
    if training and op.contract.returned_outputs:
        for tensors in sets:
            for tensor in _tensors(_not_written(op, pass_, tensors)):
                if tensor.is_floating_point():
                    tensor.requires_grad_()
    with torch.enable_grad() if training else torch.inference_mode():
        host = _host_seconds(plainly)
    middle = sorted(spans, key=sum)[len(spans) // 2]
    return Cost(host, tuple(middle))


def _learned(call: Call, words: Words) -> tuple[Cost, Cost] | None:
    """Forward and backward of an op whose kernel makes gradients with its forward in an eager training step, which it
    does not do while a profiler looks: so the two are timed by events. None for any other op."""
    op, _ = _asked(call)
    args = _arguments(op, "forward", call, words)
    for tensor in _tensors(_not_written(op, "forward", args)):
        if tensor.is_floating_point():
            tensor.requires_grad_()
    if not op.contract.returned_outputs or op.training_passes(tuple(args), None) is None:
        return None
    found: list[tuple[float, float, float, float]] = []
    with torch.enable_grad():
        for _ in range(4):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            torch.cuda.synchronize()
            start = time.perf_counter()
            marks[0].record()
            result = op(*args)
            marks[1].record()
            middle = time.perf_counter()
            torch.autograd.backward(
                result, torch.ones_like(result), inputs=[t for t in _tensors(args) if t.requires_grad]
            )
            marks[2].record()
            end = time.perf_counter()
            torch.cuda.synchronize()
            device = [marks[i].elapsed_time(marks[i + 1]) * 1e-3 for i in range(2)]
            found.append((middle - start, end - middle, *device))
            for tensor in _tensors(args):
                tensor.grad = None
    forward_host, backward_host, forward, backward = (statistics.median(column) for column in zip(*found, strict=True))
    return Cost(forward_host, (forward,)), Cost(backward_host, (backward,))


def _host_seconds(plainly: Any) -> float:
    """Of one call, the device's queue never full."""
    for i in range(3):
        plainly(i)
    seconds = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(CALLS):
            plainly(i)
        seconds.append((time.perf_counter() - start) / CALLS)
        torch.cuda.synchronize()
    return statistics.median(seconds)


def _not_written(op: Op, pass_: str, args: Iterable[Any]) -> list[Any]:
    """The arguments that a call does not write to."""
    return [a for n, a in zip(op.passes[pass_].names, args, strict=False) if n not in op.contract.mutates]


def _tensors(args: Iterable[Any]) -> list[Tensor]:
    return [t for a in args for t in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(t, Tensor)]


def _arguments(op: Op, pass_: str, call: Call, words: Words) -> list[Any]:
    """Random arguments of a call's shapes, strides and dtypes, its numbers, and defaults for what was not recorded."""
    items = Arguments(call).items
    schema = [a for a in torch._C.parse_schema(op.passes[pass_].schema).arguments if a.name != "op_kernel"]
    named = {a.name: item for a, item in zip(schema, items, strict=False)}
    args: list[Any] = []
    strings, said = words.of(call), dict(call.place.words)
    for place, argument in enumerate(schema):
        item = named.get(argument.name)
        if isinstance(item, Operand):
            args.append(_tensor(item, op.contract.limits.get(argument.name), named))
        elif isinstance(item, list) and item and isinstance(item[0], Operand):
            args.append([_tensor(o, None, named) for o in item])
        elif argument.name in said:
            args.append(said[argument.name])
        elif place in strings:
            args.append(strings[place])
        elif str(argument.type) == "List[bool]":
            args.append([True] * len(op.passes[pass_].returns))
        elif item is None and argument.has_default_value():
            args.append(argument.default_value)
        else:
            args.append(item)
    return args


def _tensor(operand: Operand, limit: Limit | None, named: Mapping[str, Any]) -> Tensor:
    strided = torch.empty_strided(operand.shape, operand.stride, dtype=operand.dtype, device="cuda")
    if operand.dtype.is_floating_point:
        return strided.uniform_(-1.0, 1.0)
    other = None if limit is None else named.get(limit.other)
    if limit is not None and isinstance(other, Operand):
        return limit.fill(strided, size_along(limit, named))
    return strided.fill_(1) if operand.dtype is torch.bool else strided.random_(0, 2)
