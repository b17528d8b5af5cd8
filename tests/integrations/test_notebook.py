"""``%diagnose`` in a real shell of IPython, and what records show of themselves there."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from kernelworks.diagnose import diagnose
from kernelworks.integrations import notebook
from kernelworks.measure.clock.noise import Ambiguous
from kernelworks.records import Diagnosis, from_json
from kernelworks.report.next_steps import next_steps


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, diagnosis: Diagnosis) -> Iterator[InteractiveShell]:
    """A shell with the magics; what they diagnose runs twice, and the record is one that is kept."""

    def run_twice(fn: Callable[[], object], **options: Any) -> Diagnosis:
        fn()
        fn()
        return dataclasses.replace(diagnosis, program=options["program"])

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setattr(notebook, "diagnose", run_twice)
    monkeypatch.chdir(tmp_path)
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    made.run_line_magic("colors", "nocolor")
    assert made.run_cell("%load_ext kernelworks").success
    made.run_cell("import torch\nx = torch.ones(64, 64)\ndef f(a):\n    b = a @ a\n    return b.softmax(-1)\n")
    yield made
    InteractiveShell.clear_instance()


@pytest.fixture
def measuring(shell: InteractiveShell, ceilings: Any, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    """The same, and they measure."""
    monkeypatch.setattr(notebook, "diagnose", functools.partial(diagnose, peaks=ceilings, budget_s=0.5))
    return shell


def test_a_statement(measuring: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell, ran = measuring, measuring.run_cell("%diagnose --rough f(x)")
    assert ran.success and isinstance(ran.result, Diagnosis)
    assert ran.result.program == "f(x)"
    assert {"matmul", "softmax"} <= {hotspot.op for hotspot in ran.result.hotspots}
    assert "WHERE THE TIME GOES" in capsys.readouterr().out  # as IPython displays it
    shown, _ = shell.display_formatter.format(ran.result)
    assert shown["text/html"].startswith("<style>") and "Diagnosis(" not in shown["text/plain"]


def test_lines_are_those_of_cells(measuring: InteractiveShell) -> None:
    ran = measuring.run_cell("%%diagnose --rough\ny = x + x\nz = y @ y\n", store_history=True)
    lines = {hotspot.op: hotspot.source for hotspot in ran.result.hotspots}
    assert lines["add"].startswith("In[") and lines["add"].endswith(":1") and lines["matmul"].endswith(":2"), lines


def test_a_cell_runs_in_the_users_namespace(shell: InteractiveShell, tmp_path: Path) -> None:
    cell = "%%diagnose --rough --out deep/folder n = 3; total = 0\nfor _ in range(n):\n    y = f(x)\ntotal += 1\n"
    ran = shell.run_cell(cell)
    assert ran.success and ran.result.program == "the cell"
    assert shell.user_ns["n"] == 3 and shell.user_ns["total"] > 1 and "y" in shell.user_ns
    kept = (tmp_path / "deep" / "folder" / "notebook.json").read_text(encoding="utf-8")
    assert from_json(Diagnosis, kept) == ran.result
    assert "</html>" in (tmp_path / "deep" / "folder" / "notebook.html").read_text(encoding="utf-8")


def test_what_the_user_raises_is_shown_from_his_own_lines(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell("def g(a):\n    raise ValueError('mine')\n")
    ran = shell.run_cell("%diagnose g(x)")
    said = "".join(capsys.readouterr())
    assert not ran.success and isinstance(ran.error_in_exec, ValueError)
    assert "ValueError: mine" in said and "raise ValueError('mine')" in said
    assert "kernelworks/" not in said


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%diagnose", "there is no statement"),
        ("%diagnose --rough", "there is no statement"),
        ("%%diagnose\n \n", "the cell is empty"),
        ("%diagnose --budget much f(x)", "'much' is no number of seconds above 0"),
        ("%diagnose --budget -1 f(x)", "no number of seconds above 0"),
        ("%diagnose --budget nan f(x)", "no number of seconds above 0"),
        ("%diagnose --budget", "expected one argument"),
        ("%diagnose --fixx f(x)", "unrecognized arguments: --fixx"),
        ("%diagnose --out 'a f(x)", "No closing quotation"),
        ("%%diagnose\nimport asyncio\nawait asyncio.sleep(0)\n", "`await` outside a function"),
        ("%diagnose --help", "--budget SECONDS"),
    ],
)
def test_what_is_asked_wrongly_is_one_line(
    cell: str, words: str, shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = shell.run_cell(cell)
    said = capsys.readouterr().out
    assert ran.success and ran.result is None
    assert said.startswith("kernelworks: ") and words in said
    assert "Traceback" not in said


def test_a_statement_keeps_its_own_dashes_and_quotes(shell: InteractiveShell) -> None:
    ran = shell.run_cell("""%diagnose --rough -- -x + f(x) if '--fix' != "it's" else x""")
    assert ran.success and ran.result.program.startswith("-x + f(x) if '--fix'")


def test_what_diagnose_refuses_is_one_line(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notebook, "diagnose", diagnose)
    assert shell.run_cell("%diagnose --fix --allow bf17 f(x)").success
    assert "kernelworks: allow takes tf32" in capsys.readouterr().out


def test_a_busy_machine_and_a_folder_that_cannot_be_written(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert shell.run_cell("%diagnose --rough --out file/deeper f(x)").success
    assert "kernelworks: could not write file/deeper/notebook.html" in capsys.readouterr().out

    def busy(*args: Any, **kwargs: Any) -> None:
        raise Ambiguous(0.5, "the peaks")

    monkeypatch.setattr(notebook, "diagnose", busy)
    assert shell.run_cell("%diagnose f(x)").success
    assert "or with --rough" in capsys.readouterr().out


def test_a_syntax_error_is_the_users(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(shell.run_cell("%diagnose f(").error_in_exec, SyntaxError)
    assert isinstance(shell.run_cell("%%diagnose\nif x\n").error_in_exec, SyntaxError)


def test_loading_twice(shell: InteractiveShell) -> None:
    assert shell.run_cell("%reload_ext kernelworks").success and shell.run_cell("%diagnose --rough f(x)").success


@pytest.mark.parametrize(
    ("cell", "times"),
    [
        ("%diagnose --rough f(x)", 1),
        ("%diagnose --rough f(x)\ny = 1", 1),
        ("for _ in range(2):\n    %diagnose --rough f(x)\n", 2),
        ("found = %diagnose --rough f(x)\ny = 1", 0),
    ],
)
def test_a_report_is_displayed_once_wherever_its_line_stands(
    cell: str, times: int, shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.run_cell(cell).success
    assert capsys.readouterr().out.count("WHERE THE TIME GOES") == times


def test_the_next_step_is_a_magic_too(shell: InteractiveShell, diagnosis: Diagnosis) -> None:
    def first(cell: str) -> str:
        ran = shell.run_cell(cell)
        return next_steps(dataclasses.replace(ran.result, fix=None, rough=True))[0].command[0]

    assert first("%diagnose --rough --allow tf32 f(x)") == "%diagnose --fix --rough --allow tf32 f(x)"
    assert first("%%diagnose --rough n = 3\ny = f(x)\n") == "%%diagnose --fix --rough n = 3"


def test_records_show_themselves(shell: InteractiveShell, tmp_path: Path) -> None:
    first = shell.run_cell("%diagnose --rough f(x)").result
    shell.user_ns["record"] = str(first.save(tmp_path / "a.json"))
    ran = shell.run_cell("import kernelworks as kw\nkw.compare(record, record)")
    shown, _ = shell.display_formatter.format(ran.result)
    assert "0 slower, 0 faster" in shown["text/plain"] and "<table" in shown["text/html"]
    shown, _ = shell.display_formatter.format(shell.run_cell("kw.explain('gelu', x)").result)
    assert shown["text/plain"].startswith("call") and "<table" in shown["text/html"]
