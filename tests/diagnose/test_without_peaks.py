"""A diagnosis without measured peaks, on a busy machine or without a C++ compiler: times, calls and lines need none."""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from machines import gpu_record
from printed import printed
from rich.console import Console
from test_gpu import FLOORS, NAMES, diagnosis, timeline

import kernelworks as kw
from kernelworks.build import BuildError
from kernelworks.diagnose.account.account import COMPUTE, FUSION, MEMORY, USEFUL, WITHOUT_PEAKS
from kernelworks.diagnose.account.on_gpu import Gpu as OnGpu
from kernelworks.diagnose.optimization import Impossible, Scene
from kernelworks.diagnose.optimizations.compiler_settings import missing_compiler
from kernelworks.diagnose.optimizations.torch_compile import OPTIMIZATION as COMPILE
from kernelworks.diagnose.record import make_diagnosis
from kernelworks.diagnose.sites.modules import find_roots
from kernelworks.machine import Gpu
from kernelworks.measure.clock.noise import Ambiguous
from kernelworks.measure.peaks import cache as peaks_cache
from kernelworks.measure.peaks import gpu as of_gpu
from kernelworks.measure.peaks import unmeasured_gpu_peaks, unmeasured_peaks
from kernelworks.records import Diagnosis, GpuPeaks, Peaks, from_json, to_json
from kernelworks.report import diagnose as report
from kernelworks.report import page
from kernelworks.report.gpu import gpu as gpu_report

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
    bare = tuple(dataclasses.replace(h, low_s=0.0, high_s=0.0, allows_s=0.0) for h in record.hotspots)
    shown = text_of(dataclasses.replace(record, hotspots=bare))
    assert "of wall" in shown and "of wall  of peak" not in shown  # a column that would say nothing
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


# ---------------------------------------------------------------- a GPU that others use

HERE = Gpu("sm_90-some_gpu", "Some GPU", (9, 0), 132, 50 << 20, 80 << 30, "GPU-1", "1.0", 700.0)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> GpuPeaks:
    monkeypatch.setattr(of_gpu, "gpu", lambda: HERE)
    return unmeasured_gpu_peaks("other processes used 60% of this GPU")


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_without_peaks_gives_times_calls_and_lines(name: str, unmeasured: GpuPeaks) -> None:
    known = diagnosis(name)
    found = make_diagnosis(name, timeline(name), OnGpu(unmeasured, FLOORS))
    assert found.wall_s == known.wall_s and len(found.hotspots) == len(known.hotspots)
    assert {(h.op, h.calls, h.source) for h in found.hotspots} == {(h.op, h.calls, h.source) for h in known.hotspots}
    assert sum(found.time_breakdown.values()) == pytest.approx(found.wall_s)
    assert not {USEFUL, FUSION, MEMORY, COMPUTE} & set(found.time_breakdown)
    at_work = sum(known.time_breakdown[part] for part in (USEFUL, FUSION, MEMORY, COMPUTE))
    assert found.time_breakdown[WITHOUT_PEAKS] >= 0.9 * at_work
    assert all(h.achieved is None and h.allows_s == 0 for h in found.hotspots if h.flop)
    assert found.gpu is not None and all(k.bound_s == 0 for k in found.gpu.kernels)
    assert "what this machine can do" not in found.sentence
    assert from_json(Diagnosis, to_json(found)) == found
    shown = text_of(found)
    assert shown.count("Measured peaks are unknown (other processes used 60% of this GPU)") == 1
    assert "0 at peak" not in page.diagnosis(found)


def test_without_peaks_a_call_on_a_gpu_costs_what_it_does_today(unmeasured: GpuPeaks) -> None:
    call = next(c for c in timeline("large").calls if c.end > c.start)
    cost = OnGpu(unmeasured, FLOORS).at_its_bound(call, 1e-6)
    assert cost.kernels == ((call.end - call.start) / 1e9,)


@pytest.mark.parametrize(("before", "after"), [(0.6, 0.0), (0.0, 0.3)])
def test_a_busy_gpu_is_ambiguous_or_rough(
    before: float, after: float, unmeasured: GpuPeaks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shares = [before, after]
    measured = dataclasses.replace(gpu_record(), fingerprint="f")
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    monkeypatch.setattr(of_gpu, "others_share", lambda here: shares.pop(0))
    monkeypatch.setattr(of_gpu, "_measured", lambda here, progress: measured)
    with pytest.raises(Ambiguous, match="% of this GPU"):
        of_gpu.measure()
    shares[:] = [before, after]
    monkeypatch.setattr(peaks_cache, "has_gpu", lambda: True)
    monkeypatch.setattr(peaks_cache, "_fingerprint", lambda device: "f")
    peaks_cache.forget_peaks()
    rough = peaks_cache.get_peaks(device="cuda", rough=True)
    assert rough.foreign_share == max(before, after) and peaks_cache.cached_peaks("cuda") is None
    assert "rough: other processes had this GPU" in printed(gpu_report(rough, 100))
    shares[:] = [0.05, 0.0]
    assert peaks_cache.get_peaks(device="cuda").foreign_share == 0.05
    peaks_cache.forget_peaks()
    assert peaks_cache.cached_peaks("cuda") is not None
    peaks_cache.forget_peaks()


@pytest.mark.parametrize(
    "error", [Ambiguous(0.6, device="this GPU"), BuildError("no Triton"), torch.OutOfMemoryError("CUDA out of memory")]
)
def test_peaks_of_a_gpu_come_after_its_times_and_may_stay_unknown(
    error: Exception, unmeasured: GpuPeaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("kernelworks.diagnose")
    asked: list[dict[str, Any]] = []

    def measured(**options: Any) -> None:
        asked.append(options)
        raise error

    monkeypatch.setattr(module, "measured_peaks", measured)
    before = OnGpu(dataclasses.replace(unmeasured, unknown=module.NOT_YET), FLOORS)
    device, why = module._with_peaks(before, timeline("tiny"), lambda line: None, rough=False, wanted=True)
    assert device.peaks.unknown == str(error) and why is error and asked[0]["device"] == "cuda"
    given = OnGpu(gpu_record(), FLOORS)
    assert module._with_peaks(given, timeline("tiny"), lambda line: None, rough=False, wanted=True) == (given, None)
    found = module._explained(make_diagnosis("tiny", timeline("tiny"), device), why)
    assert bool(found.ambiguous) == isinstance(error, Ambiguous)


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
    whole = [forked.interpreter(), *arguments]
    return subprocess.run(whole, env=bare, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_what_no_compiler_can_compile_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """inductor calls a C++ compiler for a CPU: of an environment's, or of torch's settings once they are loaded."""
    model, loaded = torch.nn.Linear(8, 8), "torch._inductor.config"
    scene = Scene(find_roots(lambda: model(torch.randn(4, 8))))
    monkeypatch.delitem(sys.modules, loaded, raising=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    for settings in (None, types.SimpleNamespace(cpp=types.SimpleNamespace(cxx=(None, "no-such-compiler")))):
        if settings is not None:
            monkeypatch.setenv("CXX", sys.executable)  # the settings say more than what they were made of
            monkeypatch.setitem(sys.modules, loaded, settings)
        with pytest.raises(Impossible, match="on a CPU, and 'no-such-compiler' is not on the PATH"):
            list(COMPILE.candidates(scene))
    there = types.SimpleNamespace(cpp=types.SimpleNamespace(cxx=(None, sys.executable)))
    monkeypatch.setitem(sys.modules, loaded, there)
    assert missing_compiler() == ""


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
