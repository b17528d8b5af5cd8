"""Plans: what serves calls that look alike, once that has been settled, and the one word that makes all of it void.

A plan holds until a timing, a certificate or a row changes. Then ``forget_all`` empties every ``Plans`` there is, and
whoever keeps a choice elsewhere (a swapped model, a diagnosis) compares ``generation`` with the one it was made in.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelworks.build import BuildError, library

__all__ = ["KERNEL", "MOST_PLANS", "NATIVE", "RECORDED", "Plan", "Plans", "forget_all", "generation"]

FINDER = Path(__file__).resolve().parent / "build" / "plans.cpp"
MOST_PLANS = 4096  # a decode loop meets a new length at every token; beyond this many the plans are dropped

# How a plan is called.
KERNEL = 0  # call(*args), or call(*args, out=out): no autograd records it
NATIVE = 1  # call(*args), torch's own function: autograd records that as it does for any user
RECORDED = 2  # call(*args), which sees to autograd itself

_get_threads = torch.get_num_threads
_every: weakref.WeakSet[Plans] = weakref.WeakSet()
_generation = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """``call`` as its ``kind`` says; ``run(*args, out=None)`` the same for callers that know no kinds."""

    kind: int
    call: Callable[..., Any]
    run: Callable[..., Any]
    makes: tuple[Callable[..., Any], Callable[..., Any]] | None = None  # training and resumed, where a row has them


def generation() -> int:
    """A number that is another one once choices may have changed."""
    return _generation


def forget_all() -> None:
    """Drops every plan of every op: each next call chooses anew."""
    global _generation
    _generation += 1
    for plans in list(_every):
        plans.forget()


class Plans:
    """The plans of one op."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._finders: list[dict[str, Any]] = []
        _every.add(self)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Any) -> Any:
        """What was kept by this key: a plan, or a choice."""
        return self._kept.get(key)

    def keep(self, key: Any, plan: Any) -> None:
        with self._lock:
            if len(self._kept) >= MOST_PLANS:
                self._kept.clear()
            self._kept[key] = plan

    def forget(self) -> None:
        with self._lock:
            self._kept.clear()
            for scope in self._finders:
                scope["quick"] = None

    def found_by(self, scope: dict[str, Any]) -> Callable[..., None]:
        """Has code find its plans in C: a third of the time that the same key takes in Python.

        ``scope`` is where that code finds ``find`` and ``quick``; the answer is ``keep(plan, row, *arguments, out)``.
        """
        self._finders.append(scope)

        def keep(plan: Plan, *look: Any) -> None:
            try:
                finder = library(FINDER, "scalar")
            except BuildError:  # no compiler: calls are as right as ever, only slower by microseconds
                return
            with self._lock:
                quick = scope["quick"]
                if quick is None or len(quick[1]) >= MOST_PLANS:
                    quick = (_Table(finder), [])  # a new one: a caller may be between finding a number and using it
                quick[1].append(plan.run)
                with contextlib.suppress(Exception):
                    finder.keep(int(quick[0]), len(quick[1]) - 1, _get_threads(), *look)
                scope["find"], scope["quick"] = finder.find, quick

        return keep


class _Table(int):
    """The number of a table in C, which is freed with the last one who knows it."""

    _drop: Callable[[int], None]

    def __new__(cls, finder: Any) -> _Table:
        made = super().__new__(cls, finder.table())
        made._drop = finder.drop
        return made

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the interpreter's end the library may be gone
            self._drop(int(self))
