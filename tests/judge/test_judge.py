"""The verb, its exit codes and its record; the clock's arithmetic; what physics refuses; how values pass."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from attacked import PROBLEMS, candidate
from typer.testing import CliRunner

from kernelworks import judge as judging
from kernelworks.cli import app
from kernelworks.judge import Budget, pacing, physics
from kernelworks.judge.arm import LAYOUTS
from kernelworks.judge.values import Foreign, leaves, packed, unpacked
from kernelworks.judge.wire import Memory, tensors_into
from kernelworks.records import Ceilings, from_json, to_json
from kernelworks.report.judge import sentence
from kernelworks.verdicts import Judgement

LITTLE = Budget(truth_s=0.5, most_cases=6, many=12, many_s=0.5, looks=0, shapes=0)
EXACT = "return self.right(x)"


@pytest.fixture(scope="module")
def record(ceilings: Ceilings, tmp_path_factory: pytest.TempPathFactory) -> Judgement:
    folder = tmp_path_factory.mktemp("judged")
    (folder / "norm.py").write_text(PROBLEMS["norm"], encoding="utf-8")
    (folder / "mine.py").write_text(candidate("norm", EXACT), encoding="utf-8")
    return judging(folder / "mine.py", folder / "norm.py", budget=LITTLE, ceilings=ceilings, threads=1)


def test_a_judgement_says_what_it_was_made_of(record: Judgement) -> None:
    assert (record.verdict, record.reasons) == ("right", ())
    assert record.worst is not None and 0 < record.worst <= 1
    assert record.calls >= 12 and record.elements >= 12 * 4800
    assert [p.arm for p in record.paces] == ["eager", "candidate"] and [s.over for s in record.speeds] == ["eager"]
    assert record.bound and record.limit_s and "given" in record.draws
    assert from_json(Judgement, to_json(record)) == record
    assert "right" in sentence(record) and "over eager" in sentence(record)


def test_a_judgement_is_a_page(record: Judgement, tmp_path: Path) -> None:
    assert "does what the problem asks" in record.save(tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("verdict", "code"), [("right", 0), ("refused", 1), ("unsound", 3), ("undecided", 3)])
def test_the_exit_code_is_the_verdict(
    verdict: str, code: int, record: Judgement, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    made = dataclasses.replace(record, verdict=verdict)
    monkeypatch.setattr(importlib.import_module("kernelworks.judge"), "judge", lambda *_, **__: made)
    result = CliRunner().invoke(app, ["judge", "a.py", "--problem", "b.py", "--json"])
    assert result.exit_code == code
    assert json.loads(result.stdout)["verdict"] == verdict


def test_a_file_that_is_no_problem_is_usage(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["judge", str(tmp_path / "a.py"), "--problem", str(tmp_path / "a.py")])
    assert result.exit_code == 2


def test_a_time_is_what_is_left_when_an_empty_answer_is_taken_off() -> None:
    ours, theirs = [1.1, 1.2, 1.1, 1.15] * 5, [2.1, 2.2, 2.1, 2.15] * 5
    assert pacing.pace("candidate", ours, 0.1).median_s == pytest.approx(1.025)
    found = pacing.speed("eager", theirs, ours, 0.1)
    assert found.low <= found.ratio <= found.high and found.ratio == pytest.approx(2.0, abs=0.05)
    assert not found.ambiguous and pacing.speed("eager", theirs, [0.2, 3.0] * 10, 0.1).ambiguous


def test_what_is_quicker_than_its_bytes_is_against_physics(ceilings: Ceilings) -> None:
    work: dict[str, Any] = {"calls": [["aten::add", 1e7, 0.0, "float32", "exp"]], "read": [4e9, 0], "written": 4e9}
    least = physics.limit(work, 1, ceilings)
    assert least.broken_by(0.5 * least.moving_s) and not least.broken_by(least.seconds)
    assert least.seconds > least.moving_s > 0.09  # 4 GB at 42 GB/s
    products = physics.limit({**work, "calls": [["aten::mm", 1e12, 0.0, "float32", "exp"]]}, 1, ceilings)
    assert products.less_arithmetic(1.0) and not products.less_arithmetic(10.0)


def test_values_pass_as_they_are() -> None:
    value = {"a": [torch.ones(2), 3], "b": (None, True, "word", 0.5)}
    held: list[torch.Tensor] = []
    again = unpacked(json.loads(json.dumps(packed(value, held))), held.__getitem__)
    assert again["a"][0] is held[0] and again["a"][1:] == [3] and again["b"] == value["b"]
    assert len(leaves(value)) == 6
    with pytest.raises(Foreign, match="a object"):
        packed(object(), [])


def test_tensors_lie_in_memory_that_two_processes_see() -> None:
    given = [torch.randn(3, 5), torch.arange(7), torch.zeros(0, 4), torch.tensor(2.0)]
    memory, spots = tensors_into(given)
    other = Memory.of(memory.descriptor)
    assert all(torch.equal(other.tensor(spot), value) for spot, value in zip(spots, given, strict=True))
    with pytest.raises(ValueError, match="does not lie"):
        memory.tensor((memory.size - 4, (2,), (1,), "float32"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_strides_hold_every_element_once(layout: str) -> None:
    strides, off = LAYOUTS[layout]((3, 4, 5))
    at = {sum(i * s for i, s in zip(index, strides, strict=True)) for index in torch.ones(3, 4, 5).nonzero().tolist()}
    assert len(at) == 60 and off in (0, 1)
