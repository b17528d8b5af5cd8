"""Being told of calls: of each kind before what runs it is chosen, or of the first one in place of making it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks.dispatch.plans import forget_all, without_passthrough

__all__ = ["find_first_op", "is_watching", "notify_watchers", "stop_at", "stop_for", "watch_calls"]

Watcher = Callable[[Any, str, tuple[Any, ...], "str | None"], None]


class _Local(threading.local):
    watchers: tuple[Watcher, ...] = ()
    stops = False


_local = _Local()


@contextlib.contextmanager
def watch_calls(watcher: Watcher) -> Iterator[None]:
    """Within, in this thread, ``watcher(op, pass, args, kernel)`` is told of each kind of call before what runs it is
    chosen: the pass is ``"forward"`` or, where gradients are wanted, ``"training"``, the arguments are the call's own.

    Plans are dropped at the start, so that every kind is told of, and at the end, so that what was learned counts.
    What a watcher calls itself is not told of.
    """
    before = _local.watchers
    _local.watchers = (*before, watcher)
    try:
        with without_passthrough():
            forget_all()
            yield
    finally:
        _local.watchers = before
        forget_all()


def is_watching() -> bool:
    """Whether somebody in this thread is told of calls."""
    return bool(_local.watchers)


def notify_watchers(op: Any, pass_: str, args: tuple[Any, ...], kernel: str | None) -> None:
    """Says to whoever watches that such a call is about to be decided."""
    watchers, _local.watchers = _local.watchers, ()
    try:
        for watcher in watchers:
            watcher(op, pass_, args, kernel)
    finally:
        _local.watchers = watchers


class _Reached(Exception):
    def __init__(self, op: Any, args: tuple[Any, ...], kernel: str | None) -> None:
        self.op, self.asked, self.kernel = op, args, kernel


class _Declined(Exception):
    """The call that ``find_first_op`` makes is torch's own function's: none of ours says the same."""


class _Watching(TorchDispatchMode):
    """Lets operators pass; that it is there keeps an op from its quick ways."""

    sees_kernelworks = True

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def find_first_op(call: Callable[[], Any]) -> tuple[Any, tuple[Any, ...], str | None] | None:
    """The first op that ``call`` reaches, with its arguments in schema order and the kernel asked for, or None.

    Nothing of ours is run. Raises what the check of the arguments raises, and ValueError where the call is one that an
    op leaves to torch's function.
    """
    before, _local.stops = _local.stops, True
    try:
        with without_passthrough(), _Watching():
            call()
    except _Reached as found:
        return found.op, found.asked, found.kernel
    except _Declined as declined:
        raise ValueError(str(declined)) from None
    finally:
        _local.stops = before
    return None


def stop_at(op: Any, args: tuple[Any, ...], kernel: str | None) -> None:
    """Ends the call that ``find_first_op`` makes."""
    if _local.stops:
        raise _Reached(op, args, kernel)


def stop_for(op: Any, reason: Any) -> None:
    """Ends the call that ``find_first_op`` makes, which is torch's function's for this reason."""
    if _local.stops:
        raise _Declined(f"torch's own function runs in place of {op.name}: {reason}")
