"""Advice: gradients that are filled with zeros before a backward, though None would do.

``zero_grad(set_to_none=False)`` writes zeros over all gradients, and the backward reads them again to add its own:
three passes over memory that need not be touched. If a gradient is None, the backward stores its result directly.

It is advice and never applied. Whoever writes ``set_to_none=False`` may hold the gradients (views of one flat buffer, a
list made once), read them before the backward (a norm, a sum, a copy of the model), or want weight decay on parameters
that no backward reaches. None of that can be seen from outside: reading a gradient is no call.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kernelworks.diagnose.optimization import PROGRAM, Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes
from kernelworks.diagnose.optimizations.loaded_input import line_that_asks

__all__ = ["OPTIMIZATION", "Zeroing", "zeroings"]

KINDS: tuple[type, ...] = (Optimizer, nn.Module)  # the classes whose zero_grad is observed
LEAST = 0.01  # of the wall clock: zeros that take less give no advice
MOST_BYTES = 256 << 20  # of gradients that are copied for the measurement
TURNS = 7
CODE = "optimizer.zero_grad()  # without set_to_none=False"
WITHOUT = (
    "leave set_to_none=False out, if nothing holds or reads a gradient before the backward, and no parameter needs "
    "weight decay that no backward reaches"
)
Looks = tuple[torch.Size, torch.dtype, torch.device]
SyncWrapper = Callable[[Callable[[], Any]], Callable[[], Any]]  # of a function one that is over when the device is done


@dataclass
class Zeroing:
    """The gradients that a run fills with zeros at one line."""

    source: str
    gradients: list[Looks] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(shape.numel() * dtype.itemsize for shape, dtype, _ in self.gradients)


def zeroings(run: Callable[[], Any]) -> list[Zeroing]:
    """Each zeroing in a run, by the line that asks for it."""
    found: dict[str, Zeroing] = {}

    def note(parameters: Iterator[Tensor]) -> None:
        line = line_that_asks()
        gradients = [p.grad for p in parameters if p.grad is not None and p.grad.layout is torch.strided]
        if gradients:
            found.setdefault(line, Zeroing(line)).gradients += [(g.shape, g.dtype, g.device) for g in gradients]

    with contextlib.ExitStack() as stack:
        for kind in KINDS:
            stack.enter_context(_noted(kind, note))
        run()
    return list(found.values())


@contextlib.contextmanager
def _noted(kind: Any, note: Callable[[Iterator[Tensor]], None]) -> Iterator[None]:
    """Calls ``note`` with the parameters before each call that asks for zeros; the call is otherwise unchanged."""
    kept = kind.__dict__["zero_grad"]

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if not set_to_none and not torch.compiler.is_compiling():
            groups = self.param_groups if isinstance(self, Optimizer) else [{"params": self.parameters()}]
            note(p for group in groups for p in group["params"])
        kept(self, set_to_none)

    kind.zero_grad = zero_grad
    try:
        yield
    finally:
        kind.zero_grad = kept


def seconds_of(gradients: Sequence[Looks], with_sync: SyncWrapper) -> float:
    """Seconds to fill such gradients with zeros and to add to them, measured on copies."""
    nbytes = sum(shape.numel() * dtype.itemsize for shape, dtype, _ in gradients)
    some = gradients[:: max(1, -(-2 * nbytes // MOST_BYTES))]
    held, made = ([torch.ones(s, dtype=dtype, device=at) for s, dtype, at in some] for _ in range(2))

    def zeros() -> None:
        torch._foreach_zero_(held)
        for gradient, new in zip(held, made, strict=True):
            gradient.add_(new)

    timed, took = with_sync(zeros), list[float]()
    with torch.no_grad():
        timed()
        for _ in range(TURNS):
            begin = time.perf_counter()
            timed()
            took.append(time.perf_counter() - begin)
    return statistics.median(took) * nbytes / max(1, sum(g.nbytes for g in held))


class _Optimization:
    name = "zeroed gradients"
    takes = Takes(("program", "process"))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        """The lines at which a run fills gradients with zeros."""
        program, forecaster = scene.program, scene.forecaster
        if not scene.backward or program is None or forecaster is None:
            return
        for each in scene.keep("gradients filled with zeros", lambda: zeroings(program.run)):
            seconds = seconds_of(each.gradients, forecaster.device.with_sync)
            if seconds >= LEAST * scene.wall:
                takes = f"{seconds * 1e3:.3g} of {scene.wall * 1e3:.3g} ms a run, measured on copies"
                advice = f"{each.source}: filling gradients with zeros, and adding to them, takes {takes}: {WITHOUT}"
                yield Candidate(self.name, PROGRAM, f"no zeros at {each.source}", code=CODE, advice=advice)

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        return Promise(None)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        raise Impossible(candidate.advice or WITHOUT)


OPTIMIZATION = _Optimization()
