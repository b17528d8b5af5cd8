"""The outermost modules that a program calls: whom to swap, and on which inputs to compare."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import nn

from kernelworks.diagnose.copies import duplicate
from kernelworks.models.swap import Swap, swap_beside
from kernelworks.observe.budget import Budget, Over

__all__ = ["Roots", "Sample", "Swapped", "find", "kind_of"]

MOST_OF_A_KIND = 32  # modules that are alike but for their values, of which there are samples


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
    new ones each time it runs. ``alike``: of so many there is no sample, as there are enough of others like them."""

    modules: tuple[nn.Module, ...]
    samples: tuple[Sample, ...]
    fresh: bool
    alike: int = 0


def find(run: Callable[[], Any], budget: Budget | None = None) -> Roots:
    """Runs the program twice: to count the calls of outermost modules, and to copy the arguments of the first and the
    last. Where there are several modules, the first call of each is kept instead of the last of all, and of modules
    that are alike but for their values, of some. Raises Over where the ``budget`` ends meanwhile; the program's run
    goes on to its end then, with nothing looking at it."""
    first: dict[int, nn.Module] = {}
    calls = 0

    def count(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal calls
        calls += 1
        first.setdefault(id(module), module)

    _look(run, count, budget)
    modules: dict[int, nn.Module] = {}
    samples: list[Sample] = []
    kinds: Counter[Any] = Counter()
    seen = 0

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal seen
        seen += 1
        if id(module) not in modules:
            modules[id(module)] = module
            its = kind_of(module)
            kinds[its] += 1
            if kinds[its] <= MOST_OF_A_KIND:
                samples.append(_sample(module, args, kwargs))
        elif seen == calls and len(modules) == 1:
            samples.append(_sample(module, args, kwargs))

    _look(run, keep, budget)
    settled = _settled(list(modules.values()))
    known = {id(m) for m in settled}
    samples = [s for s in samples if id(s.module) in known]
    sampled = {id(s.module) for s in samples}
    return Roots(tuple(settled), tuple(samples), not modules.keys() <= first.keys(), len(known - sampled))


def _look(run: Callable[[], Any], before: Callable[..., None], budget: Budget | None) -> None:
    with _outermost(before, budget):
        run()
    if budget is not None:
        budget.ask("finding the modules that the program calls")


def kind_of(module: nn.Module) -> Any:
    """What modules that are alike but for their values have in common."""
    return type(module), tuple((name, p.shape, p.dtype, p.requires_grad) for name, p in module.named_parameters())


def _settled(modules: list[nn.Module]) -> list[nn.Module]:
    """The modules without those that are parts of others: ``generate`` calls an encoder by itself, and then the model
    that holds it."""
    parts = {id(part) for m in modules for part in m.modules() if part is not m}
    return [m for m in modules if id(m) not in parts]


def _sample(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sample:
    kept = duplicate((args, kwargs))
    training = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
    autocast = {kind: torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}
    modes = tuple(m.training for m in module.modules())
    return Sample(module, kept[0], kept[1], torch.is_inference_mode_enabled(), training, modes, autocast)


@contextlib.contextmanager
def _outermost(
    before: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None], budget: Budget | None = None
) -> Iterator[None]:
    """Calls ``before`` ahead of every call of a module that no other module is calling, until the ``budget`` is over.

    ``nn.Module.__call__`` is replaced meanwhile: torch's global hooks see no keyword arguments, and by the time they
    run the module's own forward has been looked up, too late to swap it.
    """
    original = nn.Module.__call__
    depth = 0

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if not depth and (budget is None or budget.left >= 0):
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
    measured. ``most_s``: swapping that takes longer ends, and on leaving Over is raised.
    """

    roots: Roots
    every: bool = False
    most_s: float = math.inf
    swaps: list[Swap] = field(default_factory=list)
    spent: float = 0.0
    taking: float = 0.0  # seconds for all that was swapped, fresh or not
    _held: set[int] = field(default_factory=set)  # ids of the modules that are in swaps, parts too
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Swapped:
        with contextlib.ExitStack() as stack:
            stack.callback(self._undo)
            if self.roots.fresh:
                stack.enter_context(_outermost(lambda module, args, kwargs: self._swap(module)))
            else:
                for module in self.roots.modules:
                    self._swap(module)
                self._check()
                self.spent = 0.0
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()
        if error is None:
            self._check()

    def _check(self) -> None:
        if self.taking > self.most_s:
            raise Over(
                f"swapping took longer than the budget of {self.most_s:g} s after {len(self.swaps)} modules of the "
                "program"
            )

    def _swap(self, module: nn.Module) -> None:
        if id(module) in self._held or self.taking > self.most_s:
            return
        start = time.perf_counter()
        within = {id(m) for m in module.modules()}
        parts = [s for s in self.swaps if id(s.model) in within] if within & self._held else []
        for part in parts:  # called by itself before: now under its whole
            part.undo()
            self.swaps.remove(part)
        if parts:
            self._held = {id(m) for s in self.swaps for m in s.model.modules()}
        self.swaps.append(swap_beside(module, self._held, every=self.every))
        self._held |= within
        took = time.perf_counter() - start
        self.spent += took
        self.taking += took

    def _undo(self) -> None:
        while self.swaps:
            self.swaps.pop().undo()
