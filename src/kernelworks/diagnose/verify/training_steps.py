"""Whether a program that trains still learns the same: what it returns, its gradients and its parameters after some
steps, from the same start with the same random numbers.

The scale is the program's own rounding, as for modules alone: how far the same figures move when each op's result is
moved by roundings, and under autocast, how far they lie from those without it: a sum of many numbers that 16 bits round
alike is off by more than numbers moved at random show. A program that does not repeat itself (other data each time)
cannot be compared so, which is said, and speaks neither for a change nor against it.
"""

from __future__ import annotations

import contextlib
import gc
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.contract.leaves import output_tensors
from kernelworks.diagnose.optimization import CombinedChange, Scene
from kernelworks.diagnose.snapshot import State, fixed_seed, is_overwritten
from kernelworks.diagnose.verify.agreement import (
    GRADIENT,
    ROUNDING,
    SAYS_NOTHING,
    Agreement,
)
from kernelworks.diagnose.verify.answers import plain_copy
from kernelworks.diagnose.verify.device_memory import SHARE_OF_MEMORY, available_bytes
from kernelworks.diagnose.verify.precision import PerturbedRounding

__all__ = ["STEPS", "same_steps"]

STEPS = 3
DRAWS, MORE_DRAWS = 2, 6  # so many if something differs: the most of two draws of one number is often small
COPIES = 17  # so many times the parameters' bytes are in use at once
GROWS = 3.0  # an error may grow so many times, beyond the program's own rounding
# A step rounds a parameter twice where it lies (decay, update), which the rounding of results does not show. Two runs
# of STEPS steps make 4 STEPS such roundings of at most u each; of equal elements they are equal, so that nothing
# averages out. Three standard deviations of their sum, each u / sqrt(3), are 2 sqrt(3 STEPS) u: 2 STEPS u for 3 steps.
PARAMETER_ROUNDINGS = 2.0 * STEPS


@dataclass
class _Learned:
    """What a program returned and what it made of its parameters; tensors by what they are, and the parameters' way."""

    named: dict[str, Tensor]
    moved: dict[str, float]  # how far each parameter went, in the 2-norm


def same_steps(
    scene: Scene, changed: AbstractContextManager[Any], before: CombinedChange | None = None
) -> Agreement | None:
    """Runs the program for some steps as it was (with ``before`` in place, which was allowed to change numbers) and
    ``changed``, each from the same start; None if there is nothing to compare: no optimizer that lasts, too large a
    program, one that does not repeat itself. Everything is as it was afterwards. Raises what the program raises when it
    is changed."""
    parameters = {id(p): p for module in scene.roots.modules for p in module.parameters()}.values()
    if not scene.optimizers or scene.roots.fresh or not _fits_in_memory(parameters):
        return None
    was = before or CombinedChange(())
    key = was.changes
    now = _Start(scene)
    first = scene.keep("where steps begin", lambda: now)  # every measured run has moved the program on since
    try:
        if first is not now:
            first.restore()
        return _same_steps(scene, changed, was, key)
    finally:
        if first is not now:
            now.restore()


def _same_steps(
    scene: Scene, changed: AbstractContextManager[Any], was: CombinedChange, key: tuple[Any, ...]
) -> Agreement | None:
    """The same from where the program stands."""
    reference = scene.keep(("steps as it was", key), lambda: _steps(scene, was))
    if not scene.keep(("steps repeat", key), lambda: _same_again(scene, was, reference)):
        return None
    own: list[_Learned] = scene.keep(("steps with roundings", key), lambda: _own_steps(scene, was))
    now = _steps(scene, changed)
    worst = _judged(reference, now, own)
    if worst is not None and len(own) < MORE_DRAWS:
        own += [_steps(scene, was, seed) for seed in range(DRAWS, MORE_DRAWS)]
        worst = _judged(reference, now, own)
    if worst is None:
        return Agreement(0.0, 0.0, True, "", ROUNDING)
    if not _same_again(scene, was, reference):
        return None  # something that is not ours to put back has changed meanwhile
    name, after, off = worst
    return Agreement(off, after, False, f"after {STEPS} steps, worst in {name}", ROUNDING)


def _own_steps(scene: Scene, was: CombinedChange) -> list[_Learned]:
    """The steps as the program's own rounding might move them."""
    found = [_steps(scene, was, seed) for seed in range(DRAWS)]
    if any(sample.autocast for sample in scene.roots.samples):
        with contextlib.suppress(RuntimeError, TypeError), _without_autocast():  # a program may rely on its dtypes
            found.append(_steps(scene, was))
    return found


@contextlib.contextmanager
def _without_autocast() -> Iterator[None]:
    """Regions of autocast that are entered meanwhile do nothing."""
    entered: Callable[[Any], Any] = torch.autocast.__enter__

    def disabled(self: torch.autocast) -> Any:
        self._enabled = False
        return entered(self)

    torch.autocast.__enter__ = disabled  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__ = entered  # type: ignore[method-assign]


def _fits_in_memory(parameters: Iterable[Tensor]) -> bool:
    """Whether there is memory for it: the parameters, their gradients and what an optimizer keeps of them (twice as
    much) are put aside, as they are now and as they were first, and of four runs the parameters and gradients are
    kept."""
    need: dict[torch.device, int] = {}
    for p in parameters:
        need[p.device] = need.get(p.device, 0) + p.nbytes * COPIES
    return all(size <= SHARE_OF_MEMORY * available_bytes(device) for device, size in need.items())


def _steps(scene: Scene, variant: AbstractContextManager[Any], seed: int | None = None) -> _Learned:
    """Some steps from where the program stands, and back there."""
    with variant:
        return _stepped(scene, _Start(scene), seed)


def _stepped(scene: Scene, start: _Start, seed: int | None) -> _Learned:
    assert scene.program is not None
    mode = PerturbedRounding(seed) if seed is not None else contextlib.nullcontext()
    named: dict[str, Tensor] = {}
    try:
        with fixed_seed(), mode:
            for step in range(STEPS):
                if scene.budget is not None:
                    scene.budget.ask("comparing steps")
                for name, value in output_tensors(scene.program.run()).items():
                    named[f"what step {step + 1} returns{name}"] = plain_copy(value)
        for name, parameter in start.parameters.items():
            named[name] = plain_copy(parameter)
            gradient = _gradient(parameter)
            if gradient is not None and gradient.layout is torch.strided:
                named[GRADIENT + name] = plain_copy(gradient)
        moved = {name: _norm(named[name] - plain_copy(start.values[name])) for name in start.parameters}
    finally:
        start.restore()
    return _Learned(named, moved)


def _judged(reference: _Learned, now: _Learned, own: Sequence[_Learned]) -> tuple[str, float, float] | None:
    """Of what differs by more than its rounding the worst: its name, how far it is off and how far rounding carries it,
    relative to its size. None if nothing does."""
    found: list[tuple[str, float, float]] = []
    for name, value in reference.named.items():
        other = now.named.get(name)
        if other is None or other.shape != value.shape or other.dtype != value.dtype:
            found.append((name, 1.0, 0.0))
            continue
        if not value.is_floating_point():
            continue  # ties of an argmax: the modules' own answers are judged for them
        draws = [draw.named[name] for draw in own if name in draw.named and draw.named[name].shape == value.shape]
        rounding = max((_norm(draw - value) for draw in draws), default=0.0)
        size, off = _norm(value), _norm(other - value)
        times = PARAMETER_ROUNDINGS if name in reference.moved else 1.0
        bound = (1 + GROWS) * rounding + times * UNIT_ROUNDOFF.get(value.dtype, 0.0) * size
        if off > bound and bound <= SAYS_NOTHING * reference.moved.get(name, size):
            found.append((name, off / (size or 1.0), rounding / (size or 1.0)))
    return max(found, key=lambda one: one[1], default=None)


def _same_again(scene: Scene, was: CombinedChange, reference: _Learned) -> bool:
    """Whether the program repeats itself. A GPU adds in another order each time, and Adam follows a gradient's sign,
    however small it is: there the question is asked of sums in a fixed order, if others have it differ."""
    if _repeats(reference, _steps(scene, was)):
        return True
    if not scene.on_gpu:
        return False
    with _sums_in_order():
        return _repeats(_steps(scene, was), _steps(scene, was))


@contextlib.contextmanager
def _sums_in_order() -> Iterator[None]:
    """Torch's deterministic kernels, of ops that have some."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    found = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*deterministic.*", UserWarning)
        torch.use_deterministic_algorithms(True, warn_only=True)
        _set_cudnn(deterministic=True, benchmark=False)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            _set_cudnn(*found)


def _set_cudnn(deterministic: bool, benchmark: bool) -> None:
    """torch.backends takes no flag any more once a program has loaded torch.testing._internal."""
    torch._C._set_cudnn_deterministic(deterministic)
    torch._C._set_cudnn_benchmark(benchmark)


def _repeats(reference: _Learned, again: _Learned) -> bool:
    """Whether two runs from one start are the same but for an order of summation. A gradient that is nothing but
    rounding errors (of a bias before a batch norm) is another one then, and so is what an optimizer makes of it."""
    left_out = _rounding_alone(reference)
    for name, value in reference.named.items():
        other = again.named.get(name)
        if other is None or other.shape != value.shape:
            return False
        if name in left_out:
            continue
        near = math.sqrt(UNIT_ROUNDOFF.get(value.dtype, 0.0)) * _norm(value)
        if value.is_floating_point() and _norm(other - value) > near:
            return False
    return True


def _rounding_alone(learned: _Learned) -> set[str]:
    """Gradients that are so small beside the largest that they are rounding errors of what was summed to them, and
    their parameters."""
    sizes = {name: _norm(learned.named[GRADIENT + name]) for name in learned.moved if GRADIENT + name in learned.named}
    most = max(sizes.values(), default=0.0)
    found = set[str]()
    for name, size in sizes.items():
        if size <= math.sqrt(UNIT_ROUNDOFF.get(learned.named[name].dtype, 0.0)) * most:
            found |= {name, GRADIENT + name}
    return found


def _norm(difference: Tensor) -> float:
    wide = difference.double()
    return float(torch.where(wide.isfinite(), wide, 0.0).norm())


class _Start:
    """Where a program stands: its modules, their gradients, its optimizers' states and their schedules.
    ``restore()`` as often as is wanted."""

    def __init__(self, scene: Scene) -> None:
        self.modules = [State(module) for module in scene.roots.modules]
        several = len(scene.roots.modules) > 1
        self.parameters: dict[str, Tensor] = {
            f"{number}.{name}" if several else name: p
            for number, module in enumerate(scene.roots.modules)
            for name, p in module.named_parameters()
        }
        self.values = {name: p.detach().clone() for name, p in self.parameters.items()}
        held = {id(p) for p in self.parameters.values()}
        stepped = [p for o in scene.optimizers for g in o.param_groups for p in g["params"]]
        self.others = [(p, p.detach().clone()) for p in stepped if id(p) not in held]
        self.gradients = [
            (p, grad, None if grad is None else grad.detach().clone())
            for p in (*self.parameters.values(), *(p for p, _ in self.others))
            for grad in (_gradient(p),)
        ]
        self.optimizers = [_Kept(optimizer) for optimizer in scene.optimizers]
        self.schedules = [(each, dict(vars(each))) for each in _schedules(scene.optimizers)]

    def restore(self) -> None:
        with torch.no_grad():
            for state in self.modules:
                state.restore()
            for name, p in self.parameters.items():  # fused steps count no version, by which the modules would know
                p.copy_(self.values[name])
            for p, value in self.others:
                p.copy_(value)
            for p, gradient, copy in self.gradients:
                if gradient is not None and copy is not None:
                    if is_overwritten(gradient):
                        gradient = copy.clone()
                    else:
                        gradient.copy_(copy)
                p.grad = gradient
            for kept in self.optimizers:
                kept.restore()
        for schedule, space in self.schedules:
            vars(schedule).clear()
            vars(schedule).update(space)


def _gradient(parameter: Tensor) -> Tensor | None:
    """Its gradient. None too where that is one of a CUDA graph which has run since: nothing can read that."""
    return None if parameter.grad is None or is_overwritten(parameter.grad) else parameter.grad


def _schedules(optimizers: Sequence[Optimizer]) -> list[LRScheduler]:
    """Those of learning rates, which nothing that a program calls leads to: an optimizer does not know its own."""
    mine = {id(optimizer) for optimizer in optimizers}
    found = (each for each in gc.get_objects() if issubclass(type(each), LRScheduler))
    return [each for each in found if id(vars(each).get("optimizer")) in mine]


class _Kept:
    """An optimizer's groups and states."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.groups = [dict(group) for group in optimizer.param_groups]
        self.state = {p: dict(self._values(optimizer.state[p])) for p in list(optimizer.state)}

    @staticmethod
    def _values(state: Any) -> Iterator[tuple[Any, tuple[Any, Tensor | None]]]:
        for name, value in state.items():
            yield name, (value, value.detach().clone() if isinstance(value, Tensor) else None)

    def restore(self) -> None:
        for group, was in zip(self.optimizer.param_groups, self.groups, strict=True):
            group.clear()
            group.update(was)
        for p in list(self.optimizer.state):
            if p not in self.state:
                del self.optimizer.state[p]
        for p, values in self.state.items():
            state = self.optimizer.state[p]
            state.clear()
            for name, (value, copy) in values.items():
                if copy is not None:
                    value.copy_(copy)
                state[name] = value
