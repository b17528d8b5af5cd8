"""docs/how-to/integrations.md: what it tells a reader to type works, and what it shows is what is printed."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from printed import printed
from test_action import parse_action

from kernelworks.diagnose.foreign_trace import diagnose_trace
from kernelworks.integrations import notebook
from kernelworks.integrations import trainer as integration
from kernelworks.records import Diagnosis
from kernelworks.report.trace import trace_diagnosis

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/how-to/integrations.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return [body for name, body in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S) if name == language]


def test_each_section_opens_with_what_a_user_types() -> None:
    sections = re.split(r"^## .*\n", PAGE, flags=re.M)[1:]
    assert len(sections) == 5
    assert all(section.lstrip().startswith("```") for section in sections)


def test_the_notebook(diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def note(fn: Any, **options: Any) -> Diagnosis:
        fn()
        asked.append(options)
        return diagnosis

    monkeypatch.setattr(notebook, "diagnose", note)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.user_ns |= {"model": torch.nn.Linear(4, 4), "x": torch.ones(16, 4)}
    try:
        for cell in blocks("ipython"):
            ran = shell.run_cell(cell)
            assert ran.success and dataclasses.replace(ran.result, magic=(), options=()) == diagnosis
        diagnosis.save("main.json")
        diagnosis.save("branch.json")
        assert shell.run_cell(blocks("py")[0]).success
    finally:
        InteractiveShell.clear_instance()
    assert [(one["fix"], one["fix_s"]) for one in asked] == [(False, None), (True, 120.0)]
    assert (tmp_path / "reports" / "notebook.json").exists() and shell.user_ns["batch"].shape == (8, 4)


def test_the_test_of_pytest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_model_of_the_page.py").write_text(blocks("python")[0])  # importlib takes a module of that name
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "pytest.ini").touch()
    options = ["-q", "-p", "no:cacheprovider", "-p", "pytest_kernelworks", "-c", str(tmp_path / "pytest.ini")]
    assert pytest.main([*options, "--import-mode=importlib", str(tmp_path)]) == 0


def test_the_inputs_of_the_action() -> None:
    action, (workflow,) = parse_action(), blocks("yaml")
    used = set(re.findall(r"^      ([\w-]+):", workflow.partition("with:")[2], re.M))
    assert (
        used <= set(action["inputs"])
        and {name for name, spec in action["inputs"].items() if "default" not in spec} <= used
    )
    told = PAGE.partition("| input | meaning")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([\w-]+)`", re.sub(r"\|[^|\n]*\|[^|\n]*\|$", "", told, flags=re.M))) == set(
        action["inputs"]
    )
    for name, spec in action["inputs"].items():
        row = next(line for line in told.splitlines() if re.match(rf"\|[^|]*`{name}`", line))
        assert row.rstrip("| ").endswith(f"`{spec['default']}`") if "default" in spec else row.endswith("| |")


def test_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Trainer:
        def __init__(self, *args: Any, **options: Any) -> None:
            given.update(options)

        def train(self) -> None:
            pass

    exec(blocks("py")[1], {"Trainer": Trainer, "model": None, "args": None, "data": None})
    (callback,) = given["callbacks"]
    assert isinstance(callback, integration.DiagnoseCallback) and callback.step == 10


def test_the_trace_is_what_is_printed() -> None:
    found = diagnose_trace(ROOT / "tests/profile/traces/train.json.gz")
    found = dataclasses.replace(found, file="trace.json.gz")
    shown = printed(trace_diagnosis(found, 78), 78)
    lines = [line.rstrip() for line in shown.splitlines()]
    block = next(one for one in blocks("") if "torch.profiler" in one)
    told = textwrap.dedent(block).splitlines()
    assert lines[: len(told)] == told
