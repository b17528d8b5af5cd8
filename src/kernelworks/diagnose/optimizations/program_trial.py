"""Tries a change on the program as a whole: runs it with the change and without, and compares what it returns."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelworks.contract.leaves import output_tensors
from kernelworks.diagnose.optimization import Change, CombinedChange, Rejected, Scene
from kernelworks.diagnose.snapshot import fixed_seed
from kernelworks.diagnose.verify.precision import PerturbedRounding
from kernelworks.measure.clock.work_beside import untimed_section

__all__ = ["Turns", "check_numbers", "in_turns"]

TURNS = 3
BURST_S, MOST_RUNS = (
    0.1,
    5,
)  # of one variant in a turn: the run after a change of malloc's settings has other page faults than the next
LOST_FACTOR = 1.5  # times as long: what takes that in its first turn has lost, and is not run again
DRAWS = 3  # runs with every result moved by a rounding or two


class Turns(NamedTuple):
    """Seconds of a run as the program is by now, of a changed run, and of the first changed run beyond that."""

    before_s: float
    after_s: float
    first_s: float

    @property
    def saves(self) -> float:
        return 1 - self.after_s / self.before_s


def in_turns(scene: Scene, change: Change) -> Turns:
    """The program in turns, as it is by now and changed, after a changed run."""
    variants = scene.in_place(), CombinedChange((*scene.taken, change))
    _ask(scene, 3)
    with untimed_section():
        first = _seconds(scene, variants[1])
    times: tuple[list[float], list[float]] = ([], [])
    was = now = 0.0
    for turn in range(TURNS):
        if turn and scene.budget is not None and scene.budget.seconds_left < was + now:
            break
        for variant in (0, 1) if turn % 2 else (1, 0):
            _ask(scene, 1)
            times[variant].append(_seconds(scene, variants[variant]))
        was, now = (statistics.median(t) for t in times)
        if now > LOST_FACTOR * was:
            break
    return Turns(was, now, max(0.0, first - now))


def _seconds(scene: Scene, variant: CombinedChange) -> float:
    assert scene.program is not None
    with variant:
        runs = max(1, min(MOST_RUNS, int(BURST_S / max(scene.wall, 1e-9))))
        return scene.program.median(runs, alone=not variant.changes)


def _ask(scene: Scene, runs: int) -> None:
    if scene.budget is not None:
        scene.budget.ask("running the program with it", runs * scene.wall)


def check_numbers(scene: Scene, change: Change) -> None:
    """Raises Rejected if the changed program returns other integers (tokens) before the first place at which the
    program's own rounding may change them."""
    plain, changed = (
        _numbers(scene, variant) for variant in (scene.in_place(), CombinedChange((*scene.taken, change)))
    )
    if not plain or plain.keys() != changed.keys():
        raise Rejected("its outputs cannot be compared: it returns no tokens")
    if all(_same(plain[name], changed[name]) for name in plain):
        return
    turned = {name: torch.zeros_like(value, dtype=torch.bool) for name, value in plain.items()}
    for seed in range(DRAWS):
        with PerturbedRounding(seed):
            draw = _numbers(scene, scene.in_place())
        for name, value in plain.items():
            other = draw.get(name)
            turned[name] |= value != other if other is not None and other.shape == value.shape else True
    for name, value in plain.items():
        other = changed[name]
        if other.shape != value.shape or bool(((value != other) & ~_from_then_on(turned[name])).any()):
            raise Rejected(f"its outputs differ by more than its own rounding explains{name and f' ({name})'}")


def _numbers(scene: Scene, variant: CombinedChange) -> dict[str, Tensor]:
    assert scene.program is not None
    _ask(scene, 1)
    with variant, fixed_seed():
        answer: Any = scene.program.run()
    return {n: t.cpu() for n, t in output_tensors(answer).items() if not t.is_floating_point() and not t.is_complex()}


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _from_then_on(turned: Tensor) -> Tensor:
    """Along the last dimension, all from the first one on: what is made of a token that turned may turn as well."""
    return turned.cummax(-1).values if turned.dim() else turned
