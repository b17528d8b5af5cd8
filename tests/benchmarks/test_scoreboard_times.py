"""The scoreboard's times, a GPU's as far as it goes without one: what is right, sound and timed, and the table."""

from __future__ import annotations

import argparse
import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelworks.contract.bounds import NoBoundError

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PROBLEM = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return {forward}


rows = 64


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("scoreboard_race")


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("scoreboard_times")


def found(
    race: ModuleType, folder: Path, forward: str, compiler: Any, inputs: str = "torch.randn(rows, 256)",
    device: Any = None,
) -> Any:  # fmt: skip
    path = folder / "7_x.py"
    path.write_text(PROBLEM.format(forward=forward, inputs=inputs))
    modes = {"default": {"backend": compiler}}
    with torch.no_grad():
        return race.found_of(path, device or still(race)(), None, modes, turn=lambda: None)


def still(race: ModuleType) -> Any:
    """The CPU, whatever others do there."""

    class Still(race.Cpu):  # type: ignore[name-defined,misc]
        window_s = 0.0

        def is_loud(self, before: Any) -> bool:
            return False

    return Still


def as_it_is(graph: Any, inputs: Any) -> Any:
    return graph.forward


def off(graph: Any, inputs: Any) -> Any:
    return lambda *args: tuple(value * (1 + 1e-4) for value in graph(*args))


def test_each_variant_is_held_against_the_bound_and_what_is_wrong_has_no_time(race: ModuleType, tmp_path: Path) -> None:
    right = found(race, tmp_path, "torch.softmax(x, -1)", as_it_is)
    assert right["verdict"] == "sound" and right["findings"] == [] and right["failed_variants"] == {}
    assert right["seconds"].keys() == right["worst"].keys() == {"eager", "default", "ours"}
    assert right["over"].keys() == {"eager", "default"} and max(right["worst"].values()) <= 1
    assert right["ops"] == ["softmax"] and right["rounds"] >= race.FEW_ROUNDS
    wrong = found(race, tmp_path, "torch.softmax(x, -1)", off)
    assert wrong["seconds"].keys() == {"eager", "ours"} and "times the bound off" in wrong["failed_variants"]["default"]


@pytest.mark.parametrize(
    ("forward", "inputs", "reason"),
    [
        ("torch.relu(x)", "torch.rand(rows, 256)", "input 0 itself is a right answer"),
        ("x.mean() * 0.0 + torch.zeros(rows)", "torch.rand(rows, 256)", "zeros are a right answer"),
        ("x + torch.rand_like(x)", "torch.rand(rows, 256)", "its answer is drawn anew in each"),
        ("x / (x - x)", "torch.rand(rows, 256)", "its answer is not finite"),
    ],
)
def test_a_reference_is_sound_or_it_is_said_why_not(
    race: ModuleType, tmp_path: Path, forward: str, inputs: str, reason: str
) -> None:
    row = found(race, tmp_path, forward, as_it_is, inputs)
    assert row["verdict"] == "unsound" and any(reason in one for one in row["findings"]), row["findings"]


def test_a_problem_that_does_not_fit_is_halved_and_one_without_memory_says_so(race: ModuleType, tmp_path: Path) -> None:
    class Small(still(race)):  # type: ignore[misc]
        bytes = 16 * 80_000

    halved = found(race, tmp_path, "torch.softmax(x, -1)", as_it_is, device=Small())
    assert halved["sizes"] == {"rows": 32}

    def full() -> Any:
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        race.patiently(Small(), full)


def test_a_problem_whose_bound_does_not_fit_memory_is_halved(
    race: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bound_of(module: Any, given: list[torch.Tensor]) -> Any:
        if given[0].shape[0] > 32:
            raise NoBoundError("div: CUDA out of memory") from torch.OutOfMemoryError("CUDA out of memory")
        return as_it_was(module, given)

    class Tight(still(race)):  # type: ignore[misc]
        bytes = 16 * 150_000

    as_it_was = race.bound_of
    monkeypatch.setattr(race, "bound_of", bound_of)
    assert found(race, tmp_path, "torch.softmax(x, -1)", as_it_is, device=Tight())["sizes"] == {"rows": 32}


def test_windows_in_which_others_used_the_cores_are_thrown_away(race: ModuleType, tmp_path: Path) -> None:
    said: list[bool] = []

    class Loud(still(race)):  # type: ignore[misc]
        loud = (True, False, False)

        def noise(self) -> None:
            said.append(self.loud[len(said) % len(self.loud)])

        def is_loud(self, before: Any) -> bool:
            return said[-1]

    row = found(race, tmp_path, "torch.softmax(x, -1)", as_it_is, device=Loud())
    assert row["rounds"] == said.count(False) and said.count(True) > 0
    Loud.loud = (True,)
    with pytest.raises(race.Ambiguous):
        found(race, tmp_path, "torch.softmax(x, -1)", as_it_is, device=Loud())


def test_an_answer_of_another_shape_or_with_a_nan_is_as_wrong_as_can_be(race: ModuleType) -> None:
    exact, most = [torch.tensor([1.0, math.nan, math.inf, 0.0])], [torch.tensor([0.5, 0.0, 0.0, 0.0])]
    assert race.worst_share([torch.tensor([1.25, math.nan, math.inf, 0.0])], exact, most) == 0.5
    assert race.worst_share([torch.tensor([1.0, 1.0, math.inf, 0.0])], exact, most) == math.inf
    assert race.worst_share([torch.tensor([math.nan, math.nan, math.inf, 0.0])], exact, most) == math.inf
    assert race.worst_share([torch.tensor([1.0])], exact, most) == math.inf


def test_the_gpus_clock_fills_l2_before_each_call_and_waits_for_its_end(
    race: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelworks.measure.clock import cuda_events

    told: list[str] = []

    class Event:
        def record(self) -> None:
            told.append("event")

        def elapsed_time(self, end: Any) -> float:
            return 3.0

    monkeypatch.setattr(cuda_events, "Evictor", lambda here: lambda: told.append("fill"))
    monkeypatch.setattr(cuda_events, "cuda_event", Event)
    monkeypatch.setattr(importlib.import_module("kernelworks.machine"), "gpu", lambda: None)
    for name, value in (("get_device_name", "a GPU"), ("mem_get_info", (90, 100)), ("memory_reserved", 5)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("wait"))
    # another test may have loaded torch.testing._internal, which forbids it
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    tf32 = torch.backends.cudnn.allow_tf32
    device = race.Gpu()
    assert not torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = tf32
    told.clear()
    assert device.seconds(lambda: told.append("call")) == 3.0e-3
    assert told == ["fill", "event", "call", "event", "wait"]
    assert not device.is_crowded()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (50, 100))
    assert device.is_crowded()


def test_problems_are_raced_in_processes_and_what_fails_is_told(
    board: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = tmp_path / "stub.py"
    stub.write_text(
        "import json, pathlib, sys\n"
        "from side_by_side import wait_for_turn\n"
        "name = pathlib.Path(sys.argv[1]).stem\n"
        "wait_for_turn()\n"
        "found = {'failed': 'no luck'} if name == 'b' else {'verdict': 'sound', 'findings': [], 'sizes': {}}\n"
        "pathlib.Path('result.json').write_text(json.dumps(found))\n"
    )
    monkeypatch.setattr(board, "RACE", stub)
    monkeypatch.setattr(board, "measuring_alone", lambda say: __import__("contextlib").nullcontext())
    monkeypatch.setattr(board, "end_on_sigterm", lambda: None)
    asked = argparse.Namespace(seconds=120.0, until=math.inf, device="cpu", peaks="", most=60.0, jobs=2, threads=1)
    rows: dict[str, Any] = {}
    board.raced({f"level1/{name}": Path(f"{name}.py") for name in "abc"}, asked, rows.__setitem__)
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "level1/a": "sound", "level1/b": board.FAILED, "level1/c": "sound",
    }  # fmt: skip
    assert rows["level1/b"]["findings"] == ["no luck"] and board.said(rows["level1/b"]).startswith("failed")


def test_the_table_counts_what_reaches_torch(board: ModuleType) -> None:
    def row(number: int, ratio: float, **more: Any) -> dict[str, Any]:
        return {
            "problem": f"level1/{number}_x", "sizes": {}, "verdict": "sound", "findings": [], "device": "G",
            "seconds": {"eager": ratio * 1e-3, "default": 2e-3, "reduce-overhead": 4e-3, "ours": 1e-3},
            "over": {"eager": [ratio, ratio - 0.1, ratio + 0.1], "default": [2.0, 1.9, 2.1],
                     "reduce-overhead": [4.0, 3.9, 4.1]},
            "limit_s": 5e-4, "bound_by": "memory DRAM", "ops": ["relu"], "machine": "G, torch 2", "took_s": 1.0,
        } | more  # fmt: skip

    rows = [
        row(1, 4.0), row(2, 0.25), row(3, 1.0, verdict="unsound", findings=["zeros are a right answer"]),
        {"problem": "level1/4_x", "sizes": {"N": 4}, "verdict": board.FAILED, "findings": ["Error: a|b"],
         "machine": "G, torch 2", "took_s": 1.0},
    ]  # fmt: skip
    lines = board.table(rows).splitlines()
    assert lines[0] == "On G: 4 problems, 3 of them timed with every variant right, 2 of these sound. 1 failed."
    assert lines[4] == "| all that are timed | 3 | 1.00x | 2 of 3 | 2.00x | 3 of 3 | 2.00x | 1.59x eager |"
    assert lines[5] == "| sound ones | 2 | 1.00x | 1 of 2 | 2.00x | 2 of 2 | 2.00x | 2.00x eager |"
    assert lines[7] == "Of the sound ones ours reaches 50% of the limit in the median."
    assert lines[11].startswith(
        "| level1/1_x | its own | sound | 4000 us | 2000 us (default) | 1000 us | 4.00x (3.90 to"
    )
    assert lines[11].endswith("| 2.00x (1.90 to 2.10) | 50% (memory DRAM) | relu | 1 |")
    assert lines[14] == "| level1/4_x | `N=4` | failed; Error: a/b |  |  |  |  |  |  |  | 1 |"
    assert board.table([]) == "No GPU has been asked yet.\n"
