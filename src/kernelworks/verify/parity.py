"""One case on one kernel: forward in guarded and poisoned memory, in every layout, and the gradients."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Case
from kernelworks.contract.complex_numbers import as_parts
from kernelworks.dispatch.mutation import results_of
from kernelworks.dispatch.op import Op
from kernelworks.machine import environment
from kernelworks.records import Parity
from kernelworks.verify.call_sequences import call_sequence, continuation_of, turns
from kernelworks.verify.guarded_buffers import LAYOUTS, Arena, arena, has_memory_format
from kernelworks.verify.reference import Reference, compute_reference, device_of, flat_outputs, follow_choice

__all__ = [
    "judge", "judge_gradients", "judge_outputs", "layouts_of", "makes_gradients", "misused_memory", "parities",
    "poisoned_out", "reproduce",
]  # fmt: skip

# The worst share of the bound by output, those left out that are exact and must be; and what is wrong.
Judgement = tuple[dict[str, float], str]


def reproduce(op: Op, kernel: str, case: Case, dtype: torch.dtype) -> str:
    """The shell line that runs one case of one kernel again."""
    name = str(dtype).removeprefix("torch.")
    return f"python -m kernelworks verify {op.name}.{kernel} --case {shlex.quote(case.name)} --dtype {name}"


def judge(result: Any, expected: Reference) -> tuple[float, str]:
    """The worst share of the bound over all outputs, and what is wrong."""
    shares, message = judge_outputs(result, expected)
    return max(shares.values(), default=0.0), message


def judge_outputs(result: Any, expected: Reference) -> Judgement:
    """The same by output. One that comes in another dtype than the case's is told apart: its roundings are others."""
    outputs = flat_outputs(result)
    if len(outputs) < len(expected.outputs):
        text = f"returned {len(outputs)} outputs, expected {len(expected.outputs)}"
        return {"output": float("inf")}, text
    shares: dict[str, float] = {}
    message = ""
    named = dict(zip(expected.names, outputs, strict=False))
    for i, bound in enumerate(expected.bounds):
        share, wrong = expected.compare_output(i, outputs[i], named)
        if expected.dtypes and not wrong and outputs[i].dtype != expected.dtypes[i]:
            share, wrong = float("inf"), f"dtype {outputs[i].dtype}, expected {expected.dtypes[i]}"
        if share or bool((as_parts(bound) > 0).any()):
            name = expected.label(i, outputs[i]) if isinstance(outputs[i], Tensor) else expected.names[i]
            shares[name] = max(shares.get(name, 0.0), share)
        message = message or (f"output {i}: {wrong}" if wrong else "")
    return shares, message


def judge_gradients(found: Iterable[tuple[str, Tensor]], expected: Reference) -> Judgement:
    """The worst share of the bound by gradient, and what is wrong."""
    shares: dict[str, float] = {}
    message = ""
    for name, value in found:
        share, wrong = expected.compare_gradient(name, value)
        if share or bool((as_parts(expected.gradient_bounds[name]) > 0).any()):
            shares[f"gradient of {name}"] = max(shares.get(f"gradient of {name}", 0.0), share)
        message = message or (f"gradient of {name}: {wrong}" if wrong else "")
    return shares, message


def _same_bits(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, (list, tuple)):
        return all(_same_bits(x, y) for x, y in zip(a, b, strict=True))
    return True


def misused_memory(memory: Arena, inputs: Sequence[Any], before: Sequence[Any]) -> str:
    """What a call did to memory that is not its own, whose inputs were these before."""
    if not all(map(_same_bits, inputs, before)):
        return "an input was written to"
    return "" if memory.slack_untouched() else "memory beside a tensor was written to"


class _Declined(Exception):
    """The kernel's guard has a reason not to serve these arguments."""


def _declines(op: Op, kernel: str, args: tuple[Any, ...]) -> bool:
    """Whether a kernel refuses arguments that its op takes."""
    return op.kernel(kernel).guard(op.request("forward", args)) is not None


def makes_gradients(op: Op, kernel: str, args: tuple[Any, ...], names: tuple[str, ...]) -> bool:
    """Whether a kernel that takes a forward makes these gradients too: its guard may know of calls where it should
    not."""
    passes = op.kernel(kernel).passes
    if "backward" not in passes or "training" in passes:
        return "backward" in passes
    return op.kernel(kernel).guard(op.backward_of(op.request("training", args, names))) is None


def poisoned_out(op: Op, case_args: tuple[Any, ...], memory: Arena, *, formatted: bool = False) -> Any:
    """Where a call writes: contiguous tensors, or ones that lie as what it would make for itself."""
    shapes = op.forward_shapes(case_args)
    if shapes is None:
        return None
    made = tuple(memory.new_poisoned(tuple(s.shape), s.dtype, s if formatted else None) for s in flat_outputs(shapes))
    return made if isinstance(shapes, tuple) else made[0]


def _misplaced(op: Op, result: Any, args: tuple[Any, ...]) -> str:
    """What is wrong with how results lie that a kernel of ours made for itself: not as compilers were told. Dimensions
    of one element lie anyhow."""
    for place, (made, told) in enumerate(zip(flat_outputs(result), flat_outputs(op.forward_shapes(args)), strict=True)):
        places = zip(made.shape, made.stride(), told.stride(), strict=True)
        if made.numel() and any(n > 1 and a != b for n, a, b in places):
            return f"output {place} has strides {list(made.stride())}, and is promised with {list(told.stride())}"
    return ""


def layouts_of(case: Case, args: tuple[Any, ...]) -> tuple[str, ...]:
    """The layouts that a case is tried in: torch's memory formats are those of tensors of four and five dimensions."""
    if not case.layouts:
        return LAYOUTS[:1]
    formatted = any(isinstance(t, Tensor) and has_memory_format(t.shape) for t in flat_outputs(list(args)))
    return tuple(layout for layout in LAYOUTS if layout != "channels_last" or formatted)


def _forward(op: Op, kernel: str, expected: Reference, layout: str, *, at_end: bool) -> Judgement:
    names = op.passes["forward"].names
    with arena(at_end=at_end, device=device_of(op, kernel)) as memory, torch.no_grad():
        fixed = op.contract.contiguous
        args = tuple(
            memory.place(a, "contiguous" if n in fixed else layout)
            for n, a in zip(names, expected.positional(op), strict=True)
        )
        if _declines(op, kernel, args):
            raise _Declined
        formatted = layout == "channels_last"
        out = poisoned_out(op, args, memory, formatted=formatted)
        result = op(*args, out=out, kernel=kernel) if out is not None else op(*args, kernel=kernel)
        result = results_of(op, result, args)
        shares, message = judge_outputs(result, expected)
        if formatted and out is not None and op.kernel(kernel).source is not None and not message:
            message = _misplaced(op, op(*args, kernel=kernel), args)
        inputs = [i for i, n in enumerate(names) if n not in op.contract.mutates]
        before = expected.positional(op)
        message = message or misused_memory(memory, [args[i] for i in inputs], [before[i] for i in inputs])
        del args, out, result
    return shares, message


def _gradients(op: Op, kernel: str, expected: Reference, *, at_end: bool) -> Judgement:
    names = op.passes["forward"].names
    with arena(at_end=at_end, device=device_of(op, kernel)) as memory:
        args = [memory.place(a) for a in expected.positional(op)]
        leaves = {}
        for i, name in enumerate(names):
            if name in expected.gradients:
                args[i] = leaves[name] = args[i].requires_grad_()
        with torch.enable_grad():
            made_outputs = flat_outputs(op(*args, kernel=kernel))
            expected = follow_choice(op, expected, dict(zip(expected.names, made_outputs, strict=False)))
            outputs = [o for o in made_outputs if o.requires_grad]
            grads = [memory.place(g) for g in expected.grad_outputs]
            # A kernel that makes gradients with its forward gives them away at the last walk; others take its backward.
            walks = (True, False) if "training" in op.kernel(kernel).passes else (False,)
            found: list[tuple[str, Tensor]] = []
            for keep in walks:
                walked: tuple[Tensor | None, ...] = torch.autograd.grad(
                    outputs, list(leaves.values()), grads, allow_unused=True, retain_graph=keep
                )
                made = zip(leaves.items(), walked, strict=True)
                found += [(name, torch.zeros_like(leaf) if g is None else g) for (name, leaf), g in made]
            del walked, made
        shares, message = judge_gradients(found, expected)
        if not message and not memory.slack_untouched():
            message = "memory beside a tensor was written to"
        del args, leaves, made_outputs, outputs, grads, found
    return shares, message


def _in_calls(op: Op, kernels: tuple[str, str], case: Case, expected: Reference) -> Judgement:
    """A case in several calls on its own state, the first by one kernel and the rest by another."""
    worst: dict[str, float] = {}
    message, tried = "", False
    for kernel, result, right in call_sequence(op, kernels, case, expected):
        shares, wrong = judge_outputs(result, right)
        worst |= {name: max(share, worst.get(name, 0.0)) for name, share in shares.items()}
        message, tried = message or (f"{kernel}: {wrong}" if wrong else ""), True
    if not tried:
        raise _Declined
    return worst, message


@contextlib.contextmanager
def _alone(device: str, layout: str) -> Iterator[None]:
    """One process at a time where tensors take tens of gigabytes of a GPU."""
    if device == "cpu" or layout != "far":
        yield
        return
    lock = environment.cache_dir("locks") / "far.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def parities(
    op: Op, kernel: str, case: Case, dtype: torch.dtype, seed: int = 0, inner: str | None = None,
    *, both_ends: bool = True,
) -> Iterator[Parity]:  # fmt: skip
    """Every comparison of one case. A kernel that raises fails with what it raised; a case that a kernel declines, as
    it may decline a user's call, gives none. ``inner`` asks for other bounds than the kernel's own. Without
    ``both_ends`` tensors lie against one of their guard pages alone: who asks for values has the same of both."""
    device = device_of(op, kernel)
    expected = compute_reference(op, case, dtype, seed, device, inner or op.kernel(kernel).inner)
    positional = expected.positional(op)
    if _declines(op, kernel, positional):
        return
    layouts = layouts_of(case, positional)
    ends = (True, False) if device == "cpu" and both_ends else (True,)

    def forward(layout: str, *, at_end: bool) -> Judgement:
        with _alone(device, layout):
            return _forward(op, kernel, expected, layout, at_end=at_end)

    runs: list[tuple[str, str, Callable[[], Judgement]]] = [
        ("forward", "" if layout == LAYOUTS[0] else layout, functools.partial(forward, layout, at_end=at_end))
        for layout in layouts
        for at_end in ends
    ]
    if expected.gradients and makes_gradients(op, kernel, positional, tuple(expected.gradients)):
        runs += [("backward", "", functools.partial(_gradients, op, kernel, expected, at_end=end)) for end in ends]
    if case.calls:
        continuation_of(op, case)
        runs += [
            ("forward", " then ".join(pair), functools.partial(_in_calls, op, pair, case, expected))
            for pair in turns(op, kernel)
        ]
    name = str(dtype).removeprefix("torch.")
    for pass_, how, run in runs:
        try:
            shares, message = run()
            worst = max(shares.values(), default=0.0)
        except _Declined:
            continue
        except Exception as error:
            shares, worst, message = {}, float("inf"), f"raised {type(error).__name__}: {error}"
        label = f"{case.name} ({how})" if how else case.name
        line = reproduce(op, kernel, case, dtype) if message else ""
        yield Parity(op.name, kernel, pass_, label, name, worst, not message, message, line, shares)
