"""Ladders: what is committed comes from the rungs that are committed, and the machinery tells right from wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.climb import Ladder, climb, ladder_named
from kernelworks.climb.assembly import _loops
from kernelworks.climb.journey import journey
from kernelworks.climb.ladder import rung_of
from kernelworks.climb.template import FILES, start
from kernelworks.records import Ceilings, from_json, to_json
from kernelworks.report import climb as report
from kernelworks.report import climb_page, climb_tile
from kernelworks.rungs import Climb

LADDERS = Path(__file__).resolve().parent.parent / "ladders"
NAMES = sorted(path.parent.name for path in LADDERS.glob("*/results.json"))


def sources(ladder: Ladder) -> dict[str, str]:
    return {rung.path.name: rung.code() for rung in ladder.rungs}


# ---------------------------------------------------------------- what is committed


@pytest.mark.parametrize("name", NAMES)
def test_the_results_are_those_of_these_rungs(name: str) -> None:
    ladder = ladder_named(str(LADDERS / name))
    record = from_json(Climb, (ladder.folder / "results.json").read_text(encoding="utf-8"))
    assert {r.file: r.sha256 for r in record.rungs} == {r.path.name: r.sha256() for r in ladder.rungs}
    assert all(bool(r.times) == (r.status == "proved") for r in record.rungs)
    assert [r.predicted for r in record.rungs] == [r.predicts for r in ladder.rungs]


@pytest.mark.parametrize("name", NAMES)
def test_the_documents_are_made_from_the_results(name: str) -> None:
    ladder = ladder_named(str(LADDERS / name))
    record = from_json(Climb, (ladder.folder / "results.json").read_text(encoding="utf-8"))
    assert (ladder.folder / "worklog.md").read_text(encoding="utf-8") == report.worklog(record, sources(ladder))


@pytest.mark.parametrize("name", NAMES)
def test_the_rungs_are_numbered_and_short(name: str) -> None:
    ladder = ladder_named(str(LADDERS / name))
    assert [r.number for r in ladder.rungs] == list(range(1, len(ladder.rungs) + 1))
    assert all(r.text().count("\n") <= 160 for r in ladder.rungs)
    assert [r.predicts is None for r in ladder.rungs] == [True] + [False] * (len(ladder.rungs) - 1)
    assert (LADDERS.parent / ladder.problem.lessons).is_file()


# ---------------------------------------------------------------- the machinery


@pytest.fixture
def own(tmp_path: Path) -> Ladder:
    """The template as a user gets it."""
    start("mine", tmp_path)
    return ladder_named(str(tmp_path / "mine"))


def test_a_climb_proves_and_times_every_rung(own: Ladder, ceilings: Ceilings) -> None:
    record = climb(own, size={"M": 8, "N": 64}, known=ceilings, budget_s=0.01, watch=False)
    assert [r.status for r in record.rungs] == ["proved", "proved"], [r.reason for r in record.rungs]
    first, second = record.rungs
    assert first.gain is None and second.gain and second.times[0].before
    assert 0 <= (second.worst or 0) <= 1 and second.times[0].peers["torch"] > 0
    assert from_json(Climb, to_json(record)) == record
    page = climb_page.page(record, sources(own))
    assert "Four chains" in page and 'class="changed"' in page and "https:" not in page
    assert "Predicted 4.00x" in report.worklog(record, sources(own))


WRONG = {
    "leaves the last element out": ("n < N; n += 4", "n < N - 1; n += 4"),
    "writes past the end": ("y[m] = (sum[0]", "y[m + 1] = 0, y[m] = (sum[0]"),
    "changes its input": ("y[m] = (sum[0]", "const_cast<float*>(x)[m] = 7, y[m] = (sum[0]"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_rung_gets_no_figure(own: Ladder, ceilings: Ceilings, fault: str) -> None:
    path = own.rungs[1].path
    was, is_now = WRONG[fault]
    assert was in path.read_text()
    path.write_text(path.read_text().replace(was, is_now), encoding="utf-8")
    record = climb(ladder_named(str(own.folder)), 2, size={"M": 8, "N": 64}, known=ceilings, watch=False)
    (rung,) = record.rungs
    assert rung.status == "wrong" and rung.reason and not rung.times and rung.gain is None
    assert "**wrong**" in report.worklog(record, sources(own))


def test_a_rung_that_does_not_compile_says_so(own: Ladder, ceilings: Ceilings) -> None:
    path = own.rungs[0].path
    path.write_text(path.read_text().replace("float sum = 0;", "flote sum = 0;"), encoding="utf-8")
    record = climb(ladder_named(str(own.folder)), 1, size={"M": 8, "N": 64}, known=ceilings, watch=False)
    assert record.rungs[0].status == "not run" and "flote" in record.rungs[0].reason


def test_headers_must_say_what_they_test(own: Ladder) -> None:
    path = own.rungs[0].path
    path.write_text(path.read_text().replace("// next:", "// after:"), encoding="utf-8")
    with pytest.raises(ValueError, match="header must give"):
        rung_of(path)


def test_what_changed_ignores_the_indentation() -> None:
    assert report.changed("a\n  b\nc\n", "b\nc\n") == [("a", True), ("  b", False), ("c", False)]


def test_the_inner_loop_is_the_one_with_the_arithmetic() -> None:
    lines = [
        ("10", "vmovups zmm0,ZMMWORD PTR [rsi]"),
        ("14", "vfmadd231ps zmm1,zmm0,zmm2"),
        ("18", "jne    10 <sgemm+0x10>"),
        ("1c", "add    rax,0x1"),
        ("20", "jne    1c <sgemm+0x1c>"),
    ]
    (work, _, body), other = _loops(lines)
    assert (work, len(body), other[0]) == (16.0, 3, 0.0)


# ---------------------------------------------------------------- one tile's journey


def test_the_journey_counts_what_the_loops_do() -> None:
    record = journey((8, 16, 8), (2, 4), (4, 8))
    counted = dict.fromkeys((move.what for move in record.moves), 0)
    for _ in range(2 * 2):  # blocks of B: 16 / 8 of columns, 8 / 4 of k
        counted["a block of B"] += 1
        for _ in range(4):  # panels of A
            counted["a panel of A"] += 1
            for _ in range(2):  # tiles of the block
                counted["a panel of B"] += 1
                for _ in range(4):
                    counted["a step of A"] += 1
                    counted["a step of B"] += 1
                counted["a tile of C, and back"] += 2
    assert {move.what: move.trips for move in record.moves} == counted
    assert all(move.bytes == 4 * move.shape[0] * move.shape[1] for move in record.moves)
    assert "<svg" in climb_tile.page(record)


def test_a_journey_of_parts_that_do_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="multiples"):
        journey((10, 16, 8), (4, 4), (4, 8))


# ---------------------------------------------------------------- the command


def test_the_command_lists_and_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["climb", "new", "mine"]).exit_code == 0
    assert {p.name for p in (tmp_path / "ladders" / "mine").iterdir()} == set(FILES)
    listed = CliRunner().invoke(app, ["climb", "--list"])
    assert "cpu-sgemm" in listed.stdout and "mine" in listed.stdout and "Register microkernel" in listed.stdout
    assert CliRunner().invoke(app, ["climb", "new", "mine"]).exit_code == 2
    assert CliRunner().invoke(app, ["climb", "nowhere"]).exit_code == 2
    assert "flop for each byte" in CliRunner().invoke(app, ["climb", "tile", "--out", str(tmp_path)]).stdout
