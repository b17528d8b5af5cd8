"""``make demo``: what it says last, and what it does on a busy machine."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import demo
from kernelworks.records.fix import Fix

FIRST, SECOND = demo.PROGRAMS


def record(before: float, after: float, *, predicted: float | None = 0.1, noise: float = 0.01, **more: Any) -> Any:
    """A diagnosis's document with such a fix."""
    made = Fix(
        (), (), before, after, predicted, before - after, 0.0, 0.0, agrees=True, rounds=more.pop("rounds", 5),
        noise_s=noise, **more,
    )  # fmt: skip
    return {"fix": json.loads(json.dumps(dataclasses.asdict(made)))}


WON, LOST = record(0.3, 0.1, predicted=0.19, patch="a patch"), record(0.3, 0.3, rounds=0)


def test_its_programs_are_there() -> None:
    for program in demo.PROGRAMS:
        file, _, function = program.entry.partition(":")
        path = Path(demo.__file__).parents[1] / "examples" / file
        assert path.stem == program.name
        spec = importlib.util.spec_from_file_location(program.name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        getattr(module, function)()


def test_a_gain_stands_beside_what_was_predicted() -> None:
    line = demo.result_line(FIRST, WON)
    assert "300 ms -> 100 ms, 3.00x" in line and "predicted 190 ms, got 200 ms" in line
    assert f"out/{FIRST.file}.html" in line and "rough" not in line
    assert "predicted unknown on this machine, got" in demo.result_line(FIRST, record(0.3, 0.1, predicted=None))
    assert ", rough" in demo.result_line(FIRST, record(0.3, 0.1, rough=True))


@pytest.mark.parametrize(
    "lost", [LOST, record(0.3, 0.299), record(0.3, 0.1, refused="its outputs differ"), {}, {"fix": None}]
)
def test_what_got_no_faster_is_searched_longer(lost: Any) -> None:
    assert "no optimization was faster" in demo.result_line(SECOND, lost)
    commands = demo.next_commands([(FIRST, WON), (SECOND, lost)])
    assert len(commands) == 3
    assert commands[0][0].endswith(f"diagnose examples/{SECOND.entry} --fix --budget {4 * SECOND.budget_s}")
    assert "YOUR_PROGRAM.py" in commands[2][0]


def test_what_won_is_kept() -> None:
    commands = [command for command, _ in demo.next_commands([(FIRST, WON), (SECOND, WON)])]
    assert commands[0] == f"git apply out/{FIRST.file}.patch" and len(commands) == 3
    assert any("YOUR_PROGRAM.py" in command for command in commands)


def test_a_busy_machine_gets_rough_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        ran.append(command[3:])
        return SimpleNamespace(returncode=0 if "--rough" in command else demo.AMBIGUOUS)

    monkeypatch.setattr(subprocess, "run", run)
    made = demo.Demo(None)
    assert made.run("machine") == 0 and made.run("diagnose") == 0
    assert ran == [["machine"], ["machine", "--rough"], ["diagnose", "--rough"]]
