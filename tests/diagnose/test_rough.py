"""Rough figures: everywhere the same rule, wide, marked on every line, and none where runs lie too far apart."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from kernelworks import cli
from kernelworks.diagnose.sentence import RoughFigures, sentence
from kernelworks.dispatch.op import OPS
from kernelworks.measure.bench import bench
from kernelworks.measure.clock import noise as rule
from kernelworks.measure.clock.noise import Ambiguous, CpuTimes, Noise, Quiet
from kernelworks.measure.clock.race import race
from kernelworks.measure.peaks import cache, survey
from kernelworks.records import BenchResult, Diagnosis, Peaks
from kernelworks.records.climb import RungResult, RungTime
from kernelworks.report import bench as bench_report
from kernelworks.report import machine as machine_report
from kernelworks.report import page, terminal
from kernelworks.report.climb import terminal as climb_report
from kernelworks.report.climb import words as climb_words
from kernelworks.report.diagnose import outcome
from kernelworks.report.fix import fix as shown_fix


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, of which others use one and a half."""
    monkeypatch.setattr(rule, "cpu_times", read)
    monkeypatch.setattr(Quiet.__init__, "__kwdefaults__", Quiet.__init__.__kwdefaults__ | {"times": read})


def read() -> CpuTimes:
    now = time.monotonic()
    return CpuTimes(now, 1.5 * now + time.process_time(), time.process_time(), 2)


def text(shown: object) -> str:
    console = Console(width=160, no_color=True)
    with console.capture() as found:
        console.print(shown)
    return found.get()


# ---------------------------------------------------------------- bench


def test_a_race_on_a_busy_machine_is_refused_or_rough(busy: None) -> None:
    work = {"a": lambda i: time.sleep(1e-4 * (1 + i)), "b": lambda i: time.sleep(1e-4)}
    with pytest.raises(Ambiguous):
        race(work, 3, budget_s=0.01, quiet=Quiet(patience=2))
    found = race(work, 3, budget_s=0.01, quiet=Quiet(patience=40, rough=True))
    samples, timed = found.samples["a"], found.stats("a")
    assert found.taken == pytest.approx(0.75, abs=0.05)
    assert (timed.low, timed.high) == (min(samples), max(samples))


def test_bench_gives_rough_figures_where_they_are_asked_for(busy: None, ceilings: Peaks) -> None:
    case = OPS["gelu"].contract.bench_cases[0].name

    def made(**more: Any) -> list[BenchResult]:
        dtypes = (torch.float32,)
        return bench("gelu", [case], dtypes=dtypes, budget_s=0.01, known=ceilings, compile=False, **more)

    with pytest.raises(Ambiguous):
        made(quiet=lambda: Quiet(patience=1))
    for result in made(rough=True):
        assert result.rough.startswith("other processes used 7") and result.variants
        line = next(line for line in text(bench_report.benches([result])).splitlines() if case.split()[0] in line)
        assert "rough" in line and " to " in line and "±" not in line


# ---------------------------------------------------------------- climb


def rung(**changed: object) -> RungResult:
    timed = RungTime(
        threads=1, size={"M": 8}, median_s=1.0, low_s=0.5, high_s=2.0, samples=7, rate=10.0, peak=100.0,
        baselines={}, before=5.0, thrown=0, rough=True,
    )  # fmt: skip
    return RungResult(
        number=2, file="02_x.cpp", sha256="", title="x", target="avx2", hypothesis="", next="", predicted=2.0,
        status="verified", reason="", worst=0.5, times=(timed,), gain=None, loads={}, shares={}, bottleneck="",
        assembly=(),
        **changed,
    )  # fmt: skip


def test_a_rough_rung_has_a_wide_rate_and_no_verdict() -> None:
    found = rung()
    assert climb_report.line(found).plain.endswith("5.00 to 20.0 GFLOP/s rough at 1 thread")
    assert climb_words.verdict(found) == "" and climb_words.is_imprecise(found.times[0])


def test_every_verb_that_times_takes_rough() -> None:
    for verb in ("bench", "climb", "diagnose", "machine"):
        shown = CliRunner().invoke(cli.app, [verb, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
        assert "--rough" in shown, verb


# ---------------------------------------------------------------- peaks


def test_for_rough_figures_a_peak_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for rough figures is not to wait a minute before the program is looked at."""

    class Item:
        what, taken, best = "", 0, 0.0
        found = ()  # no two rounds agree

        def measure(self, quiet: Quiet) -> None:
            self.taken += 1

    counts = []
    for rough in (False, True):
        item = Item()
        assert survey._rounds([item], survey.quiet_windows(rough=rough), None) == item.taken  # type: ignore[list-item]
        counts.append(item.taken)
    assert counts == [survey.ROUNDS, 1]


def test_rough_peaks_serve_rough_figures_for_a_while(
    ceilings: Peaks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are measured once, not for every diagnosis; figures that are not rough never see them."""
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    measured: list[bool] = []
    here = dataclasses.replace(ceilings, fingerprint=survey.fingerprint())

    def measure(progress: object = None, *, quiet: Quiet | None = None) -> Peaks:
        measured.append(quiet is not None and quiet.rough)
        return here

    monkeypatch.setattr(cache, "measure", measure)
    cache.forget_peaks()
    for _ in range(2):
        assert cache.get_peaks(rough=True) == here
    assert measured == [True] and cache.cached_peaks() is None
    old = time.time() - cache.ROUGH_S - 1
    os.utime(cache._rough_path(), (old, old))
    cache.get_peaks(rough=True)
    assert measured == [True, True]
    cache.get_peaks()
    assert measured == [True, True, False] and cache.cached_peaks() == here
    cache.forget_peaks()


def test_one_round_serves_diagnoses_for_a_while_and_nothing_else(
    ceilings: Peaks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    measured: list[bool] = []
    here = dataclasses.replace(ceilings, fingerprint=survey.fingerprint())

    def measure(progress: object = None, *, brief: bool = False) -> Peaks:
        measured.append(brief)
        return here

    monkeypatch.setattr(cache, "measure", measure)
    cache.forget_peaks()
    for _ in range(2):
        assert cache.get_peaks(brief=True) == here
    assert measured == [True] and cache.cached_peaks() is None
    old = time.time() - cache.BRIEF_S - 1
    os.utime(cache._brief_path(), (old, old))
    cache.get_peaks(brief=True)
    cache.get_peaks()
    assert measured == [True, True, False] and cache.cached_peaks() == here
    cache.get_peaks(brief=True)
    assert len(measured) == 3
    cache.forget_peaks()


# ---------------------------------------------------------------- diagnoses


@pytest.mark.parametrize(("apart", "predicts"), [(1.5, True), (4.0, False)])
def test_nothing_is_predicted_of_runs_that_lie_far_apart(apart: float, predicts: bool, diagnosis: Diagnosis) -> None:
    rough = RoughFigures(Noise(0.5, 0.1, 0.2), diagnosis.wall_s, apart * diagnosis.wall_s)
    said = sentence(diagnosis.time_breakdown, diagnosis.hotspots, diagnosis.wall_s, None, rough)
    assert ("recoverable" in said) is predicts
    assert ("so nothing is predicted" in said) is not predicts


def test_a_fix_that_alone_was_loud_is_rough_where_that_was_asked_for(diagnosis: Diagnosis) -> None:
    assert diagnosis.fix is not None
    loud = dataclasses.replace(diagnosis.fix, ambiguous="other processes used 50% of the cores")
    assert outcome(dataclasses.replace(diagnosis, fix=loud)) == "ambiguous"
    asked = dataclasses.replace(loud, rough=True)
    assert outcome(dataclasses.replace(diagnosis, fix=asked)) == ""
    assert text(shown_fix(asked)).startswith("Rough figures: the fix was measured while other processes used 50%")


def test_a_fix_of_which_nothing_was_predicted_says_so(diagnosis: Diagnosis) -> None:
    assert diagnosis.fix is not None
    said = text(shown_fix(dataclasses.replace(diagnosis.fix, predicted_gain_s=None)))
    assert said.count("predicted") == 1 and "got (nothing was predicted)" in said


@pytest.mark.parametrize(("level", "factor"), [("L1", 0.01), ("L1", 100.0), ("DRAM", 50.0), ("L3", 1e-3)])
def test_a_machine_of_any_rates_can_be_drawn(level: str, factor: float, ceilings: Peaks) -> None:
    """A busy hour has caches slower than memory, and rates far apart."""
    found = [dataclasses.replace(b, gbs=b.gbs * factor) if b.level == level else b for b in ceilings.bandwidth]
    slow = [dataclasses.replace(f, gflops=f.gflops / 1e3) if f.dtype == "float32" else f for f in ceilings.flops]
    for flops in (ceilings.flops, tuple(slow)):
        odd = dataclasses.replace(ceilings, bandwidth=tuple(found), flops=flops)
        assert "roofline" in text(machine_report.peaks(odd, 80))
    assert factor > 0.1 or "<svg" in page.machine(odd)


@pytest.mark.parametrize(("what", "told"), [("[row] {}", (9, 18, 27)), ("waiting since {} s", (9, 26))])
def test_progress_says_a_line_now_and_then_where_there_is_no_terminal(
    what: str, told: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And of one step that only goes on, ever more rarely."""
    clock = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    with terminal.progress("prove") as advance:
        for second in range(30):
            clock[0] = float(second)
            advance(what.format(second))
    assert capfd.readouterr().err.splitlines() == [f"prove: {what.format(second)}" for second in told]


def test_a_step_that_says_nothing_for_ten_seconds_is_said_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "SPEAK_S", 0.2)
    monkeypatch.setattr(terminal, "LOOK_S", 0.05)
    with terminal.progress("diagnose") as advance:
        advance("the program's first run")
        time.sleep(0.6)
    lines = capfd.readouterr().err.splitlines()
    assert lines
    assert all(re.fullmatch(r"diagnose: the program's first run( \([1-9]\d* s\))?", line) for line in lines)
