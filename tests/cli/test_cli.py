"""The command line: help, JSON, files, exit codes that mean something; and the pages that tell how to use it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from op_kernels import ALL_NAMES
from typer.main import get_command
from typer.testing import CliRunner, Result

import readme
import reference_pages
from kernelworks.cli import app, main
from kernelworks.cli.arguments import parse_arguments
from kernelworks.dispatch.op import OPS
from kernelworks.measure.bench.kernel_map import keep_benches, kept_benches, kernel_map
from kernelworks.measure.clock.noise import Ambiguous
from kernelworks.ops import op_named
from kernelworks.records import BenchResult, Diagnosis, Explanation, MapOp, Peaks, Verification, from_json
from kernelworks.report import map as map_report
from kernelworks.report import programs

ROOT = Path(__file__).resolve().parents[2]
VERBS: dict[str, Any] = getattr(get_command(app), "commands", {})


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def patch(monkeypatch: pytest.MonkeyPatch, module: str, name: str, value: Callable[..., Any]) -> None:
    """Puts a stand-in where a verb will import it from (``kernelworks.verify`` is also a function, so by import)."""
    monkeypatch.setattr(importlib.import_module(module), name, value)


# ---------------------------------------------------------------- help


def test_the_verbs_are_those_of_the_design() -> None:
    measuring = {
        "diagnose",
        "show",
        "machine",
        "verify",
        "bench",
        "explain",
        "autotune",
        "swap",
        "climb",
        "learn",
        "descend",
        "experiment",
    }
    others = {"map", "compare", "predictions", "judge", "check-problem", "search", "export", "cache"}
    assert set(VERBS) == measuring | others
    assert cli("--version").stdout.startswith("kernelworks ")
    assert cli().exit_code == 2  # without a verb: the help, as for a wrong command line


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_explains_itself_and_has_json(verb: str) -> None:
    result = cli(verb, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
    for parameter in VERBS[verb].params:
        assert parameter.help or parameter.name == "help", f"{verb}: {parameter.name} says nothing"


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_has_a_page(verb: str) -> None:
    assert f"kernelworks {verb}" in (ROOT / "docs/reference" / f"{verb}.md").read_text(encoding="utf-8")


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "kernelworks", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "diagnose" in done.stdout


# ---------------------------------------------------------------- diagnose


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, diagnosis: Diagnosis, tmp_path: Path) -> Path:
    """A program whose diagnosis is at hand, in an empty working folder."""
    calls: list[tuple[Any, ...]] = []

    def run(target: str, args: tuple[str, ...] = (), fix: bool = False, progress: Any = None, **more: Any) -> Diagnosis:
        progress("a step")
        calls.append((target, args))
        command = (target, *(("--", *args) if args else ()))
        return dataclasses.replace(
            diagnosis, program=" ".join((target, *args)), fix=diagnosis.fix if fix else None, command=command
        )

    patch(monkeypatch, "kernelworks.diagnose", "diagnose_script", run)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text("def step():\n    pass\n", encoding="utf-8")
    return path


def test_diagnose_prints_and_writes(program: Path) -> None:
    result = cli("diagnose", f"{program}:step", "--fix")
    assert result.exit_code == 0, result.output
    assert "This program runs at 38%" in " ".join(result.stdout.split())
    assert "120 ms predicted" in result.stdout
    written = Path("kernelworks-out")
    for kind, name in (
        ("page", "train-step.html"),
        ("record", "train-step.json"),
    ):  # the report says where, not the progress
        assert re.search(rf"^{kind} +kernelworks-out/{name}$", result.stdout, re.M) and name not in result.stderr
    assert from_json(Diagnosis, (written / "train-step.json").read_text()).fix is not None
    assert "<svg" in (written / "train-step.html").read_text()


def test_each_function_of_a_file_has_its_own_record_and_a_loss_of_one_is_said(program: Path) -> None:
    assert not cli("diagnose", f"{program}:step").stderr.count("written over")
    assert "written over" not in cli("diagnose", str(program)).stderr
    assert {path.name for path in Path("kernelworks-out").glob("*.json")} == {"train.json", "train-step.json"}
    assert "written over" not in cli("diagnose", "train.py").stderr  # the same program by a shorter name
    said = " ".join(cli("diagnose", "train.py", "--", "--epochs", "3").stderr.split())
    assert f"kernelworks-out/train.json was the record of {program.name}: it is written over" in said
    Path("other").mkdir()
    other = Path("other/train.py")
    other.write_text(program.read_text(encoding="utf-8"), encoding="utf-8")
    assert "was the record of train.py -- --epochs 3" in " ".join(cli("diagnose", str(other)).stderr.split())


def test_diagnose_passes_the_programs_own_arguments(program: Path) -> None:
    result = cli("diagnose", str(program), "--json", "--", "--epochs", "3")
    assert from_json(Diagnosis, result.stdout).program.endswith("train.py --epochs 3")
    assert not Path("kernelworks-out").exists()


def test_a_fix_that_disagrees_fails(program: Path, monkeypatch: pytest.MonkeyPatch, diagnosis: Diagnosis) -> None:
    assert diagnosis.fix is not None
    wrong = dataclasses.replace(diagnosis, fix=dataclasses.replace(diagnosis.fix, agrees=False))
    patch(monkeypatch, "kernelworks.diagnose", "diagnose_script", lambda *args, **kwargs: wrong)
    assert cli("diagnose", str(program), "--fix").exit_code == 1


def test_a_program_that_is_not_there_is_usage() -> None:
    result = cli("diagnose", "nowhere.py:f")
    assert result.exit_code == 2
    assert "nowhere.py" in result.stderr


# ---------------------------------------------------------------- machine, prove, bench


def test_machine_prints_json_and_a_page(monkeypatch: pytest.MonkeyPatch, ceilings: Peaks, tmp_path: Path) -> None:
    patch(monkeypatch, "kernelworks.measure.peaks", "get_peaks", lambda progress, again: ceilings)
    result = cli("machine", "--json", "--html", str(tmp_path / "machine.html"))
    assert from_json(Peaks, result.stdout) == ceilings
    assert "Memory hierarchy" in (tmp_path / "machine.html").read_text()
    assert "ridge points" in cli("machine").stdout


def test_a_busy_machine_is_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(progress: Any, again: bool) -> Peaks:
        raise Ambiguous(0.34)

    patch(monkeypatch, "kernelworks.measure.peaks", "get_peaks", busy)
    result = cli("machine")
    assert result.exit_code == 3
    assert "ambiguous: other processes used 34% of the cores" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("verb", [("diagnose", "p.py:f"), ("autotune", "p.py:f")])
def test_a_machine_too_busy_for_a_program_is_no_fault_of_the_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.py").write_text("def f():\n    pass\n", encoding="utf-8")

    def busy(*given: Any, **named: Any) -> Any:
        raise Ambiguous(0.34)

    patch(monkeypatch, "kernelworks.diagnose", "diagnose_script", busy)
    patch(monkeypatch, "kernelworks.cli.autotune", "_run_autotune", busy)
    assert cli(*verb).exit_code == 3


def test_a_refused_verification_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, proofs: list[Verification]) -> None:
    asked: list[Any] = []

    def verify(op: str, row: str | None, **more: Any) -> list[Verification]:
        asked.append((op, row, more["case"], more["dtype"]))
        return proofs if row == "avx2" else proofs[:1]

    patch(monkeypatch, "kernelworks.verify", "verify", verify)
    case = OPS["rms_norm"].contract.cases[3].name
    result = cli("verify", "rms_norm.avx2", "--case", case, "--dtype", "float32")
    assert result.exit_code == 1
    assert "REFUSED" in result.stdout
    assert asked == [("rms_norm", "avx2", case, "float32")]
    result = cli("verify", "rms_norm", "--json")
    assert result.exit_code == 0
    assert from_json(Verification, json.dumps(json.loads(result.stdout)[0])) == proofs[0]


def test_a_bench_without_its_gate_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, benches: list[BenchResult], tmp_path: Path
) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    patch(monkeypatch, "kernelworks.measure.bench", "bench", lambda op, **more: benches[:1])
    assert cli("bench", "rms_norm").exit_code == 0
    patch(monkeypatch, "kernelworks.measure.bench", "bench", lambda op, **more: benches)
    result = cli("bench", "rms_norm", "--json")
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "nothing"), ("verify", "rms_norm", "--case", "nothing"),
        ("bench", "nothing"), ("explain", "nothing"), ("map", "nothing"), ("dance",),
        ("explain", "rms_norm", "16xx4"), ("explain", "rms_norm", "4x8", "8", "epsilon=1"), ("swap", "nothing"),
        ("explain", "rms_norm", "4x8", "8", "eps=1e-6", "--dtype", "float7"), ("machine", "--colour"),
        ("explain", "rms_norm", "4x8", "9", "eps=1e-6"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


# ---------------------------------------------------------------- explain, map, swap


def test_explain_from_shapes() -> None:
    result = cli("explain", "rms_norm", "16x4096", "4096", "eps=1e-6", "--dtype", "bfloat16", "--json")
    assert result.exit_code == 0, result.output
    found = from_json(Explanation, result.stdout)
    assert found.op == "rms_norm"
    assert "bfloat16[16, 4096]" in found.call
    assert "x bfloat16[16, 4096]" in cli("explain", "rms_norm", "16x4096:bfloat16", "4096:bfloat16", "eps=1e-6").stdout


@pytest.mark.parametrize("op", ALL_NAMES)
def test_explain_without_arguments_takes_a_bench_case(op: str) -> None:
    result = cli("explain", op)
    assert result.exit_code == 0, result.output
    assert "declined" in result.stdout or OPS[op].kernels[0].name in result.stdout


def test_arguments_by_place_and_by_name() -> None:
    found = parse_arguments(op_named("rms_norm"), ["2x8", "eps=1e-5", "weight=8:float16", "residual=none"], "bfloat16")
    assert found["x"].dtype == torch.bfloat16
    assert found["weight"].dtype == torch.float16
    assert (found["eps"], found["residual"]) == (1e-5, None)


@pytest.mark.parametrize("arguments", [("compare", "one.json"), ("judge", "one.py"), ("swap",)], ids=lambda a: a[0])
def test_what_is_missing_on_the_command_line_names_the_help(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    said = capsys.readouterr().err
    assert left.value.code == 2 and f"see kernelworks {arguments[0]} --help" in said and said.count("\n") == 1, said


def test_the_map_lists_every_row_and_its_standing(
    monkeypatch: pytest.MonkeyPatch, benches: list[BenchResult], tmp_path: Path
) -> None:
    result = cli("map", "--json")
    assert result.exit_code == 0, result.output
    found = [from_json(MapOp, json.dumps(item)) for item in json.loads(result.stdout)]
    assert {op.op: [r.name for r in op.kernels] for op in found} == {
        n: [r.name for r in op.kernels] for n, op in OPS.items()
    }
    assert all((ROOT / "src" / "kernelworks" / op.op_package / "contract.py").is_file() for op in found)
    assert "rms_norm" in cli("map", "rms_norm").stdout
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    keep_benches([dataclasses.replace(b, op="rms_norm") for b in benches])
    assert len(kept_benches("rms_norm")) == 2
    row = next(row for row in kernel_map("rms_norm")[0].kernels if row.name == benches[0].chosen)
    assert row.ratio == pytest.approx(90 / 40)
    assert row.share_of_bound == pytest.approx(32.4 / 40)
    assert row.baseline == "inductor"


def test_kept_benches_that_do_not_read_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    keep_benches([])
    assert kept_benches("rms_norm") == []


def test_swap_shows_and_takes_back(tmp_path: Path) -> None:
    file = tmp_path / "small.py"
    file.write_text(
        "import torch\nMODEL = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout())\n"
        "def model():\n    return MODEL\n\ndef number():\n    return 3\n",
        encoding="utf-8",
    )
    result = cli("swap", f"{file}:model")
    assert result.exit_code == 0, result.output
    assert "Linear" in result.stdout
    shown = json.loads(cli("swap", f"{file}:model", "--json").stdout)
    assert {"replaced", "left"} <= set(shown)
    assert cli("swap", f"{file}:number").exit_code == 2
    assert cli("swap", f"{file}:nothing").exit_code == 2


@pytest.mark.usefixtures("quick_processes")
def test_json_is_all_that_stdout_holds() -> None:
    command = [sys.executable, "-m", "kernelworks", "map", "rms_norm", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "FORCE_COLOR": "1"})
    assert json.loads(done.stdout)[0]["op"] == "rms_norm"


# ---------------------------------------------------------------- README and docs


def test_generated_pages_are_up_to_date() -> None:
    assert readme.outdated(ROOT) == [], "run `make docs`"
    reference = (ROOT / "docs" / "reference" / "ops.md").read_text(encoding="utf-8")
    assert reference == map_report.markdown(kernel_map()), "run `make docs`"
    assert list(reference_pages.outdated(ROOT)) == [], "run `make docs`"


def test_readme_is_a_page_to_read_in_one_go() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 80 and max(map(len, lines)) <= 160
    assert sum(line.startswith("![") for line in lines) == 1
    heads = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert heads == ["Install", "Three commands", "Results", "Compared with", "Limits and status", "Read on"]


def test_the_chart_shows_the_best_and_the_worst_of_each_machine() -> None:
    def row(name: str, mode: str, share: float) -> dict[str, Any]:
        times = {"before_s": 1.0, "after_s": share, "predicted_gain_s": 1 - share, "gain_s": 1 - share}
        return {"program": name, "mode": mode, "share": share, "eager_ms": 1e3, "spread": 0.0, **times}

    shares = {"a": 0.5, "b": 0.25, "c": 2.0, "d": 1.0, "e": 0.8}
    rows = [row(name, mode, s if mode == "fix" else 1.0) for name, s in shares.items() for mode in ("default", "fix")]
    lines = programs.chart({"CPU": rows, "GPU": rows[:4]}, {"CPU": 3, "GPU": 2}, {"b": "the best"})[2:]
    assert [line.split(" | ")[0] for line in lines] == [
        "| CPU: the best",
        "| CPU: e",
        "| CPU: c",
        "| GPU: the best",
        "| GPU: a",
    ]
    assert lines[0].endswith("4.00x as fast |") and lines[2].endswith("0.500x as fast: slower |")
    assert lines[0].split(" | ")[1:4] == ["1.00 s", "none is faster", "250 ms"]  # times, in one unit
    quicker = [*(r for r in rows if r["mode"] == "fix"), *(row(name, "default", 0.9) for name in shares)]
    assert "| 900 ms (default) |" in programs.chart({"CPU": quicker}, {"CPU": 1}, {})[2]
    said = programs.result(rows)
    assert said.startswith("5 programs, ") and "1 slower" in said
    assert said.endswith("gain predicted within 20% for 5 of 5")
    budgets = {"a": 60.0, "b": 75.0}
    told = [r | {"budget_s": budgets[r["program"]]} if r["program"] in budgets else r for r in rows]
    assert programs.result(told) == f"{said}; budget 60-75 s"


def blocks() -> list[tuple[str, int, str]]:
    """The examples in Python of README.md and of the docs: page, number, text."""
    pages = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
    found = {
        page: re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S) for page in pages
    }
    return [(page, i, text) for page, texts in found.items() for i, text in enumerate(texts, 1)]


@pytest.mark.parametrize(
    ("page", "number", "text"), blocks(), ids=lambda value: value if str(value).endswith(".md") else ""
)
def test_the_examples_of_the_pages_run(
    page: str, number: int, text: str, monkeypatch: pytest.MonkeyPatch, ceilings: Peaks, tmp_path: Path
) -> None:
    # the ceilings of a test machine: measuring this one takes a minute and wants it quiet
    patch(monkeypatch, "kernelworks.diagnose", "measured_peaks", lambda *args, **more: ceilings)
    monkeypatch.chdir(tmp_path)
    exec(compile(text, f"{page}, example {number}", "exec"), {"__name__": "example"})


def test_a_part_without_its_results_stays_empty(tmp_path: Path) -> None:
    page = "a\n<!-- generated: models -->\nold\n<!-- end generated -->\nb\n"
    (tmp_path / "README.md").write_text(page, encoding="utf-8")
    assert readme.generate(tmp_path, "README.md") == page.replace("old\n", "")


def test_parts_are_made_of_the_results(tmp_path: Path, diagnosis: Diagnosis) -> None:
    from kernelworks.records import to_json

    head = {
        "machine": {"name": "M"},
        "date": "2026-01-01",
        "commit": "0" * 40,
        "versions": {"torch": "2"},
        "threads": 2,
    }
    case = {"case": "softmax float32 8x8", "us": {"eager": 10.0, "ours": 5.0, "inductor": 8.0}, "over_eager": 2.0,
            "over_inductor": 1.6, "wrong": False}  # fmt: skip
    model = {"case": "small", "eager_ms": 10.0, "swapped_ms": 4.0, "speedup": 2.5, "undo_exact": True}
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "ops-2-threads.json").write_text(json.dumps({**head, "rows": [case]}))
    (results / "models.json").write_text(json.dumps({**head, "rows": [model]}))
    (results / "diagnose-minilm.json").write_text(to_json(diagnosis))
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "classify.py").write_text("import time\n", encoding="utf-8")
    parts = {name: f"<!-- generated: {name} -->\n<!-- end generated -->\n" for name in readme.PARTS}
    (tmp_path / "README.md").write_text("".join(parts.values()))
    text = readme.generate(tmp_path, "README.md")
    for expected in (
        "**2.50x**",
        "bit-identical",
        "**2.00x** (2.00x to 2.00x)",
        "| 1.60x |",
        "runs at 38%",
        "### 2 threads",
    ):
        assert expected in text, expected
    for page in readme.PAGES[1:]:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text("")
    assert readme.main(["--check", str(tmp_path)]) == 1
    assert readme.main([str(tmp_path)]) == 0
    assert readme.main(["--check", str(tmp_path)]) == 0


def test_a_kernel_of_a_gpu_that_is_not_here_is_refused_in_words() -> None:
    result = cli("verify", "softmax.triton")
    assert result.exit_code == 2
    assert "there is none here" in " ".join(result.output.split())
