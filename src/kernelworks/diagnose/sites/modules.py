"""The outermost modules that a program calls: whom to swap, and on which inputs to compare."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from kernelworks.contract.leaves import leaves
from kernelworks.contract.tensors import is_transform_active
from kernelworks.diagnose.sites.functions import Function
from kernelworks.diagnose.sites.sampling import Look, look_of, standing_for
from kernelworks.diagnose.snapshot import duplicate
from kernelworks.nn.swap import Swap, swap_beside
from kernelworks.profile.budget import Budget, BudgetExceeded

__all__ = ["Roots", "Sample", "SwappedModules", "find_roots", "kind_of", "outermost"]

MOST_OF_A_KIND = 32  # at most so many modules that differ in their values alone are sampled
_MODULE: Any = nn.Module  # its ``__call__`` is replaced


@dataclass(frozen=True)
class Sample:
    """One call of an outermost module, its arguments as they were before it."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inference: bool
    training: bool = False  # gradients were wanted of the module, or of what it was given
    modes: tuple[bool, ...] = ()  # ``training`` of each of ``module.modules()``
    autocast: Mapping[str, torch.dtype] = field(default_factory=dict)  # by type of device, if it was on
    recording: bool = False  # gradients were on, whether or not any was wanted
    stands: int = 1  # it stands for so many calls of a run, itself among them


@dataclass(frozen=True)
class Roots:
    """``modules`` are the outermost modules of a run, none of which is a part of another, and functions that were
    called as modules. ``fresh``: the program makes new ones each time it runs. One that is new and holds no tensors (a
    loss that a training step makes as it needs it) is none: its calls are those of functions. ``alike``: of so many
    there is no sample, as there are enough of others like them."""

    modules: tuple[nn.Module, ...]
    samples: tuple[Sample, ...]
    fresh: bool
    alike: int = 0
    calls: Mapping[int, int] = field(default_factory=dict)  # by ``id`` of a module, how often a run calls it
    seconds: Mapping[int, float] = field(default_factory=dict)  # and for how long the host was in those calls
    optimizers: tuple[Optimizer, ...] = ()  # that step in a run, in the order in which they first do; none that are new
    passing: tuple[Optimizer, ...] = ()  # the program makes these anew in each run

    @property
    def models(self) -> tuple[nn.Module, ...]:
        """Those that are the program's own modules, not functions that stand as one."""
        return tuple(module for module in self.modules if not isinstance(module, Function))


def find_roots(run: Callable[[], Any], budget: Budget | None = None, functions: Sequence[Function] = ()) -> Roots:
    """Runs the program twice, ``functions`` called as modules meanwhile: to count the calls of outermost modules, and
    to copy the arguments of those that stand for all of each; of modules that are alike but for their values, of some.
    Raises BudgetExceeded if the ``budget`` ends meanwhile; the program's run goes on to its end then, with nothing
    looking at it."""
    with contextlib.ExitStack() as stack:
        for function in functions:
            stack.enter_context(function.install())
        return _find_roots(run, budget)


def _find_roots(run: Callable[[], Any], budget: Budget | None) -> Roots:
    first: dict[int, nn.Module] = {}
    looks: dict[int, list[Look]] = defaultdict(list)
    seconds: dict[int, float] = defaultdict(float)

    def count(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        looks[id(module)].append(look_of(module, args, kwargs))
        first.setdefault(id(module), module)
        return True

    stepped: list[list[Optimizer]] = [[], []]
    with _stepping(stepped[0]):
        _look(run, count, budget, seconds)
    stands = {its: standing_for(calls) for its, calls in looks.items()}
    modules: dict[int, nn.Module] = {}
    samples: list[Sample] = []
    kinds: Counter[Any] = Counter()
    seen: Counter[int] = Counter()

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        its, at = id(module), seen[id(module)]
        if its not in first and _holds_nothing(module):
            return False
        seen[its] += 1
        if its not in modules:
            modules[its] = module
            kinds[kind_of(module)] += 1
        count = stands.get(its, {0: 1}).get(at)  # of a module that is new its first call
        if count is not None and kinds[kind_of(module)] <= MOST_OF_A_KIND:
            samples.append(_sample(module, args, kwargs, count))
        return True

    with _stepping(stepped[1]):
        _look(run, keep, budget)
    outer_modules = _without_parts(list(modules.values()))
    known = {id(m) for m in outer_modules}
    samples = [s for s in samples if id(s.module) in known]
    sampled = {id(s.module) for s in samples}
    lasting = _lasting(*stepped)
    return Roots(
        tuple(outer_modules), tuple(samples), not modules.keys() <= first.keys(), len(known - sampled),
        {its: len(calls) for its, calls in looks.items()}, seconds,
        lasting, () if lasting else tuple(stepped[1]),
    )  # fmt: skip


@contextlib.contextmanager
def _stepping(optimizers: list[Optimizer]) -> Iterator[None]:
    """Each optimizer that steps, once, in ``optimizers``."""

    def see(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not any(optimizer is one for one in optimizers):
            optimizers.append(optimizer)

    hook = register_optimizer_step_pre_hook(see)
    try:
        yield
    finally:
        hook.remove()


def _lasting(first: list[Optimizer], second: list[Optimizer]) -> tuple[Optimizer, ...]:
    """The optimizers of two runs, if both had the same."""
    same = len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))
    return tuple(second) if same else ()


def _holds_nothing(module: nn.Module) -> bool:
    return not isinstance(module, Function) and not any(True for _ in (*module.parameters(), *module.buffers()))


def _look(
    run: Callable[[], Any], before: Callable[..., Any], budget: Budget | None, seconds: dict[int, float] | None = None
) -> None:
    with outermost(before, budget, seconds):
        run()
    if budget is not None:
        budget.ask("finding the modules that the program calls")


def kind_of(module: nn.Module) -> Any:
    """What modules that are alike but for their values have in common."""
    parameters = tuple((name, p.shape, p.dtype, p.requires_grad) for name, p in module.named_parameters())
    return type(module), module.path if isinstance(module, Function) else "", parameters


def _without_parts(modules: list[nn.Module]) -> list[nn.Module]:
    """The modules without those that are parts of others: ``generate`` calls an encoder by itself, and then the model
    that holds it."""
    parts = {id(part) for m in modules for part in m.modules() if part is not m}
    return [m for m in modules if id(m) not in parts]


def _sample(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], stands: int) -> Sample:
    kept = duplicate((args, kwargs))
    recording = torch.is_grad_enabled()
    own = module.attributes(kept[0]) if isinstance(module, Function) else {}
    held = itertools.chain(module.parameters(), leaves(kept).values(), own.values())
    training = recording and any(t.requires_grad for t in held)
    autocast = {kind: torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}
    modes = tuple(m.training for m in module.modules())
    inference = torch.is_inference_mode_enabled()
    return Sample(module, kept[0], kept[1], inference, training, modes, autocast, recording, stands)


@contextlib.contextmanager
def outermost(
    before: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], object],
    budget: Budget | None = None,
    seconds: dict[int, float] | None = None,
) -> Iterator[None]:
    """Calls ``before`` ahead of every call of a module that no other module is calling, until the ``budget`` is over,
    and adds what those calls take to ``seconds``. If ``before`` returns False that module calls others as a function
    does.

    A call within a transform (``torch.func``) is passed over: what it is given are no tensors that could be kept.

    ``nn.Module.__call__`` is replaced meanwhile: torch's global hooks see no keyword arguments, and by the time they
    run the module's own forward has been looked up, too late to swap it. While a module runs it is as it was, so that
    the modules in it, and a compiler that reads them, see nothing of this.
    """
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_transform_active():
            return original(module, *args, **kwargs)
        if (budget is None or budget.seconds_left >= 0) and before(module, args, kwargs) is False:
            return original(module, *args, **kwargs)
        begin = time.perf_counter()
        _MODULE.__call__ = original
        try:
            return original(module, *args, **kwargs)
        finally:
            if inside:
                _MODULE.__call__ = call
            if seconds is not None:
                seconds[id(module)] += time.perf_counter() - begin

    inside = True
    _MODULE.__call__ = call
    try:
        yield
    finally:
        inside = False
        _MODULE.__call__ = original


@dataclass
class SwappedModules:
    """As a context: our kernels (of ``ops``, by default of all) are in the outermost modules; on leaving every module
    is as it was.

    If the program makes fresh modules each time, they are swapped as they are first called; ``seconds_spent`` is what
    that took, to be taken off a wall clock measured inside. ``every``: ops are swapped whatever tuning records say,
    to be measured. ``most_s``: swapping that takes longer ends, and on leaving BudgetExceeded is raised.
    """

    roots: Roots
    every: bool = False
    most_s: float = math.inf
    ops: Collection[str] | None = None
    swaps: list[Swap] = field(default_factory=list)
    seconds_spent: float = 0.0
    taking: float = 0.0  # seconds for all that was swapped, fresh or not
    _held: set[int] = field(default_factory=set)  # ids of the modules that are in swaps, parts too
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> SwappedModules:
        with contextlib.ExitStack() as stack:
            stack.callback(self._undo)
            if self.roots.fresh:
                stack.enter_context(outermost(lambda module, args, kwargs: self._swap(module)))
            else:
                for module in self.roots.models:
                    self._swap(module)
                self._check()
                self.seconds_spent = 0.0
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()
        if error is None:
            self._check()

    def _check(self) -> None:
        if self.taking > self.most_s:
            raise BudgetExceeded(
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
        self.swaps.append(swap_beside(module, self._held, every=self.every, ops=self.ops))
        self._held |= within
        took = time.perf_counter() - start
        self.seconds_spent += took
        self.taking += took

    def _undo(self) -> None:
        while self.swaps:
            self.swaps.pop().undo()
