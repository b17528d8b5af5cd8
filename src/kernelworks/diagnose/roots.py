"""The outermost modules that a program calls: whom to swap, and on which inputs to compare."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import nn

from kernelworks.diagnose.copies import duplicate
from kernelworks.models.swap import Swap, swap_beside

__all__ = ["Roots", "Sample", "Swapped", "find"]


@dataclass(frozen=True)
class Sample:
    """One call of an outermost module, its arguments as they were before it."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inference: bool
    training: bool = False  # gradients were wanted of the module
    modes: tuple[bool, ...] = ()  # ``training`` of each of ``module.modules()``
    autocast: Mapping[str, torch.dtype] = field(default_factory=dict)  # by type of device, where it was on


@dataclass(frozen=True)
class Roots:
    """``modules`` are the outermost modules of a run, none of which is a part of another. ``fresh``: the program makes
    new ones each time it runs."""

    modules: tuple[nn.Module, ...]
    samples: tuple[Sample, ...]
    fresh: bool


def find(run: Callable[[], Any]) -> Roots:
    """Runs the program twice: to count the calls of outermost modules, and to copy the arguments of the first and the
    last. Where there are several modules, the first call of each is kept instead of the last of all."""
    first: list[nn.Module] = []
    calls = 0

    def count(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal calls
        calls += 1
        if all(module is not m for m in first):
            first.append(module)

    with _outermost(count):
        run()
    modules: list[nn.Module] = []
    samples: list[Sample] = []
    seen = 0

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal seen
        seen += 1
        known = any(module is m for m in modules)
        if not known:
            modules.append(module)
        if not known or (seen == calls and len(modules) == 1):
            samples.append(_sample(module, args, kwargs))

    with _outermost(keep):
        run()
    settled = _settled(modules)
    samples = [s for s in samples if any(s.module is m for m in settled)]
    return Roots(tuple(settled), tuple(samples), any(all(m is not f for f in first) for m in modules))


def _settled(modules: list[nn.Module]) -> list[nn.Module]:
    """The modules without those that are parts of others: ``generate`` calls an encoder by itself, and then the model
    that holds it."""
    return [m for m in modules if not any(m is not other and _holds(other, m) for other in modules)]


def _holds(whole: nn.Module, part: nn.Module) -> bool:
    return any(part is m for m in whole.modules())


def _sample(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sample:
    kept = duplicate((args, kwargs))
    training = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
    autocast = {kind: torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}
    modes = tuple(m.training for m in module.modules())
    return Sample(module, kept[0], kept[1], torch.is_inference_mode_enabled(), training, modes, autocast)


@contextlib.contextmanager
def _outermost(before: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]) -> Iterator[None]:
    """Calls ``before`` ahead of every call of a module that no other module is calling.

    ``nn.Module.__call__`` is replaced meanwhile: torch's global hooks see no keyword arguments, and by the time they
    run the module's own forward has been looked up, too late to swap it.
    """
    original = nn.Module.__call__
    depth = 0

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if not depth:
            before(module, args, kwargs)
        depth += 1
        try:
            return original(module, *args, **kwargs)
        finally:
            depth -= 1

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


@dataclass
class Swapped:
    """As a context: our rows are in the outermost modules; on leaving every module is as it was.

    Where the program makes fresh modules each time, they are swapped as they are first called; ``spent`` is what that
    took, to be taken off a wall clock measured inside. ``every``: ops are put in place whatever the timings say, to be
    measured.
    """

    roots: Roots
    every: bool = False
    swaps: list[Swap] = field(default_factory=list)
    spent: float = 0.0
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Swapped:
        with contextlib.ExitStack() as stack:
            stack.callback(self._undo)
            if self.roots.fresh:
                stack.enter_context(_outermost(lambda module, args, kwargs: self._swap(module)))
            else:
                for module in self.roots.modules:
                    self._swap(module)
                self.spent = 0.0
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _swap(self, module: nn.Module) -> None:
        if any(_holds(s.model, module) for s in self.swaps):
            return
        start = time.perf_counter()
        for part in [s for s in self.swaps if _holds(module, s.model)]:  # called by itself before: now under its whole
            part.undo()
            self.swaps.remove(part)
        shared = frozenset(id(m) for s in self.swaps for m in s.model.modules())
        self.swaps.append(swap_beside(module, shared, every=self.every))
        self.spent += time.perf_counter() - start

    def _undo(self) -> None:
        while self.swaps:
            self.swaps.pop().undo()
