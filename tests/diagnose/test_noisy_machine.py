"""One rule for a machine that others use: ambiguous in the first line and exit code 3, or rough and marked so."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from printed import printed
from torch import Tensor, nn
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.diagnose import diagnose, most_wait_s
from kernelworks.diagnose.account.account import USEFUL, account, time_breakdown
from kernelworks.diagnose.account.hotspots import find_hotspots
from kernelworks.diagnose.account.on_cpu import PARTS, PREEMPTION, Cpu
from kernelworks.diagnose.forecast.races import Races
from kernelworks.diagnose.record import make_diagnosis
from kernelworks.diagnose.sentence import RoughFigures, _times, clauses
from kernelworks.measure.clock import noise
from kernelworks.measure.clock.noise import CpuTimes, Noise, Quiet, SampledWindows, noise_between, sample_windows
from kernelworks.measure.peaks import survey
from kernelworks.profile.on_cpu import _noise, fit_timeline
from kernelworks.profile.overhead import Floors
from kernelworks.profile.trace import Call, Place, Trace
from kernelworks.records import Diagnosis, Peaks, from_json, to_json
from kernelworks.report import diagnose as shown
from kernelworks.report import page
from kernelworks.report.next_steps import next_steps
from kernelworks.report.terminal import Notice

FLOORS = Floors(event=0.0, gap=0.5e-6, span=0.4e-6, fault=1e-6, free=0.5e-6)
MS = 1_000_000  # ns


@pytest.fixture(scope="session")
def machine(ceilings: Peaks) -> Peaks:
    return dataclasses.replace(ceilings, cache_bytes={"L3": 32 << 20})


# ---------------------------------------------------------------- the rule

# what was read after one second on two cores: busy, own, delay (seconds) -> share of others, taken, loud
READINGS: dict[str, tuple[tuple[float, float, float], tuple[float, float, bool]]] = {
    "nobody else": ((1.0, 1.0, 0.0), (0.0, 0.0, False)),
    "a little": ((1.1, 1.0, 0.01), (0.05, 0.01, False)),
    "a neighbour on the other core": ((2.0, 1.0, 0.0), (0.5, 0.0, True)),
    "a neighbour who keeps us off": ((2.0, 1.2, 0.4), (0.4, 0.4, True)),
    "short waits, hardly seen in the cores": ((1.15, 1.0, 0.08), (0.075, 0.08, True)),
    "more threads of ours than cores": ((2.0, 2.0, 2.0), (0.0, 0.0, False)),
    "ours and theirs": ((2.0, 1.9, 2.0), (0.05, 0.1, True)),
}


@pytest.mark.parametrize("name", READINGS)
def test_the_rule(name: str) -> None:
    (busy, own, delay), (share, taken, loud) = READINGS[name]
    found = noise_between(
        CpuTimes(10.0, 5.0, 1.0, 2, {1: 3.0, 2: 1.0}),
        CpuTimes(11.0, 5.0 + busy, 1.0 + own, 2, {1: 3.0 + delay, 2: 1.0}),
    )
    slack = noise.TICKS * 0.01 * 2
    assert found.share == pytest.approx(share) and found.taken_s == pytest.approx(taken, abs=slack)
    assert found.loud == loud


def test_a_tick_in_a_short_window_is_no_neighbour() -> None:
    found = noise_between(CpuTimes(0.0, 0.0, 0.0, 2), CpuTimes(0.001, 0.01, 0.001, 2))
    assert not found.loud
    held = noise_between(CpuTimes(0.0, 0.0, 0.0, 2), CpuTimes(0.001, 0.01, 0.0005, 2, {7: 0.0004}))
    assert held.loud  # the delay is exact


class Reader:
    """Readings of two cores: in windows of the given shares others keep us off them for as long."""

    def __init__(self, *shares: float) -> None:
        self.shares: Iterator[float] = itertools.chain(shares, itertools.repeat(shares[-1]))
        self.busy = self.delay = 0.0
        self.open, self.last = False, time.monotonic()

    def __call__(self) -> CpuTimes:
        now = time.monotonic()
        if self.open:
            share = next(self.shares)
            self.busy += share * 2 * (now - self.last)
            self.delay += share * (now - self.last)
        self.open, self.last = not self.open, now
        return CpuTimes(now, self.busy, 0.0, 2, {1: self.delay})


@pytest.mark.parametrize(
    ("shares", "kept", "thrown", "loud"),
    [
        ((0.0,), 3, 0, False),
        ((0.5, 0.0, 0.6, 0.0, 0.0), 3, 2, False),
        ((0.5,), 9, 0, True),
        ((*(0.5,) * 8, 0.0), 1, 8, False),
    ],
)
def test_windows_are_sifted(
    shares: tuple[float, ...], kept: int, thrown: int, loud: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "cpu_times", Reader(*shares))
    found = sample_windows(lambda: time.sleep(0.001), 3)
    assert (len(found.windows), found.thrown, found.loud) == (kept, thrown, loud)
    assert len(found.samples) == kept and found.noise.loud == loud


def test_peaks_can_be_rough_too() -> None:
    watch = Quiet(window_s=0.0, patience=2, times=Reader(0.5), rough=True)
    assert watch.collect(lambda: time.sleep(0.3) or 7)[0] == 7
    assert watch.rough_windows == 1 and watch.share == pytest.approx(0.5, abs=0.05)


def test_a_rough_peak_says_so(ceilings: Peaks) -> None:
    from kernelworks.report import machine as tables

    assert "rough" not in printed(tables.peaks(ceilings, 120))
    assert "rough: other processes took 43%" in printed(
        tables.peaks(dataclasses.replace(ceilings, foreign_share=0.43), 120)
    )


# ---------------------------------------------------------------- stolen time is nobody's excess


def _timeline(beside: float) -> Any:
    """A product of 8 ms and Python of 2 ms beside a neighbour who takes ``beside`` seconds more."""
    call = Call(
        "aten::mm", 1 * MS, 9 * MS, shapes=[[512, 512], [512, 512]], strides=[[512, 1], [512, 1]],
        dtypes=[torch.float32, torch.float32], scalars=[None, None], place=Place("M", "m.py:1", 0, "M"),
    )  # fmt: skip
    trace = Trace(0, 10 * MS, [call], 1, 0, None)
    return fit_timeline(0.010 + beside, [trace], trace, FLOORS, taken=beside)


@pytest.mark.parametrize("beside", [0.001, 0.005, 0.03])
def test_what_others_took_has_its_own_part(beside: float, machine: Peaks) -> None:
    alone, busy = ((line, account(line, Cpu(machine, FLOORS, 2))) for line in (_timeline(0.0), _timeline(beside)))
    before, after = (time_breakdown(groups, line.wall, PARTS) for line, groups in (alone, busy))
    assert list(after) == list(PARTS) and math.isclose(sum(after.values()), 0.010 + beside)
    assert after[PREEMPTION] == pytest.approx(beside)
    assert {name: value for name, value in after.items() if name != PREEMPTION} == pytest.approx(
        {name: value for name, value in before.items() if name != PREEMPTION}
    )


@pytest.mark.parametrize("beside", [0.001, 0.03])
def test_the_useful_share_is_the_same_beside_a_neighbour(beside: float, machine: Peaks) -> None:
    shares = []
    for taken in (0.0, beside):
        line = _timeline(taken)
        record = make_diagnosis("p", line, Cpu(machine, FLOORS, 2))
        useful = record.time_breakdown[USEFUL] / (record.wall_s - record.time_breakdown[PREEMPTION])
        shares.append(useful)
        assert f"runs at {100 * useful:.0f}% of" in record.sentence or taken < 0.1 * line.wall
    assert shares[0] == pytest.approx(shares[1])


# ---------------------------------------------------------------- a diagnosis


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(20):
            x = self.norm(self.up(x))
        return x


# What they used of the cores is said too where a run takes so long here that ticks of 10 ms tell.
OTHERS = r"other processes (used [1-4]?\d% of the cores and )?kept this program off the cores for 43% of its time"


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "cpu_times", Reader(0.43))


def _diagnosed(machine: Peaks, **more: Any) -> Diagnosis:
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(64, 64)
    with torch.no_grad():
        return diagnose(model, x, peaks=machine, budget_s=0.3, program="p", **more)


def test_a_noisy_machine_is_ambiguous_in_the_first_line(noisy: None, machine: Peaks) -> None:
    found = _diagnosed(machine, fix=True)
    assert re.match(f"ambiguous: {OTHERS}", found.sentence) and not found.rough
    assert "43%" in found.ambiguous and "--rough" in found.sentence
    assert found.fix is None
    assert all(r.low_s == r.high_s == r.allows_s == 0.0 and r.achieved is None for r in found.hotspots)
    assert from_json(Diagnosis, to_json(found)) == found
    text = printed(shown.diagnosis(found, 120))
    assert "RESULT  Ambiguous: other processes" in text and "recoverable" not in found.sentence
    assert "--rough" in text.partition("WHERE")[0]
    told = next(r for r in found.hotspots if r.flop)  # calls, times and lines need no quiet machine
    assert told.calls and told.seconds > 0 and told.source.split("/")[-1] in text
    assert "Ambiguous: other processes" in page.diagnosis(found) and told.source in page.diagnosis(found)


@pytest.mark.parametrize("rough", [False, True])
def test_contention_is_said_after_the_first_run(rough: bool, noisy: None, machine: Peaks) -> None:
    """Before anything else is measured, with what it means and for how long it may be waited."""
    lines: list[str] = []
    _diagnosed(machine, progress=lines.append, rough=rough)
    said = next(i for i, line in enumerate(lines) if isinstance(line, Notice))
    assert re.match(r"Other processes (use|keep this program off) .*the cores", lines[said])
    assert re.search(r"[1-9]\d?%", lines[said])
    assert ("rough, and marked" if rough else f"{most_wait_s(0.3):.0f} s at the most") in lines[said]
    assert rough or "--rough" in lines[said]
    assert not any(word in line for line in lines[:said] for word in ("timing", "measuring", "surveying"))
    assert sum(isinstance(line, Notice) for line in lines) == 1


def test_a_quiet_machine_is_told_nothing_of_others(machine: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "cpu_times", Reader(0.0))
    lines: list[str] = []
    _diagnosed(machine, progress=lines.append)
    assert not any("processes" in line for line in lines)


@pytest.mark.parametrize("shares", [(0.43,), (0.2, *(0.3, 0.5, 0.4, 0.7) * 5), (0.0, 0.95)])
def test_the_share_on_top_is_the_share_in_the_breakdown(
    shares: tuple[float, ...], machine: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "cpu_times", Reader(*shares))
    found = _diagnosed(machine)
    said = re.search(r"off the cores for (\d+)% of its time", found.sentence)
    assert said is not None
    assert 100 * found.time_breakdown[PREEMPTION] / found.wall_s == pytest.approx(float(said[1]), abs=0.51)


def test_noise_under_the_profiler_alone_says_so(machine: Peaks) -> None:
    calm, busy = ((Noise(0.0, 0.0, 1.0),), False), ((Noise(0.4, 0.4, 1.0),), True)
    (plain, profiled) = (SampledWindows(((0.0,),), noises, 0, loud) for noises, loud in (calm, busy))
    assert str(_noise(plain, profiled)).endswith("of its time while every op was timed")
    assert _noise(profiled, plain) == profiled.noise == _noise(profiled, profiled)


def test_a_refused_diagnosis_names_rough_first_and_keeps_what_was_asked_for(noisy: None, machine: Peaks) -> None:
    found = dataclasses.replace(_diagnosed(machine, fix=True), command=("p.py", "--", "-n", "3"), unfixed=True)
    now, later = next_steps(found)
    assert now.command == ("kernelworks", "diagnose", "p.py", "--rough", "--fix", "--", "-n", "3")
    assert later.command == ("kernelworks", "diagnose", "p.py", "--fix", "--", "-n", "3")
    plain = dataclasses.replace(found, unfixed=False)
    assert [step.command[3:-3] for step in next_steps(plain)] == [("--rough",), ()]


def test_noisy_windows_take_no_longer_than_may_be_waited() -> None:
    """However many figures there are to measure, and whatever each alone may wait."""
    watch = Quiet(window_s=0.05, patience=100, wait_s=0.3, times=Reader(0.5))
    for _ in range(3):
        with pytest.raises(noise.Ambiguous):
            watch.collect(lambda: time.sleep(0.01))
    assert len(watch.thrown_shares) <= 0.3 / 0.05 + 3
    assert survey.quiet_windows(brief=True).wait_left_s == survey.BRIEF_WAIT_S


def test_rough_figures_are_marked_before_them_all(noisy: None, machine: Peaks) -> None:
    found = _diagnosed(machine, rough=True)
    assert re.match(f"rough, since {OTHERS}", found.sentence) and found.rough
    assert not found.ambiguous and any(
        words in found.sentence for words in ("% to ", "under ", "disturbed too much to tell")
    )
    assert found.time_breakdown[PREEMPTION] > 0.3 * found.wall_s
    head, _, rest = printed(shown.diagnosis(found, 140)).partition("RESULT")
    assert re.search(f"Rough figures: {OTHERS}", head) and "43%" in head  # once, for all
    assert "rough" not in rest.partition("NEXT")[0].lower()
    assert '<p class="warning">Rough: ' in page.diagnosis(found)


@pytest.mark.parametrize(
    ("percent", "shortest", "longest", "says"),
    [
        (40.0, 0.9, 1.2, "27% to 60%"),
        (0.4, 0.9, 1.2, "under 1%"),
        (1.0, 0.5, 2.0, "under 2%"),
        (30.0, 0.01, 9.0, ""),  # 3% to 100%
        (0.5, 0.001, 1.0, ""),  # under 100%
        (0.0, 0.001, 1.0, "under 1%"),
    ],
)
def test_an_interval_of_all_or_nothing_is_no_figure(percent: float, shortest: float, longest: float, says: str) -> None:
    assert RoughFigures(Noise(0.5, 0.0, 1.0), shortest, longest).percents(percent, 1.0) == says


def test_what_the_profiler_adds_has_no_absurd_figure() -> None:
    assert [_times(f) for f in (1812.35, 9.5, 0.2, 0.004)] == [
        "more than 10 times", "9.50 times", "0.20 times", "less than 0.1 times",
    ]  # fmt: skip


def test_rough_intervals_are_wider(machine: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    line, cpu = _timeline(0.0), Cpu(machine, FLOORS, 2)
    found, problems = find_hotspots(account(line, cpu), line.wall, Races(0.0, 2))
    found = tuple(dataclasses.replace(r, low_s=0.002, high_s=0.003) if r.op == "mm" else r for r in found)
    loud = dataclasses.replace(line, loud=True, noise=Noise(0.4, 0.004, 0.010), walls=(0.010, 0.02))
    monkeypatch.setattr(sys.modules["kernelworks.diagnose.record"], "find_hotspots", lambda *given: (found, problems))
    calm, rough = (make_diagnosis("p", t, cpu, rough=True) for t in (line, loud))
    narrow, wide = (next(r for r in record.hotspots if r.op == "mm") for record in (calm, rough))
    assert wide.low_s < narrow.low_s < narrow.high_s < wide.high_s
    assert not calm.rough and "rough" not in calm.sentence  # a quiet machine has nothing to mark
    assert rough.rough


@pytest.mark.parametrize("argument", ["", "--rough"])
def test_the_command_line_exits_with_3_without_figures(
    argument: str, noisy: None, machine: Peaks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.modules["kernelworks.diagnose"], "measured_peaks", lambda **more: machine)
    monkeypatch.setattr(sys.modules["kernelworks.diagnose"], "BUDGET_S", 0.3)
    program = tmp_path / "program.py"
    program.write_text("import torch\n\ndef step():\n    x = torch.ones(64, 64)\n    return (x @ x).sum()\n")
    asked = ["diagnose", f"{program}:step", "--json", *([argument] if argument else [])]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == (0 if argument else 3), result.output
    first = json.loads(result.stdout)["sentence"]
    assert first.startswith("rough, since" if argument else "ambiguous: ")


# ---------------------------------------------------------------- rounds


def test_one_quiet_window_is_enough_once_the_time_for_more_is_over() -> None:
    """Of very many calls a run under the profiler takes many times a plain one: its rounds keep to the budget too."""
    taken: list[int] = []

    def slow() -> int:
        time.sleep(0.02)
        taken.append(len(taken))
        return len(taken)

    assert len(noise.sample_windows(slow, 3, enough_s=0.01).windows) == 1 and len(taken) == 1
    assert len(noise.sample_windows(slow, 3, enough_s=9.0).windows) == 3


@pytest.mark.parametrize("away", [0.94, 0.96, 1.0])
def test_of_a_program_that_hardly_had_the_cores_nothing_is_said(away: float) -> None:
    wall = 0.012
    parts = dict.fromkeys(PARTS, 0.0) | {PREEMPTION: away * wall, USEFUL: (1 - away) * wall}
    said = clauses(parts, (), wall)
    nothing = f"other processes kept this program off the cores for {away:.0%} of its time: what it does is unknown"
    assert (said == (nothing,)) is (away > 0.95), said
