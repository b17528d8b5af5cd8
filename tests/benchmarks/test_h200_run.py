"""All of a GPU's figures in one call, without one: what is begun, what goes on record, what is said to be missing."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAD = {
    "machine": {"name": "a"}, "versions": {"torch": "2"}, "date": "2026-02-02", "commit": "new",
    "sources": {"rope.r": "1", "gelu.r": "1"},
}  # fmt: skip
DECODE, DYNAMIC = ("decode-1", "static-reduce-overhead"), ("decode-1", "dynamic-default")
CHECKED = ("opcheck", "answers")

TOY = """
import json, sys, time
print("preparing", flush=True)
if sys.argv[1] == "blocks": time.sleep(600)
if sys.argv[2] != "answers": print("ready", flush=True), sys.stdin.readline()
found = {"opcheck": {"opcheck": {"gelu": "passed"}}, "ops": {"groups": 1, "bad": ["gelu: wrong"], "timed_s": 0.5}}
ms = {"ms_a_token": {"eager": 2.0}, "logits_apart": {"eager": 0.0}, "compile_s": 1.0, "kernels_taken": ["rope.r"]}
ms |= {"batch": 1}
json.dump(found.get(sys.argv[1], ms), open("result.json", "w"))
"""


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    found = importlib.import_module("h200")
    monkeypatch.setattr(found, "head", lambda: HEAD)
    return found


def timed(ms: float, **more: Any) -> dict[str, Any]:
    return {
        "ms_a_token": {"eager": ms}, "logits_apart": {"eager": 0.0}, "compile_s": 1.0, "kernels_taken": ["rope.r"],
        "batch": 1, **more,
    }  # fmt: skip


def test_models_go_on_from_what_is_on_record(whole: ModuleType, tmp_path: Path) -> None:
    models, file = whole.h200_models, tmp_path / "h200-models.json"
    figures = models.Figures(file, HEAD)
    for task, entry in ((DECODE, timed(2.0)), (DYNAMIC, None), (CHECKED, {"opcheck": {"gelu": "passed"}})):
        figures.tell(task, entry)
    found = json.loads(file.read_text())
    assert found["commit"] == "new" and found["figures"]["opcheck"]["gelu"] == "passed"
    assert found["figures"]["decode"][0]["modes"].keys() == {DECODE[1], DYNAMIC[1]}
    again = models.Figures(file, {**HEAD, "date": "2026-03-03"})
    assert again.entries == figures.entries and again.has(DECODE) and not again.has(DYNAMIC)
    again.tell(DECODE, {"failed": "out of memory"})  # which takes the place of no figure
    again.tell(DYNAMIC, timed(3.0))
    (run,) = json.loads(file.read_text())["figures"]["decode"]
    assert run["ms_a_token"] == {"eager": 2.0} and run["date"] == "2026-02-02"
    assert run["modes"][DYNAMIC[1]]["ms_a_token"] == {"eager": 3.0} and run["modes"][DYNAMIC[1]]["date"] == "2026-03-03"
    other = models.Figures(file, {**HEAD, "sources": {"rope.r": "1", "gelu.r": "2"}})
    assert other.has(DECODE) and not other.has(CHECKED)  # which asked every row
    assert not models.Figures(file, {**HEAD, "sources": {"rope.r": "2", "gelu.r": "1"}}).has(DECODE)
    assert not models.Figures(file, {**HEAD, "versions": {"torch": "3"}}).entries
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_what_time_is_left_for_is_on_record_and_the_rest_is_named(
    whole: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = tmp_path / "toy.py"
    toy.write_text(TOY)
    started = []

    def start(run: Any, task: Any, heard: Any) -> Any:
        started.append(task)
        folder = tmp_path / "-".join(task)
        folder.mkdir()
        return whole.Started([sys.executable, str(toy), *task], folder, 60.0, heard=heard, echo=task[0] == "ops")

    tasks = [DECODE, DYNAMIC, CHECKED]
    monkeypatch.setattr(whole.Run, "start", start)
    monkeypatch.setattr(importlib.import_module("side_by_side"), "LEAST_S", 0.0)
    monkeypatch.setattr(whole, "machine_part", lambda: 1 / 0)
    monkeypatch.setattr(whole.h200_models, "tasks_of", lambda parts, searched: tasks)
    monkeypatch.setattr(whole.h200_ops, "missing", lambda file, head, only: [])
    monkeypatch.setattr(whole.h200_blocks, "missing", lambda file: ["[1, 16]"])
    out = tmp_path / "out"
    out.mkdir()
    whole.h200_models.Figures(out / "h200-models.json", HEAD).tell(DYNAMIC, timed(3.0))
    parts = ["machine", "ops", "blocks", "models", "trust"]
    assert whole.Run(out, parts, within=6.0).all() == 1
    assert sorted(started) == sorted([DECODE, CHECKED, ("ops", ""), ("blocks", "")])  # and not what stands there
    said = json.loads((out / "h200-run.json").read_text())
    assert said["missing"] == {"blocks": ["[1, 16]"]} and said["of_parts"]["ops, timed"] == 0.5
    assert said["failed"] == ["machine: ZeroDivisionError: division by zero", "ops: gelu: wrong", "blocks: cut off"]
    figures = json.loads((out / "h200-models.json").read_text())["figures"]
    assert figures["opcheck"]["gelu"] == "passed" and len(figures["decode"][0]["modes"]) == 2
    assert {path.name for path in out.iterdir()} == {"h200-run.json", "h200-models.json"}
    assert "preparing" in capsys.readouterr().out


def test_a_part_that_fails_says_what_was_said_last(whole: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "".join(f"line {n}\\n\\n" for n in range(9))
    program = f"import sys; sys.stderr.write('{said}kernelworks: no compiler'); sys.exit(1)"
    own = subprocess.run
    monkeypatch.setattr(whole.subprocess, "run", lambda command, **how: own([sys.executable, "-c", program], **how))
    with pytest.raises(RuntimeError, match=r"with 1: line 5 / line 6 / line 7 / line 8 / kernelworks: no compiler$"):
        whole.machine_part()


def test_what_fails_says_where(whole: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    models, record = whole.h200_models, dict[str, Any]()

    def fails(tiny: bool) -> Any:
        raise ValueError("not enough values to unpack")

    monkeypatch.setattr(models, "PARTS", {"compile": fails})
    models.here(["compile"], True, record)
    assert record["compile"]["failed"] == "ValueError: not enough values to unpack"
    inner, outer = record["compile"]["at"]
    assert inner.startswith("benchmarks/test_h200_run.py:") and inner.endswith(" fails")
    assert outer.startswith("benchmarks/h200_models.py:") and outer.endswith(" here")


def test_odd_tensors_of_an_op_are_asked_again_when_a_row_of_it_changes(
    whole: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trust, file, asked = whole.h200_trust, tmp_path / "h200-trust.json", list[str]()

    def followed(names: list[str], device: str, row: str | None, seconds: float) -> list[dict[str, str]]:
        asked.extend(names)
        return [{"op": names[0], "case": "c", "dtype": "float32", "check": "jvp", "wrong": ""}]

    monkeypatch.setattr(trust, "followed", followed)
    monkeypatch.setattr(trust, "OPS", {"gelu": None, "rope": None, "relu": None})
    found = trust.on_record(file, HEAD, {"gelu", "rope"}, within=60, again=False)
    assert (
        sorted(asked) == ["gelu", "rope"]
        and found["not_done"] == ["relu"]
        and "gelu" in json.loads(file.read_text())["ops"]
    )
    asked.clear()
    trust.on_record(file, {**HEAD, "sources": {"rope.r": "2", "gelu.r": "1"}}, {"gelu", "rope"}, within=60, again=False)
    assert asked == ["rope"]
    asked.clear()
    assert trust.on_record(file, HEAD, set(), within=1, again=True)["not_done"] == ["rope", "relu"] and not asked


def test_a_verification_that_fails_says_why_in_its_line(whole: ModuleType) -> None:
    assert whole.unverified(0, []) == ""
    assert whole.unverified(1, {"stdout": "", "stderr": "No module named x\n"}) == "NOT VERIFIED: No module named x"
    failed = {"failures": [{"case": "tiles", "message": "off by 3"}], "checks": {"parity": False, "mutants": True}}
    assert whole.unverified(1, [failed]) == "NOT VERIFIED, 1 failures, parity: tiles: off by 3"
    died = whole.unverified(1, [{"failures": [], "checks": {"survived": False}}])
    assert died == "NOT VERIFIED, 0 failures, survived: no case was tried"


def test_what_is_out_of_time_ends_with_the_processes_it_started(whole: ModuleType) -> None:
    """A worker of its own that is left would hold the pipe open."""
    with pytest.raises(subprocess.TimeoutExpired):
        whole._ended(["sh", "-c", "sleep 1000 & sleep 1000"], 0.2)
    assert whole._ended(["sh", "-c", "echo here; exit 3"], 60.0).stdout == "here\n"


def test_verifications_are_kept_one_by_one_until_the_time_is_up(
    whole: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that fails beside others is tried once more alone; what the time cuts short is no verification."""
    said: list[str] = []
    kept: list[int] = []
    jobs: set[str] = set()

    def run(command: list[str], seconds: float) -> Any:
        name = command[command.index("verify") + 1]
        said.append(name)
        jobs.add(command[command.index("--jobs") + 1])
        if name == "relu.triton":
            raise subprocess.TimeoutExpired(command, seconds)
        failed = name == "gelu.triton" and said.count(name) == 1
        return subprocess.CompletedProcess(command, int(failed), "[]", "")

    rows = [("gelu", "triton"), ("relu", "triton"), ("sum", "triton")]
    monkeypatch.setattr(whole, "_ended", run)
    monkeypatch.setattr(whole.h200_sanitizer, "gpu_kernels", lambda: rows)
    monkeypatch.setattr(whole.certificates, "invalid_reason", lambda *args: "stale")
    monkeypatch.setattr(whole.certificates, "find_certificates", lambda *args: [])
    monkeypatch.setattr(whole, "gpu", lambda: type("Gpu", (), {"kind": "sm_90-x"}))
    keep = lambda found: kept.append(len(found["rows"]))  # noqa: E731
    found = whole.verifications_part(set(), False, whole.time.monotonic() + 100, keep)
    assert {(r["op"], r["exit"]) for r in found["rows"]} == {("gelu", 0), ("relu", -1), ("sum", 0)}
    assert sorted(said) == ["gelu.triton", "gelu.triton", "relu.triton", "sum.triton"] and kept == [1, 2, 3]
    assert all(r["exit"] == -1 for r in whole.verifications_part(set(), False, whole.time.monotonic(), keep)["rows"])
    whole.verifications_part(set(), False, whole.time.monotonic() + 100, keep, 7)
    assert jobs == {str(whole.JOBS), "7"}
