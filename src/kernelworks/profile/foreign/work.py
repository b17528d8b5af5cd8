"""The work of an op in a trace, from the shapes that it was recorded with."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from kernelworks.profile.calls import Call
from kernelworks.profile.cost import Work
from kernelworks.profile.cost.calls import ARGUMENT_ERRORS, work
from kernelworks.profile.foreign.events import OP, Events
from kernelworks.profile.trace import DTYPES

__all__ = ["call_of", "shapes_text", "work_of"]

MOST_CHILDREN = 2000
MOST_SIZE = 1 << 48  # elements: a tensor of more is none
MOST_SHOWN = 3  # arguments


def work_of(events: Events, index: int) -> Work | None:
    """The least that the op must do; None if its shapes are missing or make no sense, or no formula is known."""
    try:
        found = work(call_of(events, index))
    except (*ARGUMENT_ERRORS, RuntimeError, OverflowError, ZeroDivisionError, AssertionError):
        return None
    if found is None:
        return None
    figures = (found.flop, found.transcendental, found.read, found.written)
    return found if all(np.isfinite(figure) and figure >= 0 for figure in figures) else None


def call_of(events: Events, index: int) -> Call:
    """The op with the ops that it called, as the profiler of this process would have given it."""
    root = _one(events, index)
    stack: list[tuple[float, Call]] = [(float(events.end[index]), root)]
    for i in range(index + 1, min(len(events), index + MOST_CHILDREN)):
        if events.lane[i] != events.lane[index] or events.start[i] >= events.end[index]:
            break
        if events.kind[i] != OP:
            continue
        while len(stack) > 1 and stack[-1][0] <= events.start[i]:
            stack.pop()
        child = _one(events, i)
        stack[-1][1].children.append(child)
        stack.append((float(events.end[i]), child))
    return root


def _one(events: Events, index: int) -> Call:
    call = Call(events.text(index), int(events.start[index] * 1e3), int(events.end[index] * 1e3))
    at = int(events.detail[index])
    if at >= 0:
        held = events.table.details[at]
        call.shapes = [_sizes(one) for one in held.get("Input Dims", ())]
        call.strides = [_sizes(one) for one in held.get("Input Strides", ())] or [[] for _ in call.shapes]
        call.dtypes = [DTYPES.get(one) if isinstance(one, str) else None for one in held.get("Input type", ())]
        call.scalars = [_scalar(one) for one in held.get("Concrete Inputs", ())] or [None for _ in call.shapes]
    return call


def _sizes(given: Any) -> Any:
    """A list of sizes, or of lists of them; anything else is no tensor."""
    if not isinstance(given, list) or len(given) > 10_000:
        return []
    if any(isinstance(one, list) for one in given):
        return [_sizes(one) for one in given]
    whole = all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < MOST_SIZE for one in given)
    return given if whole else []


def _scalar(text: Any) -> Any:
    """A number or a list of numbers as the trace writes it; None for anything else."""
    if not isinstance(text, str) or not text or len(text) > 1000:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def shapes_text(events: Events, index: int) -> str:
    """``[8, 128, 512] float, [1536, 512] float``: the tensors of one call."""
    at = int(events.detail[index])
    if at < 0:
        return ""
    held = events.table.details[at]
    kinds = held.get("Input type", ())
    shown = []
    for number, sizes in enumerate(held.get("Input Dims", ())):
        kind = kinds[number] if number < len(kinds) and isinstance(kinds[number], str) else ""
        if isinstance(sizes, list) and sizes:
            text = f"{len(sizes)} tensors" if isinstance(sizes[0], list) else f"{str(sizes)[:40]} {kind[:24]}"
            shown.append(text.replace("c10::", "").strip())
    more = f" and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
    return ", ".join(shown[:MOST_SHOWN]) + more
