"""A diagnosis without measured peaks, on a busy machine or without a C++ compiler: times, calls and lines need none."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import kernelworks as kw
from kernelworks.build import BuildError
from kernelworks.diagnose.account.account import COMPUTE, MEMORY, USEFUL, WITHOUT_PEAKS
from kernelworks.measure.clock.noise import Ambiguous
from kernelworks.measure.peaks import unmeasured_peaks
from kernelworks.records import Diagnosis, Peaks, from_json, to_json
from kernelworks.report import diagnose as report
from kernelworks.report import page

WEIGHT = torch.randn(256, 256)


def step() -> torch.Tensor:
    return torch.nn.functional.gelu(torch.randn(256, 256) @ WEIGHT)


def without(error: Exception, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Diagnosis:
    def measured(*given: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(importlib.import_module("kernelworks.diagnose"), "measured_peaks", measured)
    return kw.diagnose(step, budget_s=0.5, **more)


def text_of(record: Diagnosis) -> str:
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(report.diagnosis(record, 120))
    return console.export_text()


def check_told(record: Diagnosis) -> None:
    """Times, calls and lines are there; nothing that needs peaks is claimed, and none of it as 0."""
    ops = [hotspot for hotspot in record.hotspots if "test_without_peaks.py" in hotspot.source and hotspot.flop]
    assert ops and all(hotspot.seconds > 0 and hotspot.calls for hotspot in ops)
    for hotspot in ops:
        assert hotspot.achieved is None and hotspot.peak == "" and hotspot.high_s == hotspot.allows_s == 0
    assert any(hotspot.bottleneck == "unknown" for hotspot in ops)
    assert record.time_breakdown[WITHOUT_PEAKS] > 0
    assert not {USEFUL, MEMORY, COMPUTE} & set(record.time_breakdown)
    assert sum(record.time_breakdown.values()) == pytest.approx(record.wall_s)
    assert isinstance(record.peaks, Peaks) and record.peaks.unknown and record.peaks.name
    assert from_json(Diagnosis, to_json(record)) == record
    shown = text_of(record)
    assert WITHOUT_PEAKS in shown and "test_without_peaks.py" in shown
    head, _, rest = shown.partition("WHERE THE TIME GOES")
    assert head.lower().count("peaks are unknown") == 1 and "unknown" not in rest  # once, on top
    drawn = page.diagnosis(record)
    assert "test_without_peaks.py" in drawn and drawn.lower().count("peaks are unknown (") <= 1
    assert "0 at peak" not in drawn and "none predicted" not in drawn and "Roofline" not in drawn
    assert "worth recovering" not in record.sentence and "what this machine can do" not in record.sentence


def test_a_busy_machine_gets_its_report_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    record = without(Ambiguous(0.57, "torch dispatch"), monkeypatch)
    check_told(record)
    assert record.ambiguous and report.outcome(record) == "ambiguous"
    assert "--rough" in record.sentence


def test_without_a_compiler_all_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    record = without(BuildError("no C++ compiler: 'g++' is not on the PATH\nmore"), monkeypatch, rough=True)
    check_told(record)
    assert record.ambiguous == "" and report.outcome(record) == ""
    assert record.peaks.unknown == "no C++ compiler: 'g++' is not on the PATH"  # type: ignore[union-attr]


def test_a_fix_without_peaks_is_searched_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    record = without(BuildError("no C++ compiler"), monkeypatch, rough=True, fix=True, fix_s=2.0)
    check_told(record)
    assert record.fix is not None and not record.fix.refused


def test_known_peaks_leave_no_part_unknown(monkeypatch: pytest.MonkeyPatch, ceilings: Peaks) -> None:
    record = kw.diagnose(step, budget_s=0.5, peaks=ceilings)
    assert WITHOUT_PEAKS not in record.time_breakdown and USEFUL in record.time_breakdown


def test_what_is_known_of_a_machine_without_figures() -> None:
    record = unmeasured_peaks("no C++ compiler")
    assert record.name and record.cores and record.dispatch_us > 0 and not record.flops
    assert from_json(Peaks, to_json(record)) == record


# ---------------------------------------------------------------- no compiler at all, whole commands

PROGRAM = """
import torch
x = torch.randn(64, 64)

def step():
    return torch.softmax(x @ x, -1)
"""

OPS = """
import warnings
import torch
import kernelworks as kw

x = torch.randn(4, 64)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.testing.assert_close(kw.softmax(x, -1), torch.softmax(x, -1))
    torch.testing.assert_close(kw.gelu(x), torch.nn.functional.gelu(x))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())
    before = model(x)
    kw.swap(model, verbose=False)
    torch.testing.assert_close(model(x), before)
assert caught
for warning in caught:
    assert warning.filename == "<string>", (warning.filename, warning.lineno, str(warning.message))
"""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """Variables of a machine with no compiler on an empty PATH, and an empty cache."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "prog.py").write_text(PROGRAM, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if name != "KERNELWORKS_CXX"}
    return {**kept, "PATH": str(tmp_path / "bin"), "KERNELWORKS_CACHE": str(tmp_path / "cache")}


def command(bare: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, *arguments]
    return subprocess.run(whole, env=bare, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("diagnose prog.py:step --rough", "no C++ compiler"),
        ("machine --rough --device cpu", "unknown: no C++ compiler"),
        ("explain softmax 4x64 -- -1", "torch"),
        ("map softmax", "softmax"),
    ],
)
def test_verbs_without_a_compiler(given: str, said: str, bare: dict[str, str], tmp_path: Path) -> None:
    done = command(bare, tmp_path, "-m", "kernelworks", *given.split())
    assert done.returncode == 0, done.stderr
    assert said in done.stdout and "Traceback" not in done.stderr


def test_ops_without_a_compiler_are_torchs_and_warn_at_the_users_line(bare: dict[str, str], tmp_path: Path) -> None:
    done = command(bare, tmp_path, "-c", OPS)
    assert done.returncode == 0, done.stderr
