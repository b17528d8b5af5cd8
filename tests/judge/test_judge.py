"""The verb, its exit codes and its record; the clock's arithmetic; what physics refuses; how values pass."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attacked import PROBLEMS, candidate
from typer.testing import CliRunner

from kernelworks import judge as judging
from kernelworks.cli import app
from kernelworks.cli.console import guard_command
from kernelworks.contract.bounds.propagation import without_fused_kernels
from kernelworks.judge import Budget, judge_all, least_time, speed
from kernelworks.judge.inputs.dataflow import Flow
from kernelworks.judge.inputs.draws import DRAWS, about_constants, like_given, no_ones_and_zeros
from kernelworks.judge.inputs.values import ForeignValue, leaves, pack_value, unpack_value
from kernelworks.judge.process.ipc import Memory, tensors_into
from kernelworks.judge.process.pool import Nursery
from kernelworks.judge.roles.handle import _same_bits
from kernelworks.judge.roles.layout import LAYOUTS
from kernelworks.records import Peaks, from_json, to_json
from kernelworks.records.judgement import Judgement
from kernelworks.report.judge import sentence

LITTLE = Budget(reference_s=0.5, most_cases=6, many=12, many_s=0.5, looks=0, samples=0, shapes=0)
EXACT = "return self.right(x)"
LADDER = Path(__file__).resolve().parents[2] / "ladders" / "cpu-sgemm"


@pytest.fixture(scope="module")
def record(ceilings: Peaks, tmp_path_factory: pytest.TempPathFactory) -> Judgement:
    folder = tmp_path_factory.mktemp("judged")
    (folder / "norm.py").write_text(PROBLEMS["norm"], encoding="utf-8")
    (folder / "mine.py").write_text(candidate("norm", EXACT), encoding="utf-8")
    return judging(folder / "mine.py", folder / "norm.py", budget=LITTLE, peaks=ceilings, threads=1)


def test_a_judgement_says_what_it_was_made_of(record: Judgement) -> None:
    assert (record.verdict, record.reasons) == ("right", ())
    assert record.worst is not None and 0 < record.worst <= 1
    assert record.calls >= 12 and record.elements >= 12 * 4800
    assert [p.variant for p in record.paces] == ["eager", "candidate"] and [s.over for s in record.speeds] == ["eager"]
    assert record.bound and record.limit_s and "given" in record.draws
    assert from_json(Judgement, to_json(record)) == record
    assert "right" in sentence(record) and "over eager" in sentence(record)


def test_a_judgement_is_a_page(record: Judgement, tmp_path: Path) -> None:
    assert "does what the problem asks" in record.save(tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("verdict", "code"), [("right", 0), ("refused", 1), ("unsound", 3), ("undecided", 3)])
def test_the_exit_code_is_the_verdict(
    verdict: str, code: int, record: Judgement, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import importlib

    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()

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
    assert speed.pace("candidate", ours, 0.1).median_s == pytest.approx(1.025)
    found = speed.speed("eager", theirs, ours, 0.1)
    assert found.low <= found.ratio <= found.high and found.ratio == pytest.approx(2.0, abs=0.05)
    assert not found.ambiguous and speed.speed("eager", theirs, [0.2, 3.0] * 10, 0.1).ambiguous


def test_pairs_that_nobody_can_see_are_no_ratio() -> None:
    none = speed.speed("eager", [0.1] * 20, [0.1] * 20, 0.1)
    assert (none.low, none.ambiguous) == (0.0, True)
    some = speed.speed("eager", [0.1, 0.4] * 10, [0.1, 0.11] * 10, 0.1)
    assert some.low == 0.0 and some.high == pytest.approx(30.0)


def test_a_fault_of_ours_is_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("self.stride(-1) must be 1")

    monkeypatch.setattr(importlib.import_module("kernelworks.judge"), "judge", broken)
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    with pytest.raises(SystemExit) as left, guard_command(()):
        app(["judge", str(tmp_path / "a.py"), "--problem", str(tmp_path / "b.py")], standalone_mode=False)
    assert left.value.code == 70 and 70 not in importlib.import_module("kernelworks.cli.judge").CODES.values()


def test_columns_of_wider_tensors_are_compared_by_their_elements() -> None:
    wide = torch.arange(48.0).view(8, 6)
    for column in (wide[:, :1], wide[:, 1:2]):
        flat = column.reshape(-1)
        assert not flat.is_contiguous() and _same_bits(flat, flat.clone()) and not _same_bits(flat, flat + 1)


def test_what_is_quicker_than_its_bytes_is_against_physics(ceilings: Peaks) -> None:
    work: dict[str, Any] = {
        "calls": [["aten::add", 1e7, 0.0, "float32", "exp"]], "read": [4e9, 0], "needed": 4e9, "written": 4e9
    }  # fmt: skip
    least = least_time.limit(work, 2, ceilings)
    assert least.seconds > least.moving_s > 0.045 and least.alone_s > 0.09  # 4 GB at 80 and at 42 GB/s

    def broken(wall: float, cpu: float, unsure: float = 0.0) -> str:
        nothing = [0.001 - unsure, 0.001, 0.001 + unsure]
        return least.broken_by(least_time.CallTime.of([0.001 + wall], [0.001 + cpu], nothing, nothing))

    assert "reading its inputs" in broken(0.5 * least.moving_s, least.alone_s)
    assert "others work for it" in broken(least.moving_s, 0.5 * least.alone_s)
    assert not broken(least.moving_s, least.alone_s)
    assert not broken(0.5 * least.moving_s, 0.5 * least.alone_s, unsure=0.02)  # a neighbour shows in empty answers too
    some = [torch.rand(1000), torch.rand(5, 300).bfloat16(), torch.ones(7, dtype=torch.bool)]
    assert 0 < least_time.reading_s(some) < 0.1
    busy = least_time.Limit(least.whole, 1.0, 1.0, 0.0, float(sum(value.nbytes for value in some)), busy=True)
    took = least_time.CallTime(0.1, 0.0, 0.1, 0.0)
    assert busy.broken_by(took) and not busy.broken_by(took, some)  # the machine is quicker than when it was measured
    assert busy.broken_by(least_time.CallTime(0.0, 0.0, 0.0, 0.0), some)
    assert not least_time.limit({**work, "needed": 0}, 2, ceilings).broken_by(least_time.CallTime(0.0, 0.0, 0.0, 0.0))
    products = least_time.limit({**work, "calls": [["aten::mm", 1e12, 0.0, "float32", "exp"]]}, 1, ceilings)
    assert products.less_arithmetic(1.0) and not products.less_arithmetic(10.0)


PICKED = torch.arange(3)
READ: dict[str, tuple[Any, list[torch.Tensor], int]] = {
    "whole": (lambda a, b: a + b, [torch.ones(10, 4), torch.ones(10, 4)], 320),
    "a part": (lambda a: a[:2] * 2, [torch.ones(10, 4)], 32),
    "picked from": (lambda a, i: a[i] * 2, [torch.ones(10, 4), PICKED], 0),
    "thrown away": (lambda a, b: (a.exp().sum(), b * 2)[1], [torch.ones(99), torch.ones(5)], 20),
    "twice": (lambda a: a.exp() + a.sum(), [torch.ones(10)], 40),
    "windows apart": (lambda a: F.max_pool2d(a, 1, 2), [torch.ones(1, 1, 8, 8)], 0),
    "windows side by side": (lambda a: F.avg_pool2d(a, 2, 2), [torch.ones(1, 1, 8, 8)], 256),
    "a convolution": (lambda a, w: F.conv1d(a, w), [torch.ones(1, 2, 9), torch.ones(3, 2, 3)], 144),
}


@pytest.mark.parametrize("name", READ)
def test_an_input_is_read_where_an_op_reads_it_whole(name: str) -> None:
    run, inputs, most = READ[name]
    with torch.no_grad(), without_fused_kernels(), Flow() as flow:
        answer = run(*inputs)
    assert flow.needed_bytes([answer], inputs) == most


def test_values_pass_as_they_are() -> None:
    value = {"a": [torch.ones(2), 3], "b": (None, True, "word", 0.5)}
    held: list[torch.Tensor] = []
    again = unpack_value(json.loads(json.dumps(pack_value(value, held))), held.__getitem__)
    assert again["a"][0] is held[0] and again["a"][1:] == [3] and again["b"] == value["b"]
    assert len(leaves(value)) == 6
    with pytest.raises(ForeignValue, match="a object"):
        pack_value(object(), [])


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


@pytest.mark.parametrize("kept", [True, False])
def test_a_rung_of_a_ladder_is_judged(kept: bool, ceilings: Peaks, nursery: Nursery, tmp_path: Path) -> None:
    rung = LADDER / "01_naive.cpp"
    if not kept:  # a column short
        rung = tmp_path / "01_naive.cpp"
        source = (LADDER / "01_naive.cpp").read_text(encoding="utf-8")
        rung.write_text(
            source.replace("for (int64_t j = 0; j < N;", "for (int64_t j = 0; j < N - 1;"), encoding="utf-8"
        )
    (found,) = judge_all([rung], "cpu-sgemm:M=24,N=40,K=56", budget=LITTLE, peaks=ceilings, threads=1, nursery=nursery)
    assert found.verdict == ("right" if kept else "refused"), found.reasons
    assert {r.kind for r in found.reasons} == (set() if kept else {"wrong answer"})
    if kept:
        assert found.kernels == ("sgemm",) and "M=131,N=515,K=300" in found.shapes


# ---------------------------------------------------------------- other draws

ALWAYS: dict[str, Any] = {
    "triangle": lambda: torch.rand(20, 20).triu(),
    "symmetric": lambda: (lambda a: (a + a.mT) / 2)(torch.rand(20, 20)),
    "in order": lambda: torch.rand(5, 40).sort(-1).values,
    "shares": lambda: torch.rand(9, 50).softmax(-1),
    "signs": lambda: torch.randint(0, 2, (400,)).float() * 2 - 1,
}
HOLDS: dict[str, Any] = {
    "triangle": lambda a: bool((a.tril(-1) == 0).all()),
    "symmetric": lambda a: torch.equal(a, a.mT),
    "in order": lambda a: bool((a.diff() >= 0).all()),
    "shares": lambda a: bool(((a.sum(-1) - 1).abs() < 1e-5).all() and (a >= 0).all()),
    "signs": lambda a: bool((a.abs() == 1).all()),
}


@pytest.mark.parametrize("how", [name for name, draw in DRAWS.items() if draw])
@pytest.mark.parametrize("name", ALWAYS)
def test_what_every_input_has_every_draw_has(name: str, how: str) -> None:
    generator, draw = torch.Generator().manual_seed(3), DRAWS[how]
    value, other = ALWAYS[name](), ALWAYS[name]()
    assert draw is not None
    drawn = like_given(value, other, draw, generator)
    assert HOLDS[name](drawn) and drawn.shape == value.shape
    assert name == "signs" or not torch.equal(drawn, value)


def test_norms_begin_otherwise_and_everywhere_alike() -> None:
    made = []
    for _ in range(2):
        torch.manual_seed(5)
        with no_ones_and_zeros(5):
            made.append(torch.nn.LayerNorm(30))
        torch.rand(len(made))  # whatever else is drawn between
        assert about_constants(made[-1], 5) == 60
    assert torch.equal(made[0].weight, made[1].weight) and torch.equal(made[0].bias, made[1].bias)
    assert all(float(p.detach().std()) > 0.1 for p in made[0].parameters())
    assert bool((torch.nn.LayerNorm(30).weight == 1).all())
