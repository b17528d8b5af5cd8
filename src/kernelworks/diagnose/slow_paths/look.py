"""Runs the program once under all watchers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from kernelworks.diagnose.slow_paths import WATCHERS, SlowPath, Watcher
from kernelworks.diagnose.slow_paths.slow_path import replaced_attribute

__all__ = ["slow_paths", "watched_run"]

NOTABLE = 0.02  # of the wall clock: what costs less is not said
MOST = 4  # are said


class _Functions(TorchFunctionMode):
    def __init__(self, watchers: Sequence[Watcher]) -> None:
        super().__init__()
        self.seeing = [w for w in watchers if type(w).functions is not Watcher.functions]
        self.returned = [w for w in watchers if type(w).results is not Watcher.results]

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for watcher in self.seeing:
            watcher.functions(func, args, kwargs)
        result = func(*args, **kwargs)
        for watcher in self.returned:
            watcher.results(func, result)
        return result


def slow_paths(run: Callable[[], Any], wall_s: float, kinds: Sequence[type[Watcher]] = WATCHERS) -> tuple[str, ...]:
    """What is to be said of the slow paths that a run takes, the worst first. A program that raises when it is run once
    more has none: the diagnosis is of the runs before."""
    watchers = [kind() for kind in kinds]
    try:
        watched_run(run, watchers)
    except Exception:
        return ()
    found: list[SlowPath] = []
    for watcher in watchers:
        with contextlib.suppress(Exception), torch.no_grad():  # a fault of ours costs this alarm alone
            found += watcher.slow_paths(wall_s, torch.get_num_threads())
    worth = [one for one in found if one.lost_s >= NOTABLE * wall_s]
    return tuple(one.text for one in sorted(worth, key=lambda one: -one.lost_s)[:MOST])


def watched_run(run: Callable[[], Any], watchers: Sequence[Watcher]) -> None:
    """Runs the program once under these. Raises what it raises."""
    with contextlib.ExitStack() as stack:
        for watcher in watchers:
            stack.enter_context(watcher.watching())
        stack.enter_context(replaced_attribute(nn.Module, "__call__", _watched_call(watchers)))
        stack.enter_context(_Functions(watchers))
        run()


def _watched_call(watchers: Sequence[Watcher]) -> Callable[..., Any]:
    """``nn.Module.__call__`` that tells them of each call: hooks would be seen by what looks for hooks."""
    before = [w for w in watchers if type(w).modules is not Watcher.modules]
    after = [w for w in watchers if type(w).outputs is not Watcher.outputs]
    call: Any = nn.Module.__call__

    def watched(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for watcher in before:
            watcher.modules(module, args, kwargs)
        output = call(module, *args, **kwargs)
        for watcher in after:
            watcher.outputs(module, output)
        return output

    return watched
