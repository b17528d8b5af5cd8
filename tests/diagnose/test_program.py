"""A program is a script with its arguments, a function of a file, or a function."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from kernelworks.profile.program import from_function, from_target

SCRIPT = """
import sys, pathlib
print("ran as", __name__, sys.argv[1:])
log = pathlib.Path(sys.argv[0]).with_suffix(".log")
log.write_text((log.read_text() if log.exists() else "") + " ".join(sys.argv[1:]) + "\\n")
if "fail" in sys.argv:
    sys.exit(3)
"""
MODULE = """
import beside
count = 0
def work():
    global count
    count += 1
    return beside.VALUE + count
def needs(x):
    return x
number = 7
"""


def test_script_runs_again_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    program = from_target(str(path), ["--lr", "0.1"])
    argv = list(sys.argv)
    program.run()
    program.run()
    assert (tmp_path / "train.log").read_text() == "--lr 0.1\n" * 2
    assert capsys.readouterr().out == "ran as __main__ ['--lr', '0.1']\n"  # once: later output is held back
    assert sys.argv == argv
    assert program.name == "train.py --lr 0.1"


@pytest.mark.parametrize("text", ["os.chdir(made)\n    os.rmdir(made)", "os.rmdir(os.getcwd())"])
def test_a_program_that_removes_the_folder_that_it_works_in(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    path = tmp_path / "removes.py"
    path.write_text(f"import os, tempfile\ndef work():\n    made = tempfile.mkdtemp()\n    {text}\n    return 42\n")
    program = from_target(f"{path}:work")
    assert program.run() == 42
    if here.exists():
        assert Path.cwd() == here and program.run() == 42


@pytest.mark.parametrize("start", ["signal.alarm(1)", "signal.setitimer(signal.ITIMER_REAL, 0.3)"])
def test_a_timer_that_a_run_leaves_ends_with_it(start: str, tmp_path: Path) -> None:
    """Else it ends the process, or interrupts what is done between two runs."""
    path = tmp_path / "timed.py"
    path.write_text(f"import signal\ndef work():\n    {start}\n    return signal.getitimer(signal.ITIMER_REAL)[0]\n")
    rang: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rang.append(number))
    tests_own = signal.setitimer(signal.ITIMER_REAL, 0.0)
    try:
        program = from_target(f"{path}:work")
        for _ in range(2):
            assert program.run() > 0 and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *tests_own)
    assert not rang


def test_script_that_exits_with_a_code(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    with pytest.raises(RuntimeError, match=r"train\.py exited with 3"):
        from_target(str(path), ["fail"]).run()


def test_function_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 40\n")
    path = tmp_path / "prog.py"
    path.write_text(MODULE)
    search = list(sys.path)
    program = from_target(f"{path}:work")
    assert [program.run(), program.run()] == [41, 42]
    assert program.name == "prog.py:work"
    assert sys.path == search


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        ("missing", AttributeError, "no function 'missing'"),
        ("number", TypeError, "must be a function, got int"),
        ("needs", TypeError, "must take no arguments, got x"),
    ],
)
def test_wrong_function(tmp_path: Path, function: str, error: type[Exception], text: str) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 40\n")
    path = tmp_path / "prog.py"
    path.write_text(MODULE)
    with pytest.raises(error, match=text):
        from_target(f"{path}:{function}")


def test_missing_file() -> None:
    with pytest.raises(FileNotFoundError, match=r"no file 'nowhere\.py'"):
        from_target("nowhere.py:work")


def test_function_with_arguments() -> None:
    program = from_function(lambda a, b: a + b, (1, 2), "sum")
    assert (program.name, program.run()) == ("sum", 3)


def test_not_callable() -> None:
    with pytest.raises(TypeError, match="fn must be callable, got int"):
        from_function(3)  # type: ignore[arg-type]
