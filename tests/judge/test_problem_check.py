"""The problem check: every problem that is not worth a score is named, with the reason, and no sound one is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from like_kernelbench import SOUND, UNSOUND, Written
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.judge.formats import read_problem
from kernelworks.judge.problem_check import check_problem
from kernelworks.judge.process.pool import Nursery
from kernelworks.judge.roles.examiner import examine_problem
from kernelworks.records import from_json
from kernelworks.records.problem_check import NOT_LOOKED, NOT_WORTH, WEAK, WORTH, Finding, ProblemCheck

MOST_BYTES, MOST_FLOP = 2.0**26, 1e9


def seen(written: Written, folder: Path, most_bytes: float = MOST_BYTES) -> dict[str, Any]:
    path = folder / "problem.py"
    path.write_text(written.text)
    return examine_problem(read_problem(path), folder / "child", most_bytes, MOST_FLOP)


# What nobody can score, and what leaves something to score.
FATAL = {
    "one_class", "own_mean", "closed_clamp", "mean_of_normed", "saturated", "all_negative", "already_positive", "drops",
    "overflows",
}  # fmt: skip
REASONS = {
    "one_class": "constant", "own_mean": "zeros", "closed_clamp": "zeros", "mean_of_normed": "rounding",
    "unused": "independent", "dead_head": "dead code", "twice_pooled": "redundant", "clamped_tanh": "redundant",
    "saturated": "constant", "all_negative": "zeros", "already_positive": "input", "drops": "random",
    "overflows": "not finite",
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_an_unsound_problem_is_named_with_its_reason(name: str, tmp_path: Path) -> None:
    findings = seen(UNSOUND[name], tmp_path)["findings"]
    assert REASONS[name] in {f["kind"] for f in findings}
    assert any(f["fatal"] for f in findings) == (name in FATAL)


# A sum of positive products and a mean over all hide what each term was off: which is said, and is no fault of theirs.
HIDES = {"deep_product", "distance"}


@pytest.mark.parametrize("name", ["dense_relu", "row_softmax", "layer_norm", "heads", "gated_cell", *sorted(HIDES)])
def test_a_sound_problem_is_not(name: str, tmp_path: Path) -> None:
    found = seen(SOUND[name], tmp_path)
    assert {f["kind"] for f in found["findings"]} == ({"precision"} if name in HIDES else set())
    passes = {g["name"] for g in found["guesses"] if g["passes"]}
    assert passes.isdisjoint({"zeros", "a constant", "the answer to other inputs"})


def test_inputs_that_never_change_are_said(tmp_path: Path) -> None:
    found = seen(Written("return x * 3", "torch.ones(64, 64)"), tmp_path)
    assert "same inputs" in {f["kind"] for f in found["findings"]}


def test_a_reference_that_raises_is_said(tmp_path: Path) -> None:
    found = seen(Written("return x @ x", "torch.ones(3, 4)"), tmp_path)
    assert found["findings"][0]["kind"] == "raises"
    assert "RuntimeError" in found["findings"][0]["said"]


def test_what_does_not_fit_is_looked_at_smaller(tmp_path: Path) -> None:
    large = Written(
        "return torch.relu(self.dense(x))", "torch.randn(rows, wide)", "self.dense = nn.Linear(wide, narrow)",
        "wide, narrow", "wide, narrow", "rows = 1 << 16\nwide = 4096\nnarrow = 512",
    )  # fmt: skip
    text = large.text.replace("1 << 16", "65536")
    path = tmp_path / "large.py"
    path.write_text(text)
    found = examine_problem(read_problem(path), tmp_path / "child", 2.0**20, MOST_FLOP)
    assert found["bytes"] == 4 * (65536 * (4096 + 512) + 512 * 4097)
    assert found["flop"] == 2 * 65536 * 4096 * 512
    rows, wide = found["sizes"]["rows"], found["sizes"]["wide"]
    assert found["inputs"] == [f"float32[{rows}, {wide}]"]
    assert rows * wide < 2**18


# ---------------------------------------------------------------- in a process apart


def test_the_command_looks_apart_and_judges_sizes_by_the_device(tmp_path: Path) -> None:
    path = tmp_path / "tiny.py"
    path.write_text(UNSOUND["tiny"].text)
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["check-problem", str(path), "--device", "cuda", "--json", "--page", str(page)])
    assert done.exit_code == 0
    found = from_json(ProblemCheck, done.stdout)
    assert [f.kind for f in found.findings] == ["launch-bound"]
    assert (found.verdict, found.device, found.bytes) == (WEAK, "cuda", 2048.0)
    assert "what is timed is launching" in page.read_text()


def test_what_cannot_be_looked_at_is_said(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["check-problem", str(tmp_path / "none.py")]).exit_code == 2
    path = tmp_path / "tiny.py"
    path.write_text(UNSOUND["tiny"].text)
    with pytest.raises(ValueError, match="device must be cpu or cuda, got 'tpu'"):
        check_problem(path, device="tpu")


def test_what_does_not_come_to_an_end_is_too_slow(tmp_path: Path, nursery: Nursery) -> None:
    path = tmp_path / "sleeps.py"
    path.write_text(Written("__import__('time').sleep(3600)\nreturn x", "torch.rand(8, 8)").text)
    found = check_problem(path, most_s=2.0, nursery=nursery)
    assert (found.verdict, [f.kind for f in found.findings]) == (NOT_LOOKED, ["too slow"])
    assert "within 2 s" in found.findings[0].said and found.seconds > 2


def test_what_needs_more_memory_than_there_is_is_too_large(tmp_path: Path) -> None:
    found = seen(Written("return x + torch.ones(1 << 50)[0]", "torch.rand(8, 8)"), tmp_path)
    assert [f["kind"] for f in found["findings"]] == ["too large"]


def test_sides_that_are_one_size_are_halved_together(tmp_path: Path) -> None:
    square = Written("return x * y", "torch.rand(rows, *shape), torch.rand(rows)", sizes="rows = 4096\nshape = (4096,)",
                     takes_forward="x, y")  # fmt: skip
    assert seen(square, tmp_path, 2.0**20)["sizes"] == {"rows": 256, "shape[0]": 256}


def test_what_the_reference_reads_itself_is_left_whole(tmp_path: Path) -> None:
    """A candidate has written it down too, and nobody tells it of another number."""
    held = Written(
        "return mixed(x) + self.held", "torch.rand(rows, wide)", "self.held = torch.rand(rows, wide)", "wide", "wide",
        "rows = 4096\nwide = 4096\nturns = 4096\n\n\ndef mixed(x, wide=2):\n    return x * turns",
    )  # fmt: skip
    assert seen(held, tmp_path, 2.0**20)["sizes"] == {"wide": 32}
    assert [s.name for s in read_problem(tmp_path / "problem.py").shapes] == ["own"]


def test_verdicts() -> None:
    empty: dict[str, Any] = json.loads(
        '{"name": "p", "format": "", "device": "cpu", "sizes": {}, "bytes": 0, "flop": 0, "least_s": 0, "ops": 0, '
        '"seconds": 0}'
    )
    lists: dict[str, Any] = dict.fromkeys(("inputs", "outputs", "guesses", "bound", "unknown"), ())
    for findings, verdict in (
        ((), WORTH), ((Finding("dead code", False, ""),), WEAK), ((Finding("zeros", True, ""),), NOT_WORTH),
        ((Finding("too slow", False, ""),), NOT_LOOKED),
    ):  # fmt: skip
        assert ProblemCheck(**empty, **lists, findings=findings).verdict == verdict
