"""From a program down to its machine code."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from kernelworks import records
from kernelworks.cli import app
from kernelworks.descend.counters import sample_run
from kernelworks.descend.stack import descend
from kernelworks.descend.symbols import Mappings
from kernelworks.profile.program import from_function
from kernelworks.records.descent import Descent

PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 8))
x = torch.randn(128, 64)

def run():
    with torch.no_grad():
        return model(x)
"""
CPU_S = 0.5  # of CPU time, whatever wall clock that takes


def test_samples_come_from_the_code_that_runs() -> None:
    x = torch.randn(256, 256)

    def work() -> None:
        end = time.process_time() + CPU_S
        while time.process_time() < end:
            torch.mm(x, x)

    taken = sample_run(work)
    assert len(taken.at) >= 10 and not taken.lost  # a tick of the kernel is 10 ms at the most
    assert all(taken.begun <= at <= taken.ended for at in taken.at.tolist())
    mappings = Mappings()
    files = [mappings.locate(address).file for address in taken.addresses.tolist()]
    assert sum("torch" in file or "omp" in file or not file for file in files) > len(files) / 2


def test_each_operator_has_its_layers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 8))
    x = torch.randn(128, 64)

    def run() -> None:
        with torch.no_grad():
            model(x)

    found = descend(from_function(run), most=20, seconds=0.5)
    assert found.runs >= 1 and found.wall_s > 0
    by_shape = {one.shapes: one for one in found.operators if "linear" in one.operator or "addmm" in one.operator}
    first = next(one for shapes, one in by_shape.items() if "[128, 64]" in shapes)
    assert first.calls == 1 and first.module == "Sequential.*" and "model(x)" in first.code
    assert first.flop is not None and first.flop >= 2 * 128 * 64 * 96
    assert sum(one.samples for one in found.operators) <= found.samples
    assert all(0 <= function.share <= 1 for one in found.operators for function in one.functions)
    only = descend(from_function(run), op="gelu", seconds=0.2)
    assert {one.operator for one in only.operators} == {"aten::gelu"} and only.operators[0].op == "gelu"
    assert records.from_json(Descent, records.to_json(found)) == found


def test_an_operator_that_is_not_called_is_named() -> None:
    with pytest.raises(LookupError, match="no operator that the program calls has 'conv' in its name; it calls"):
        descend(from_function(lambda: torch.ones(8).add(1.0)), op="conv", seconds=0.1)


def test_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    runner = CliRunner()
    done = runner.invoke(app, ["descend", f"{file}:run", "--most", "2", "--seconds", "0.2", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["program"] == "program.py:run"
    record = tmp_path / "record.json"
    record.write_text(done.stdout, encoding="utf-8")
    shown = runner.invoke(app, ["show", str(record)])
    assert shown.exit_code == 0 and "dispatcher" in shown.stdout and "roofline" in shown.stdout
    missing = runner.invoke(app, ["descend", f"{file}:run", "--op", "conv", "--seconds", "0.2"])
    assert missing.exit_code == 2
