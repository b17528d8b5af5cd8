"""Benchmarks a change on the modules that it changes, with inputs that were kept, before the program is run with it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from kernelworks.contract.leaves import leaves, output_tensors
from kernelworks.diagnose.optimization import Change, CombinedChange, Promise, Scene
from kernelworks.diagnose.sites.functions import Function
from kernelworks.diagnose.sites.modules import Roots, Sample
from kernelworks.diagnose.snapshot import State, duplicate
from kernelworks.diagnose.verify.answers import in_place_of
from kernelworks.measure.clock.noise import sample_windows
from kernelworks.measure.clock.work_beside import untimed_section
from kernelworks.profile.budget import Budget

__all__ = ["ModuleRace", "call_once", "draws", "race", "race_promise", "run_s", "share_saved"]

ROUNDS = 25  # at the most, of one sample; each in both states, counting those without disturbance
ENOUGH_S, PATIENCE_S, WINDOW_S = 0.5, 2.0, 0.05  # for one sample; if it is loud; the unit that is thrown away
FEW = 5  # rounds that a long call gets too, within PATIENCE_S: one of them says little
LONG_S, MOST_IN_A_ROW = 2e-3, 64  # one measurement takes so long, in at most so many calls
FIRST = 3  # calls that are not counted: they may compile once more, or capture a graph
RUNS = 3  # of the program, to measure it in the same minute


def share_saved(scene: Scene, change: Change, roots: Roots | None = None) -> tuple[float, float]:
    """The share of a run that a change saves of the program as it is by now, from a race of its modules (of ``roots``
    only, if given) on the inputs that were kept; and the seconds that the first calls took beyond the others."""
    assert scene.forecaster is not None
    with_sync = scene.forecaster.device.with_sync
    variants = scene.in_place(), CombinedChange((*scene.taken, change))
    found = race(roots or scene.roots, *variants, with_sync, backward=scene.backward, budget=scene.budget)
    return found.saved_s / max(run_s(scene), found.before_s), found.first_s  # modules take no more than their program


def run_s(scene: Scene) -> float:
    """Seconds of a run of the program as it is by now."""
    assert scene.program is not None
    walls = list[float]()
    for _ in range(RUNS):
        if walls and scene.budget is not None and scene.budget.seconds_left < scene.wall:
            break
        with scene.in_place() as changes:
            walls.append(scene.program.median(1, alone=not changes.changes))
    return statistics.median(walls)


def race_promise(scene: Scene, change: Change, roots: Roots | None = None, *, cost_bytes: int = 0) -> Promise:
    """The promise of such a race, for a change that keeps so much memory."""
    if scene.budget is not None:
        scene.budget.ask("benchmarking modules on their inputs")
    saves, first_s = share_saved(scene, change, roots)
    return Promise(saves, first_s, cost_bytes, how="benchmarked on the inputs that it is called with")


@dataclass(frozen=True)
class ModuleRace:
    """Seconds that the outermost modules take of a run of the program, forward and backward, as they are and changed;
    and what the first calls of the changed ones took beyond that: compilers."""

    before_s: float
    after_s: float
    first_s: float

    @property
    def saved_s(self) -> float:
        return self.before_s - self.after_s


def draws(scene: Scene) -> bool:
    """Whether a module draws random numbers (dropout): a compiler draws others, as good as the original's."""
    return scene.keep("draws random numbers", lambda: any(_draws(sample) for sample in scene.roots.samples))


def _draws(sample: Sample) -> bool:
    state, (args, kwargs) = State(sample.module), duplicate((sample.args, sample.kwargs))
    try:
        with in_place_of(sample):
            before = _numbers()
            sample.module(*args, **kwargs)
            return any(not torch.equal(was, now) for was, now in zip(before, _numbers(), strict=True))
    finally:
        state.restore()


def _numbers() -> list[torch.Tensor]:
    """The states of torch's generators."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def race(
    roots: Roots,
    was: AbstractContextManager[Any],
    changed: AbstractContextManager[Any],
    with_sync: Callable[[Callable[[], Any]], Callable[[], Any]],
    *,
    backward: bool,
    budget: Budget | None = None,
) -> ModuleRace:
    """Every kept call of the modules in turns, as it ``was`` and ``changed``, and for the calls of which there is no
    copy what those took that are like them. ``with_sync`` makes of a function one that is over when the device is done;
    with ``backward`` calls of which gradients are wanted are run backwards too. Modules are as they were afterwards.
    Raises what they raise when they are changed, and BudgetExceeded if the ``budget`` is over before the last call."""
    before = after = first = 0.0
    for module in roots.modules:
        samples = [s for s in roots.samples if s.module is module]
        if not samples:
            continue
        state = State(module)
        for sample in samples:
            ask = functools.partial(budget.ask, "benchmarking modules on their inputs") if budget else _nothing
            seconds, now, took = _race_sample(sample, state, (was, changed), with_sync, ask, backward=backward)
            before, after = before + seconds * sample.stands, after + now * sample.stands
            first += max(0.0, took - now)
    return ModuleRace(before, after, first)


def call_once(
    roots: Roots, changed: AbstractContextManager[Any], with_sync: Callable[[Callable[[], Any]], Callable[[], Any]],
    *, backward: bool,
) -> None:  # fmt: skip
    """Every kept call once, changed: what a race calls first, for which a compiler compiles."""
    for sample in roots.samples:
        _seconds(_step if backward else _call, sample, State(sample.module), changed, with_sync)


def _nothing() -> None:
    pass


def _race_sample(
    sample: Sample, state: State, variants: tuple[Any, Any], with_sync: Any, ask: Callable[[], None], *, backward: bool
) -> tuple[float, float, float]:
    """Seconds as it is, changed, and of the first call when it is changed."""
    step, first = _step if backward else _call, 0.0
    with untimed_section():
        for _ in range(FIRST):
            ask()
            last = _seconds(step, sample, state, variants[1], with_sync)
            first += last
    took = _seconds(step, sample, state, variants[0], with_sync)
    in_a_row, enough_s = min(MOST_IN_A_ROW, math.ceil(LONG_S / max(took, last))), max(ENOUGH_S, FEW * 2 * took)
    turns = itertools.count()

    def turn() -> tuple[float, float]:
        ask()
        order = (0, 1) if next(turns) % 2 else (1, 0)
        took = {variant: _seconds(step, sample, state, variants[variant], with_sync, in_a_row) for variant in order}
        return took[0], took[1]

    found = sample_windows(
        turn, ROUNDS, tries=ROUNDS, window_s=WINDOW_S, deadline_s=PATIENCE_S, enough_s=min(PATIENCE_S, enough_s)
    )
    was, now = (statistics.median(pair[variant] for pair in found.samples) for variant in (0, 1))
    return was, now, first - (FIRST - 1) * now


def _seconds(
    step: Callable[..., None], sample: Sample, state: State, variant: Any, with_sync: Any, in_a_row: int = 1
) -> float:
    """Seconds of one step. Calls that are short are timed several ``in_a_row``, each on inputs of its own: a program
    that makes many of them finds the processor warm."""
    given = [duplicate((sample.args, sample.kwargs)) for _ in range(in_a_row)]

    def calls() -> None:
        for args, kwargs in given:
            step(sample, args, kwargs)

    with contextlib.ExitStack() as stack:
        stack.callback(state.restore)
        stack.enter_context(in_place_of(sample))
        stack.enter_context(variant)
        run = with_sync(calls)
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) / in_a_row


def _call(sample: Sample, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    sample.module(*args, **kwargs)


def _step(sample: Sample, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """One call, and its backward where gradients are wanted of the module."""
    output = sample.module(*args, **kwargs)
    if not sample.training:
        return
    outputs = output_tensors(output)
    loss = outputs.get("['loss']")
    if loss is not None and loss.requires_grad and loss.numel() == 1:
        outputs = {"loss": loss}
    wanted = [t for t in outputs.values() if t.requires_grad and t.is_floating_point() and t.numel()]
    parameters = [p for p in sample.module.parameters() if p.requires_grad]
    held = sample.module.attributes(args) if isinstance(sample.module, Function) else {}
    given = [t for t in (*leaves((args, kwargs)).values(), *held.values()) if t.requires_grad and t.is_leaf]
    if wanted and (parameters or given):
        torch.autograd.grad(wanted, [*parameters, *given], [torch.ones_like(t) for t in wanted], allow_unused=True)
