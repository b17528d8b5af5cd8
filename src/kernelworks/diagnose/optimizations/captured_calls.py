"""Calls that torch captures in CUDA graphs, and that may be given their own answers.

A graph writes its answers to the same memory at each call. A loop that gives a call the answer of the one before
(``state = step(state)``) hands over memory that this call is about to overwrite. torch refuses that while it captures
("accessing tensor output of CUDAGraphs that has been overwritten"), so whether a program works depended on what its
module was first called with. Here such an argument is copied before the call: a loop's state is small, and the graph
copies what lies elsewhere into its own memory anyway.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["captures", "with_answers_copied"]

CONTAINERS = (tuple, list, dict)
_last = threading.local()  # ``addresses``: where the last captured call of a thread wrote what it answered


def captures(mode: object) -> bool:
    """Whether torch captures what it compiles in this mode."""
    return mode in ("reduce-overhead", "max-autotune")


def with_answers_copied(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """What calls it with copies of those arguments that are answers of the last captured call. Gradients need none: a
    graph that is to be run backwards is not overwritten before."""

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return compiled(*args, **kwargs)
        answers: frozenset[int] = getattr(_last, "addresses", frozenset())
        given = frozenset(_addresses((args, kwargs)))
        if not answers.isdisjoint(given):
            args, kwargs = tree_map(lambda value: value.clone() if _is_in(value, answers) else value, (args, kwargs))
            given -= answers
        answer = compiled(*args, **kwargs)
        _last.addresses = frozenset(_addresses(answer)) - given  # what is given back is no answer's memory
        return answer

    return call


def _addresses(value: Any) -> Iterator[int]:
    """Where the memory of tensors begins that need no gradient."""
    items = tree_leaves(value) if isinstance(value, CONTAINERS) else (value,)
    return (item.untyped_storage().data_ptr() for item in items if _is_plain(item))


def _is_in(value: Any, answers: frozenset[int]) -> bool:
    return _is_plain(value) and value.untyped_storage().data_ptr() in answers


def _is_plain(value: Any) -> bool:
    return type(value) in (Tensor, nn.Parameter) and not value.requires_grad and value.layout is torch.strided
