"""Plans: what serves calls that look alike, and the one function that makes all plans void.

A plan holds until a tuning record, a certificate or a kernel changes. Then ``forget_all`` empties every ``Plans`` there
is, and whoever keeps a choice elsewhere (a swapped model, a diagnosis) compares ``generation`` with the one it was made
in.

Plans lie in a dictionary, or in the table of ``native/``, where the way in through C++ finds them by the same key.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernelworks.contract.tensors import key_of

__all__ = [
    "AUTOGRAD",
    "KERNEL",
    "MOST_PLANS",
    "NATIVE",
    "Dictionary",
    "Plan",
    "Plans",
    "forget_all",
    "generation",
    "passthrough_allowed",
    "without_passthrough",
]  # fmt: skip

MOST_PLANS = 4096  # a decode loop meets a new length at every token; beyond this many the plans are dropped

# How a plan is called; C++ knows these numbers.
KERNEL = 0  # call(*args), or call(*args, out=out): no autograd records it
NATIVE = 1  # call(*args) without autocast, torch's own function: autograd records that as it does for any user
AUTOGRAD = 2  # call(*args), which sees to autograd itself

_get_threads = torch.get_num_threads
_every: weakref.WeakSet[Plans] = weakref.WeakSet()
_generation = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """``call`` as its ``kind`` says; ``run(*args, out=None)`` the same for callers that know no kinds."""

    kind: int
    call: Callable[..., Any]
    run: Callable[..., Any]
    makes: tuple[Callable[..., Any], Callable[..., Any]] | None = None  # training and resumed, where a kernel has them


def generation() -> int:
    """A number that is another one once choices may have changed."""
    return _generation


def forget_all() -> None:
    """Drops every plan of every op: each next call chooses anew."""
    global _generation
    _generation += 1
    for plans in list(_every):
        plans.forget()


_haste = threading.RLock()
_looking = 0  # how many are told of calls, in all threads


@contextlib.contextmanager
def without_passthrough() -> Iterator[None]:
    """Within, no call of any thread is torch's function's before it is looked at."""
    global _looking
    with _haste:
        _looking += 1
        for plans in list(_every):
            plans.disable_passthrough()
    try:
        yield
    finally:
        with _haste:
            _looking -= 1


@contextlib.contextmanager
def passthrough_allowed() -> Iterator[bool]:
    """Whether calls may be torch's function's before they are looked at; that stands within."""
    with _haste:
        yield not _looking


class Plans:
    """The plans of one op, and what else depends on the arguments of a call.

    ``what`` is "forward", "training" (a forward that autograd records, and all that follows), "backward", or another
    word; their first letters differ. ``wanted`` has a bit for each argument whose gradient is asked for.
    """

    def __init__(self) -> None:
        self._table: Any = Dictionary()
        self._lock = threading.Lock()
        self.disable_passthrough: Callable[[], None] = _nothing  # set by what calls go through
        _every.add(self)

    def __len__(self) -> int:
        return len(self._table)

    def find(self, what: str, wanted: int, args: tuple[Any, ...], out: Any, kernel: str | None) -> Any:
        """What was kept for calls like this one: a plan, a choice; None without it."""
        return self._table.find(what, wanted, args, out, kernel)

    def keep(
        self,
        what: str,
        wanted: int,
        args: tuple[Any, ...],
        out: Any,
        kernel: str | None,
        plan: Any,
        made_in_generation: int,
    ) -> None:
        """Keeps a plan for calls like this one, where they can be described, and where the ``generation`` that it was
        decided in is this one still: another thread may have called ``forget_all`` meanwhile."""
        with self._lock:
            if made_in_generation != _generation:
                return
            if len(self._table) >= MOST_PLANS:
                self._table.clear()
            self._table.keep(what, wanted, args, out, kernel, plan)

    def forget(self) -> None:
        self.disable_passthrough()
        with self._lock:
            self._table.clear()

    def use_table(self, table: Any) -> None:
        """From now on plans lie there; those that there are, are forgotten."""
        with self._lock:
            self._table = table


def _nothing() -> None:
    pass


class Dictionary:
    """A table of plans in Python."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, what: str, wanted: int, args: tuple[Any, ...], out: Any, kernel: str | None) -> Any:
        return self._kept.get(key_of(what, wanted, args, out, kernel, _get_threads()))

    def keep(self, what: str, wanted: int, args: tuple[Any, ...], out: Any, kernel: str | None, plan: Any) -> None:
        key = key_of(what, wanted, args, out, kernel, _get_threads())
        if key is not None:
            self._kept[key] = plan

    def clear(self) -> None:
        self._kept.clear()
