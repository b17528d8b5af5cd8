"""Which event lies in which: the op that a kernel was launched for, the line that an op was called from."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelworks.profile.foreign.events import ANNOTATION, OP, PYTHON, RUNTIME, STEP, Events

__all__ = ["FRAME", "MODULE", "Nesting", "is_torch_op", "nest"]

NO_EVENT = -1
ROUNDING_US = 0.01  # Times of some 10^12 us are kept to a nanosecond or worse.
LOOKED_THROUGH = ("autograd", "torch")  # namespaces of what only surrounds ops
FRAME = re.compile(r"(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)", re.S)
MODULE = "nn.Module: "
# Frames of these are the machinery, not the program.
MACHINERY = re.compile(
    r"(^|/)(torch|torchvision|site-packages|dist-packages|lib/python3[.\d]*)/|^<|^runpy\.py|^threading\.py"
    r"|(^|/)kernelworks/(build|compile|contract|dispatch|fuse|nn|ops|templates|tile)/"
)


@dataclass
class Nesting:
    """By event: the outermost op around it or itself, and of an op the innermost frame of the program and module.
    ``parent`` is the event right around it."""

    top: NDArray[np.int32]
    frame: NDArray[np.int32]
    module: NDArray[np.int32]
    parent: NDArray[np.int32]


def is_torch_op(name: str) -> bool:
    """Whether an event is an op, and nothing that only surrounds ops (autograd's nodes, regions of compiled code)."""
    namespace, colons, _ = name.partition("::")
    return bool(colons) and namespace not in LOOKED_THROUGH and "." not in namespace and " " not in namespace


def _is_program(name: str) -> bool:
    match = FRAME.fullmatch(name)
    return match is not None and not MACHINERY.search(match["file"])


def nest(events: Events) -> Nesting:
    """One walk over the sorted events of each thread. Overlapping events that do not nest are taken for neighbours."""
    texts = events.table.names.texts
    op_names = [is_torch_op(text) for text in texts]
    program_names = [_is_program(text) for text in texts]
    module_names = [text.startswith(MODULE) for text in texts]
    count = len(events)
    top, frame, module, parent = (np.full(count, NO_EVENT, np.int32) for _ in range(4))
    kinds, names, lanes = events.kind.tolist(), events.name.tolist(), events.lane.tolist()
    starts, ends = events.start.tolist(), events.end.tolist()
    # Each level of the stack: end, index, outermost op, stand-in for one, frame, module.
    stack: list[tuple[float, int, int, int, int, int]] = []
    lane = None
    for i in range(count):
        kind = kinds[i]
        if kind not in HOST:
            continue
        if lanes[i] != lane:
            lane, stack = lanes[i], []
        while stack and (stack[-1][0] <= starts[i] or stack[-1][0] + ROUNDING_US < ends[i]):
            stack.pop()
        above = stack[-1] if stack else (0.0, NO_EVENT, NO_EVENT, NO_EVENT, NO_EVENT, NO_EVENT)
        _, outer, op, stand_in, at_frame, at_module = above
        if kind == OP:
            if op_names[names[i]]:
                op = op if op != NO_EVENT else i
            else:
                stand_in = i
        elif kind == PYTHON:
            at_frame = i if program_names[names[i]] else at_frame
            at_module = i if module_names[names[i]] else at_module
        top[i] = op if op != NO_EVENT else (stand_in if kind in (OP, RUNTIME) else NO_EVENT)
        frame[i], module[i], parent[i] = at_frame, at_module, outer
        stack.append((ends[i], i, op, stand_in, at_frame, at_module))
    return Nesting(top, frame, module, parent)


HOST = frozenset({OP, RUNTIME, PYTHON, ANNOTATION, STEP})
