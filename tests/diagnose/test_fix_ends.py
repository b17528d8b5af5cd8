"""A fix ends within its budget, 30 s and three runs of the program, whatever in it is slow.

The clock is a stand-in, which a run, a module and each planted phase move on. The search is the real one.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.diagnose.fix import calibrate
from kernelworks.diagnose.fix.outcome import fix_record
from kernelworks.diagnose.fix.search import Search
from kernelworks.diagnose.fix.supervisor import Progress
from kernelworks.diagnose.fix.time_limits import FREE_RUNS, SPARE_S
from kernelworks.diagnose.optimization import EVERYWHERE, Candidate, Change, Promise, Scene
from kernelworks.diagnose.optimizations import program_trial, trial
from kernelworks.diagnose.record import with_fix
from kernelworks.profile.program import Program
from kernelworks.records import Diagnosis, Fix
from kernelworks.records.fix import APPLIED, MODULES_MADE_ANEW, NOT_TRIED, TriedOptimization
from kernelworks.records.schema import read_record
from kernelworks.report.diagnose import outcome
from kernelworks.report.fix import result_lines
from kernelworks.report.next_steps import next_steps


class Clock:
    """What time it is. A module must not hold it: a comparison puts back what a module holds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


clocks: list[Clock] = []


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    made = Clock()
    clocks[:] = [made]
    for name in ("perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, made)
    return made


@pytest.fixture
def minilm() -> Diagnosis:
    path = Path(__file__).parents[1] / "report" / "records" / "minilm.json"
    found = read_record(path)
    assert isinstance(found, Diagnosis)
    return found


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

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.factor, self.wide = seconds, 1.0, 1.0
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        wide = self.wide if x.dtype is torch.float64 else 1.0
        clocks[0].now += self.seconds * self.factor * wide
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
    modules = [Slow(wall / many) for _ in range(many)]
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
    # Within one step, or one run, nothing of the same process can end it.
    one_step = max(stand.predicts_s, stand.applies_s, stand.puts_s + stand.factor * wall, wide * wall)
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


def test_the_supervisors_end_is_set_once_and_what_another_worker_takes_is_its_start_alone(
    clock: Clock, minilm: Diagnosis
) -> None:
    progress = Progress()
    clock.now += 300.0  # peaks, a lock, a long first run: before the search
    progress.started_s = 8.0
    progress.note_observed(dataclasses.replace(minilm, wall_s=2.0, fix=None), 120.0)
    assert progress.seconds_left == 120.0 + SPARE_S + FREE_RUNS * 2.0
    assert progress.another_takes_s < 30.0
    clock.now += 100.0
    progress.note_observed(minilm, 120.0)  # of a later worker
    assert progress.seconds_left == 20.0 + SPARE_S + FREE_RUNS * 2.0
    whole = progress.with_seconds(dataclasses.replace(minilm, fix=fix_record(1.0, 1.0, budget_s=120.0)))
    assert whole.fix is not None and (whole.fix.diagnosis_s, whole.fix.search_s) == (300.0, 100.0)
    assert "The search took 100 s (budget 120 s), after a diagnosis of 300 s." in result_lines(whole.fix)


def test_a_budget_that_is_over_is_no_refusal_and_promises_nothing(minilm: Diagnosis) -> None:
    """The exit code is 0, and no word says that nothing is to be had."""
    assert minilm.fix is not None
    plain = dataclasses.replace(minilm, fix=None, rough=False)
    cut = with_fix(plain, fix_record(1.0, 1.0, ended="the budget was over", budget_s=60.0, needs_s=120.0))
    assert cut.fix is not None and not cut.fix.refused and outcome(cut) == ""
    shown = " ".join((cut.sentence, *cut.clauses, *result_lines(cut.fix)))
    assert "the budget was over" in shown
    early = dataclasses.replace(cut.fix, search_s=17.0)  # of 60: the next one would have taken longer than was left
    assert not any("was over" in line for line in result_lines(early)) and "too short" in result_lines(early)[0]
    assert "predicted to gain" not in shown and "no optimization gains" not in shown
    whole = with_fix(plain, fix_record(1.0, 1.0))
    assert "no optimization gains here" in whole.sentence


def test_a_next_command_keeps_the_options_that_the_user_gave(minilm: Diagnosis) -> None:
    given = (
        "--fix", "--budget", "60", "--allow", "tf32", "--out", "my folder", "--perfetto", "t.json", "--counters",
        "--rough", "--verbose",
    )  # fmt: skip
    record = dataclasses.replace(
        minilm, options=given, command=("-m", "my.program", "--", "--out", "theirs"), rough=True, ambiguous="",
        fix=fix_record(1.0, 1.0, ended="the budget was over", budget_s=60.0, needs_s=120.0, allowed=("tf32",)),
    )  # fmt: skip
    (step, *_) = [each for each in next_steps(record) if "--budget" in each.command]
    words = step.command
    at = words.index("--")
    assert words[at:] == ("--", "--out", "theirs") and words[:4] == ("kernelworks", "diagnose", "-m", "my.program")
    ours = words[4:at]
    for name, value in (("--budget", "120"), ("--allow", "tf32"), ("--out", "my folder"), ("--perfetto", "t.json")):
        assert ours.count(name) == 1 and ours[ours.index(name) + 1] == value
    assert {"--fix", "--counters", "--verbose", "--rough"} <= set(ours)
    busy = dataclasses.replace(record, ambiguous="other processes used 50% of the cores", fix=None, rough=False)
    rough, quiet = next_steps(busy)
    assert "--rough" not in quiet.command and "--rough" in rough.command
    assert all({"--fix", "--budget", "60", "my folder"} <= set(each.command) for each in (quiet, rough))


def test_a_model_that_each_run_makes_anew_is_a_step_for_its_author(minilm: Diagnosis) -> None:
    left = tuple(
        TriedOptimization(name, "", "", "", NOT_TRIED, MODULES_MADE_ANEW) for name in ("channels_last", "torch.compile")
    )
    fix = fix_record(1.0, 1.0, ended="", optimizations=left)
    script = dataclasses.replace(minilm, program="train.py --epochs 1", command=("train.py",), ambiguous="", fix=fix)
    (step,) = [each for each in next_steps(script) if "tried then" in each.why]
    assert "diagnose train.py:FUNCTION: channels_last, torch.compile can be tried then" in step.why
    for program, command in (("train.py:main", ("train.py:main",)), ("main", ())):
        function = dataclasses.replace(script, program=program, command=command)
        assert any("outside the function" in each.why for each in next_steps(function))
    kept = dataclasses.replace(fix, optimizations=(dataclasses.replace(left[0], why="the budget was over"),))
    assert not any("tried then" in each.why for each in next_steps(dataclasses.replace(script, fix=kept)))


def test_a_fix_is_offered_for_what_it_can_tell(minilm: Diagnosis) -> None:
    """Where nothing is predicted to gain, the step does not read as if it were."""
    found = dataclasses.replace(minilm, fix=None, ambiguous="", interrupted=False, unfixed=False)
    some, *others = found.hotspots
    gains = dataclasses.replace(some, high_s=0.1 * found.wall_s)
    none = [dataclasses.replace(each, low_s=0.0, high_s=0.0) for each in (some, *others)]
    for hotspots, said in (((gains, *none[1:]), "tries optimizations:"), (tuple(none), "what only a trial can tell")):
        assert said in next_steps(dataclasses.replace(found, hotspots=hotspots))[0].why


def test_the_command_notes_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minilm: Diagnosis) -> None:
    seen = dataclasses.replace(minilm, command=("p.py",), options=())
    monkeypatch.setattr(importlib.import_module("kernelworks.diagnose"), "diagnose_script", lambda *args, **more: seen)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.py").touch()
    result = CliRunner().invoke(
        app, ["diagnose", "p.py", "--fix", "--budget", "30", "--out", str(tmp_path), "--rough", "--allow", "tf32"]
    )
    assert result.exit_code == 0, result.output
    record = tmp_path / "p.json"
    assert json.loads(record.read_text())["options"] == [
        "--fix", "--budget", "30", "--allow", "tf32", "--out", str(tmp_path), "--rough",
    ]  # fmt: skip
