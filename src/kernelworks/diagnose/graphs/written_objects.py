"""Objects that a call is given beside tensors and numbers, and that it writes into: a cache of fixed size, say.

A graph writes where such an object's tensors lay when it was captured. So it serves that very object, as long as each
of its tensors lies there and its numbers are the same; and it is captured only if a call leaves them so: a cache
that puts longer tensors in place of its own, or counts on the host, is none that a graph can go on with.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from kernelworks.build.digest import fingerprint, look
from kernelworks.diagnose.graphs.held_state import PLAIN_TYPES
from kernelworks.diagnose.snapshot import CONTAINERS, DEEPEST, keeps

__all__ = ["can_be_written", "marks", "tensors_in"]


def can_be_written(value: Any) -> bool:
    """Whether it is a plain object of attributes that a graph may be captured beside."""
    if not keeps(value) or isinstance(value, CONTAINERS):
        return False
    try:
        weakref.ref(value)
    except TypeError:
        return False
    return True


def marks(value: Any, takes: Callable[[Tensor], bool], depth: int = 0) -> Any:
    """Where its tensors lie, and its numbers: equal at two moments if a graph of one of them holds at the other.
    Of tensors that a graph does not read (``takes``) what counts is what they hold."""
    if isinstance(value, Tensor):
        return id(value), look(value) if takes(value) else fingerprint(value), value.requires_grad
    if isinstance(value, PLAIN_TYPES):
        return type(value), value
    if isinstance(value, dict):
        return tuple((id(key), marks(item, takes, depth)) for key, item in value.items())
    if isinstance(value, (list, tuple, collections.deque)):
        return tuple(marks(item, takes, depth) for item in value)
    if depth < DEEPEST and keeps(value):
        return id(value), tuple([(name, marks(item, takes, depth + 1)) for name, item in value.__dict__.items()])
    return id(value), len(value) if isinstance(value, set) else 0


def tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """Those that it holds, in the order in which it does."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, collections.deque, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item, depth)
    elif depth < DEEPEST and keeps(value):
        for item in value.__dict__.values():
            yield from tensors_in(item, depth + 1)
