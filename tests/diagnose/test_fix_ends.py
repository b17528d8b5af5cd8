"""A fix ends within its budget, 30 s and three runs of the program, whatever in it is slow. The clock is a stand-in, which
a run, a module and each planted phase move on; the search is the real one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelworks.diagnose.fix import calibrate, supervisor
from kernelworks.diagnose.fix.search import Search
from kernelworks.diagnose.fix.supervisor import Progress
from kernelworks.diagnose.fix.time_limits import FREE_RUNS, SPARE_S
from kernelworks.diagnose.optimization import EVERYWHERE, Candidate, Change, Promise, Scene
from kernelworks.diagnose.optimizations import program_trial, trial
from kernelworks.profile.program import Program
from kernelworks.records import Fix
from kernelworks.records.fix import APPLIED


class Clock:
    """What time it is, and how long a run takes by now."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    made = Clock()
    for name in ("perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, made)
    return made


@dataclasses.dataclass
class Device:
    most_rounds: int = 25
    timeline: Any = None

    @property
    def device(self) -> Device:
        return self

    def with_sync(self, run: Any) -> Any:
        return run


class Slow(nn.Module):
    """Takes seconds of the stand-in's clock, as many times as the widest dtype and the modes make of it."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds, self.factor, self.wide = clock, seconds, 1.0, 1.0
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        wide = self.wide if x.dtype is torch.float64 else 1.0
        self.clock.now += self.seconds * self.factor * wide
        return x * self.weight


@dataclasses.dataclass
class Planted:
    """Slow in one phase, by so many seconds or so many times."""

    name: str
    clock: Clock
    predicts_s: float = 0.0
    applies_s: float = 0.0
    puts_s: float = 0.0
    factor: float = 0.5  # of the program's time
    races: bool = False
    runs: bool = False

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        for number in range(4):
            yield Candidate(self.name, EVERYWHERE, f"{self.name} {number}")

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        self.clock.now += self.predicts_s
        if self.races:
            return trial.race_promise(scene, self.apply(scene, candidate))
        if self.runs:
            return Promise(program_trial.in_turns(scene, self.apply(scene, candidate)).saves)
        return Promise(0.5)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        self.clock.now += self.applies_s
        modules = scene.roots.modules

        def put() -> Callable[[], None]:
            self.clock.now += self.puts_s
            for module in modules:
                module.factor *= self.factor  # type: ignore[operator]

            def back() -> None:
                for module in modules:
                    module.factor /= self.factor  # type: ignore[operator]

            return back

        return Change(put)


def ended(clock: Clock, wall: float, budget_s: float, monkeypatch: pytest.MonkeyPatch, **planted: Any) -> Fix:
    """The search over what is planted, which must end in its time."""
    many, wide, calibrates = planted.pop("many", 1), planted.pop("wide", 1.0), planted.pop("calibrates", False)
    if not calibrates:
        monkeypatch.setattr(calibrate, "holds_here", lambda one, outcomes: True)
    modules = [Slow(clock, wall / many) for _ in range(many)]
    for module in modules:
        module.wide = wide
    x = torch.randn(4)

    def program() -> list[Tensor]:
        with torch.no_grad():
            return [module(x) for module in modules]

    stand = Planted("planted", clock, **planted)
    walls, side = (wall, wall, wall), Device()
    search = Search(Program("p", program), walls, side, budget_s, lambda line: None, optimizations=[stand])  # type: ignore[arg-type]
    begun = clock.now
    found = search.fix()
    one_step = max(stand.predicts_s, stand.applies_s, stand.puts_s)  # no search can end within a step of its own process
    assert clock.now - begun <= budget_s + SPARE_S + FREE_RUNS * wall + one_step, f"{clock.now - begun:.0f} s"
    assert not found.refused
    return found


SLOW: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a long program": {"wall": 20.0},
    "a very long program": {"wall": 500.0},
    "predictions": {"predicts_s": 25.0},
    "putting in place": {"applies_s": 25.0},
    "each entering": {"puts_s": 9.0},
    "the changed program": {"factor": 60.0},
    "the changed program, raced": {"factor": 60.0, "races": True},
    "the changed program, run": {"factor": 60.0, "runs": True},
    "float64": {"wide": 300.0},
    "verifying many modules": {"many": 30, "wide": 100.0},
    "races of many modules": {"many": 30, "races": True, "wall": 10.0},
    "calibration": {"calibrates": True, "wall": 5.0},
}


@pytest.mark.parametrize("budget_s", [20.0, 120.0])
@pytest.mark.parametrize("name", SLOW)
def test_a_search_ends_in_its_time_whatever_is_slow(
    name: str, budget_s: float, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = {"wall": 1.0, **SLOW[name]}
    found = ended(clock, planted.pop("wall"), budget_s, monkeypatch, **planted)
    if name == "nothing":
        assert any(one.outcome == APPLIED for one in found.optimizations) and found.gain_s > 0
