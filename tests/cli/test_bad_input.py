"""Every verb checks what it is given before it compiles, measures or runs anything; each wrong word is exit code 2."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kernelworks.cli import app, main
from kernelworks.cli.files import writable, writable_folder
from kernelworks.profile.module_names import may_define, missing_arguments
from kernelworks.records import Diagnosis, Peaks

PROGRAM = """
import os
os.close(os.open("ran", os.O_CREAT))

def step():
    pass

def takes(x, *, y=1, z):
    pass

class Holder:
    def method(self):
        def inner():
            pass
"""

# What is given, and what the one line says of it.
WRONG: tuple[tuple[str, str], ...] = (
    ("show nofile.json", "No such file"),
    ("show junk.json", "junk.json"),
    ("show plan.json", "is the plan of a fix"),
    ("verify zzz", "no op is named 'zzz'"),
    ("verify softmax.zzz", "got 'zzz'"),
    ("verify softmax. --missing", "give OP or OP.KERNEL"),
    ("verify .avx2", "no op is named ''"),
    ("verify softmax.zzz --missing", "got 'zzz'"),
    ("verify softmax --case zzz", "no case of softmax is named 'zzz'"),
    ("verify softmax --dtype zzz", "got 'zzz'"),
    ("diagnose prog.py:nofn", "prog.py has no function 'nofn'"),
    ("diagnose prog.py:inner", "prog.py has no function 'inner'"),
    ("diagnose prog.py:takes", "must take no arguments, got x, z"),
    ("diagnose prog.py:Holder.method", "must name a function of the file"),
    ("diagnose -m prog:nofn", "prog has no function 'nofn'"),
    ("diagnose prog.py:stp", "has no function 'stp'; did you mean step?"),
    ("diagnose nofile.py", "no file 'nofile.py'"),
    ("diagnose prg.py", "no file 'prg.py'; did you mean prog.py?"),
    ("diagnose prog", "no file 'prog'; did you mean prog.py?"),
    ("diagnose -m nomodule", "got 'nomodule'"),
    ("diagnose .", "got the folder"),
    ("diagnose prog.py:step --fix --allow bf16,zzz", "got 'zzz'"),
    ("diagnose prog.py:step --allow bf16", "--allow is of a fix"),
    ("diagnose prog.py:step --budget 3", "--budget is of a fix"),
    ("diagnose prog.py:step --plan junk.json", "--plan is of a fix"),
    ("diagnose prog.py:step --patch p.diff", "--patch is of a fix"),
    ("diagnose prog.py:step --fix --budget nan", "finite number of seconds"),
    ("diagnose prog.py:step --fix --plan nofile", "No such file"),
    ("diagnose prog.py:step --fix --plan junk.json", "plan must be"),
    ("diagnose prog.py:step --counters", "no CUDA device"),
    ("bench zzz", "no op is named 'zzz'"),
    ("bench softmax --case zzz", "got zzz"),
    ("bench --kernel avx512_bf16", "got 'avx512_bf16'"),
    ("bench softmax --device tpu", "got 'tpu'"),
    ("autotune softmax zzz", "no op is named 'zzz'"),
    ("autotune prog.py:nofn", "prog.py has no function 'nofn'"),
    ("autotune softmax --kernel triton", "need --configs"),
    ("autotune softmax --device tpu", "got 'tpu'"),
    ("explain zzz", "no op is named 'zzz'"),
    ("explain layernrm", "no op is named 'layernrm'; did you mean layer_norm"),
    ("explain softmax 4y4", "not a shape"),
    ("explain softmax 4x4:float32 1 --dtype zzz", "got 'zzz'"),
    ("explain softmax 4x4 nonsense=1", "no argument 'nonsense'"),
    ("swap prog.py", "FILE.py:FUNCTION"),
    ("swap prog.py:nofn", "prog.py has no function 'nofn'"),
    ("learn zzz", "got 'zzz'"),
    ("experiment zzz", "no experiment is called 'zzz'"),
    ("descend prog.py:nofn", "prog.py has no function 'nofn'"),
    ("descend nofile.py", "no file 'nofile.py'"),
    ("climb zzz", "there is no ladder 'zzz'"),
    ("climb cpu-sgemm --rung 99", "got 99"),
    ("climb cpu-sgemm cpu-gemv-q8", "one ladder at a time"),
    ("climb new", "give your ladder a name"),
    ("climb new x --device tpu", "got 'tpu'"),
    ("map zzz", "no op is named 'zzz'"),
    ("map zzz --stale", "no op is named 'zzz'"),
    ("machine --device tpu", "got 'tpu'"),
    ("compare nofile junk.json", "No such file"),
    ("compare junk.json junk.json --fail-if-slower 3", "a percentage such as 3%"),
    ("predictions --optimization zzz", "no optimization is named 'zzz'"),
    ("judge nofile.py -p softmax", ""),
    ("judge prog.py -p nofile.py", "No such file"),
    ("judge prog.py -p softmax --over zzz", ""),
    ("check-problem softmax nofile.py", "No such file"),
    ("check-problem softmax --device tpu", "got 'tpu'"),
    ("search nofile.py", "No such file"),
    ("search softmax:zzz", "no case 'zzz'"),
    ("search softmax --proposers zzz", "zzz"),
    ("search softmax --over zzz", "got 'zzz'"),
    ("search softmax --parent nofile", "No such file"),
    ("search softmax --budget -1", "above 0"),
    ("search softmax --with zzz", "PROPOSER.NAME=VALUE"),
    ("search softmax --with zzz.a=1", "zzz"),
    ("cache --clear nonsense", "no part of the cache is named 'nonsense'"),
    ("export nofile", "No such file"),
    ("export junk.json --format zzz", "got 'zzz'"),
    ("export junk.json --json", "--json needs --out"),
)


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in which nothing may be compiled, measured or started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "prog.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "junk.json").write_text("{}", encoding="utf-8")
    (tmp_path / "plan.json").write_text('{"kernelworks_plan": 1, "candidates": []}', encoding="utf-8")
    start = subprocess.Popen.__init__

    def refuse(self: Any, command: Any, *given: Any, **more: Any) -> None:
        if command[0] != "uname":  # that torch asks once
            raise AssertionError(f"started {command}")
        start(self, command, *given, **more)

    def measured(*given: Any, **more: Any) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(importlib.import_module("kernelworks.measure.peaks.survey"), "measure", measured)
    return tmp_path


@pytest.mark.parametrize(("given", "said"), WRONG, ids=[given for given, _ in WRONG])
def test_a_wrong_word_is_said_before_anything_is_done(given: str, said: str, folder: Path) -> None:
    result = cli(*given.split())
    assert result.exit_code == 2, (result.output, result.exception)
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert not (folder / "ran").exists()


def test_an_option_of_the_script_is_told_where_it_goes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["diagnose", "prog.py", "--epochs", "3"])
    said = capsys.readouterr().err
    assert "--epochs" in said and "a script's own arguments go after `--`" in said
    with pytest.raises(SystemExit, match="2"):
        main(["diagnose", "prog.py", "--steps", "3"])
    assert "--help" not in capsys.readouterr().err  # the parser's guess, which nobody meant


def test_every_verb_is_in_the_table() -> None:
    from kernelworks.cli import VERBS

    assert {given.split()[0] for given, _ in WRONG} == set(VERBS)


# ---------------------------------------------------------------- functions by the text of a file


@pytest.mark.parametrize(
    "text",
    [
        "def name(): pass", "async def name(): pass", "class name: pass", "name = 1", "name: int = 1", "import name",
        "import a as name", "import name.b", "from a import name", "from a import b as name", "from a import *",
        "if x:\n    def name(): pass", "try:\n    pass\nexcept E as name:\n    pass", "with a as (b, name): pass",
        "for name in a: pass", "(name := 1)", "print([name := 1])", "@d(name := 1)\ndef f(): pass",
        "def f():\n    global name\n    name = 1", "globals()['name'] = 1", "exec('def name(): pass')",
        "setattr(m, 'name', 1)", "setattr(m, other, 1)", "vars()['name'] = 1",
        "def __getattr__(n): pass", "sys.modules[__name__].name = 1",
        "match a:\n    case [*name]: pass", "match a:\n    case {'b': 1, **name}: pass", "def f(a=(name := 1)): pass",
        "def broken(:",
    ],
)  # fmt: skip
def test_what_a_file_may_define(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_text(text, encoding="utf-8")
    assert may_define(path, "name")


@pytest.mark.parametrize(
    "text",
    [
        "", "def other(): pass", "name()", "def f():\n    def name(): pass", "class C:\n    name = 1", "import a.name",
        "a.name = 1", "lambda: (name := 1)", "def f(name): pass", "'name = 1'", "model.eval()", "vars(arguments)",
        "for m in model.modules(): m.__dict__.update(a=1)", "setattr(m, 'other', 1)",
    ],
)  # fmt: skip
def test_what_a_file_cannot_define(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_text(text, encoding="utf-8")
    assert not may_define(path, "name")


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("def name(a, b=1, *c, d, e=2, **f): pass", ["a", "d"]),
        ("def name(a, /, b): pass", ["a", "b"]),
        ("def name(a=1): pass", []),
        ("@decorated\ndef name(a): pass", []),
        ("def name(a): pass\nname = partial(name, 1)", []),
        ("def name(a): pass\ndef f():\n    global name", []),
        ("if x:\n    def name(a): pass\nelse:\n    def name(): pass", []),
        ("class name:\n    def __init__(self, a): pass", []),
        ("def name(a): pass\nname.__defaults__ = (1,)\nexec('')", []),
    ],
)
def test_arguments_that_a_function_needs(text: str, needed: list[str], tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_text(text, encoding="utf-8")
    assert missing_arguments(path, "name") == needed


# ---------------------------------------------------------------- files that cannot be written


def test_nothing_is_left_behind_by_asking(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("kept", encoding="utf-8")
    assert writable(tmp_path / "a" / "b" / "page.html") == tmp_path / "a" / "b" / "page.html"
    assert writable_folder(tmp_path / "c" / "d") == tmp_path / "c" / "d"
    assert writable(tmp_path / "there") == tmp_path / "there"
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize("place", ["file/page.html", "file/a/page.html", ".", "x" * 300])
def test_what_cannot_be_written_is_said(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert writable(tmp_path / place) is None
    assert writable(None) is None
    said = capsys.readouterr().err
    assert said.count("cannot write") == 1 and "this file will be missing" in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def put(monkeypatch: pytest.MonkeyPatch, module: str, name: str, value: Callable[..., Any]) -> None:
    monkeypatch.setattr(importlib.import_module(module), name, value)


def test_a_diagnosis_is_printed_where_no_file_can_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, diagnosis: Diagnosis
) -> None:
    told: list[str] = []

    def run(*given: Any, **more: Any) -> Diagnosis:
        told.append("run")
        return dataclasses.replace(diagnosis, fix=None)

    put(monkeypatch, "kernelworks.diagnose", "diagnose_script", run)
    result = cli("diagnose", "prog.py:step", "--out", "junk.json/out")
    assert result.exit_code == 0, result.output
    assert told == ["run"] and "no files will be written" in result.stderr and "the page:" not in result.stderr
    assert "This program runs at 38%" in result.stdout


def test_other_verbs_print_where_no_file_can_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ceilings: Peaks
) -> None:
    put(monkeypatch, "kernelworks.measure.peaks", "get_peaks", lambda *given, **more: ceilings)
    put(monkeypatch, "kernelworks.build.native", "fallback_reason", lambda: "")
    for given in (
        ("machine", "--html", "junk.json/m.html", "--device", "cpu"),
        ("predictions", "--html", "junk.json/p"),
    ):
        result = cli(*given)
        assert result.exit_code == 0, result.output
        assert "this file will be missing" in result.stderr and result.stdout


@pytest.mark.parametrize("given", ["map --markdown junk.json/m.md", "export junk.json --out junk.json/e"])
def test_a_verb_whose_result_is_the_file_fails_at_once(given: str, folder: Path) -> None:
    result = cli(*given.split())
    assert result.exit_code == 1
    assert "cannot write" in result.stderr and not result.stdout
