"""The scoreboard's page is what its record makes; what is not known stays empty."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scoreboard(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import kernelbench_scoreboard

    return kernelbench_scoreboard


def row(number: int, **more: Any) -> dict[str, Any]:
    return {
        "problem": f"level1/{number}_x", "sizes": {"N": 4}, "verdict": "worth scoring", "findings": [],
        "reference": "right", "machine": "M, torch 2, 2026-01-01",
    } | more  # fmt: skip


def test_the_page_is_what_the_record_makes(scoreboard: Any) -> None:
    text = scoreboard.PAGE.read_text(encoding="utf-8")
    assert scoreboard.page(text, {"rows": scoreboard.known(scoreboard.RECORD)}) == text
    assert scoreboard.gpu_page(text, {"rows": scoreboard.known(scoreboard.GPU_RECORD)}) == text


def test_what_is_not_known_is_left_empty(scoreboard: Any) -> None:
    times = {
        "seconds": {"eager": 3e-6, "compiled": 2e-6, "ours": 1e-6}, "limit_share": 0.5, "bound_by": "DRAM",
        "over": {"eager": [0.8, 0.7, 0.9], "default": [2.0, 1.9, 2.1]}, "machine": "M, torch 2, 2026-01-01",
    }  # fmt: skip
    rows = [
        row(10), row(2, times=times), row(3, reference="refused: late answer: a|b"),
        row(1, verdict="not worth scoring", findings=["zeros", "zeros"], reference=""),
    ]  # fmt: skip
    lines = scoreboard.table({"rows": dict(enumerate(rows))}).splitlines()
    assert lines[0].startswith("4 problems; 3 are worth a score. The judge takes 2 of their references for right")
    assert lines[0].endswith("for 1.")
    assert lines[4:6] == [
        "| all that are timed | 1 | 0.80x | 0 of 1 | 2.00x | 1 of 1 | 2.00x | 1.00x eager |",
        "| those worth scoring | 1 | 0.80x | 0 of 1 | 2.00x | 1 of 1 | 2.00x | 1.00x eager |",
    ]
    assert lines[9:] == [
        "| level1/1_x | `N=4` | not worth scoring: zeros |  |  |  |  |  |  | 1 |",
        "| level1/2_x | `N=4` | worth scoring | right | 3 us | 2 us | 1 us | 50% (DRAM) |  | 1 |",
        "| level1/3_x | `N=4` | worth scoring | refused: late answer: a/b |  |  |  |  |  | 1 |",
        "| level1/10_x | `N=4` | worth scoring | right |  |  |  |  |  | 1 |",
        "", "<sub>Machine 1: M, torch 2, 2026-01-01</sub>",
    ]  # fmt: skip


def test_a_row_says_which_machine_it_was_judged_on_and_a_level_has_its_own_sum(scoreboard: Any) -> None:
    rows = [row(1), row(2, problem="level2/2_x", machine="N", verdict=scoreboard.OVER, reference="")]
    lines = scoreboard.table({"rows": dict(enumerate(rows))}).splitlines()
    assert lines[2] == "- level1: 1 problem; 1 is worth a score. The judge takes 1 of their references for right."
    assert lines[3].startswith("- level2: 1 problem; 0 are worth a score.")
    assert lines[3].endswith("1 took more time or memory than a problem is given.")
    assert [line.rsplit("|", 2)[1].strip() for line in lines if line.startswith("| level")] == ["1", "2"]
    assert lines[-2:] == ["<sub>Machine 1: M, torch 2, 2026-01-01</sub><br>", "<sub>Machine 2: N</sub>"]


def test_shares_are_every_problem_once_and_merged_rows_are_all_of_them(
    scoreboard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for level, number in ((2, 10), (2, 9), (3, 1), (3, 2), (3, 3)):
        path = tmp_path / f"level{level}" / f"{number}_x_.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    folders = [str(tmp_path / "level2"), str(tmp_path / "level3")]
    shares = []
    for share in (1, 2, 3):
        monkeypatch.setattr("sys.argv", ["scoreboard", *folders, "--share", f"{share}/3"])
        shares.append([name for name, _ in scoreboard.problems(scoreboard._arguments(), {})])
    assert shares == [["level2/9_x", "level3/2_x"], ["level2/10_x", "level3/3_x"], ["level3/1_x"]]
    begun, over, right = row(1, verdict=scoreboard.BEGUN), row(2, verdict=scoreboard.OVER), row(2)
    assert scoreboard.merged({"b": right}, [{"a": begun}, {"b": over}, {"c": over}]) == {"b": right, "c": over}
    assert scoreboard.merged({"b": over}, [{"b": right}]) == {"b": right}


def test_a_problem_that_takes_too_long_or_too_much_memory_is_left(scoreboard: Any) -> None:
    with pytest.raises(scoreboard.Overrun, match="more than 0 s"), scoreboard.bounded(0.0, 1024.0):
        time.sleep(60)
    with pytest.raises(scoreboard.Overrun, match="more than 0 GiB"), scoreboard.bounded(600.0, 0.01):
        time.sleep(60)
    with scoreboard.bounded(600.0, 1024.0):
        pass
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_search_says_what_its_moves_lose_at_sizes_that_they_were_not_chosen_for(scoreboard: Any) -> None:
    import scoreboard_search

    right = {"verdict": "right", "why": ""}
    fast, slow = ({"speed": {"ratio": ratio, "low": 0.9 * ratio, "high": 1.1 * ratio}} for ratio in (2.0, 1.5))
    found = {"seconds": 20.0, "judged": 7, "right": 6, "remark": "", "best": right | fast, "elsewhere": None}
    there = {"sizes": {"N": 8}, "moves": [3, 3]}
    begin = "2.00x eager (1.80 to 2.20) (6 of 7 right in 20 s)"
    assert scoreboard_search.cell(None) == ""
    assert scoreboard_search.cell(found) == begin
    assert scoreboard_search.cell(found | {"elsewhere": there | right | slow}) == (
        f"{begin}; its moves at `N=8`: 1.50x eager (1.35 to 1.65): 25% lost there"
    )
    refused = there | {"verdict": "refused", "why": "wrong answer: x", "moves": [1, 3]}
    assert scoreboard_search.cell(found | {"elsewhere": refused}) == (
        f"{begin}; its moves at `N=8`: refused: wrong answer: x, 1 of 3 moves legal"
    )
    assert scoreboard_search.cell(found | {"best": right}).startswith("right, not timed (6 of 7")
    nothing = found | {"best": None, "judged": 0, "right": 0, "remark": "no rule for x"}
    assert scoreboard_search.cell(nothing) == "nothing (no rule for x; 0 of 0 right in 20 s)"


def test_the_other_sizes_are_one_step_back_towards_the_problems_own(scoreboard: Any) -> None:
    import scoreboard_search

    source = "N = 64\nM = 512\nK = 7\nclass Model: ...\ndef get_inputs(): ...\n"
    assert scoreboard_search.other_sizes({"N": 16, "M": 512}, source) == {"N": 32, "M": 512}
    assert scoreboard_search.other_sizes({"N": 16, "M": 64}, source) == {"N": 16, "M": 128}
    assert scoreboard_search.other_sizes({"K": 7}, source) == {}


def test_a_row_keeps_what_an_earlier_run_took_the_time_for(scoreboard: Any) -> None:
    before = row(1, text="a", threads=1, search={"judged": 1})
    assert scoreboard.carried(before, row(1, text="a", threads=1))["search"] == {"judged": 1}
    assert "search" not in scoreboard.carried(before, row(1, text="b", threads=1))
    assert "search" not in scoreboard.carried(before, row(1, text="a", threads=2))
    assert scoreboard.carried(before, row(1, text="a", threads=1, search={"judged": 9}))["search"] == {"judged": 9}


def test_times_are_taken_of_right_references_without_some_and_keep_their_own_machine(
    scoreboard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "level1").mkdir()
    for number in (1, 2, 3, 4):
        (tmp_path / "level1" / f"{number}_x.py").write_text("")
    found = {"seconds": {"eager": 2.0, "default": 1.5, "ours": 1.0}, "over": {}, "rounds": 9, "limit_s": 0.5,
             "bound_by": "memory DRAM", "findings": [], "verdict": "sound", "took_s": 1.0}  # fmt: skip
    right = row(1, text="a", threads=1)
    rows = {"level1/1_x": right, "level1/2_x": row(2, reference="refused: x"), "level1/3_x": row(3, times={})}
    asked: dict[str, Any] = {}

    def raced(files: Any, args: Any, tell: Any, sizes: Any) -> None:
        asked.update(sizes)
        tell("level1/1_x", found)

    monkeypatch.setattr(scoreboard.scoreboard_times, "raced", raced)
    monkeypatch.setattr(scoreboard, "get_peaks", lambda rough: row(9))
    monkeypatch.setattr(scoreboard, "to_json", str)
    out = tmp_path / "rows.json"
    monkeypatch.setattr("sys.argv", ["scoreboard", str(tmp_path / "level1"), "--times", "--out", str(out)])
    scoreboard.on_the_clock(scoreboard._arguments(), made := {}, rows)
    assert asked == {"level1/1_x": {"N": 4}}
    times = made["level1/1_x"]["times"]
    assert times["seconds"] == {"eager": 2.0, "compiled": 1.5, "ours": 1.0} and times["limit_share"] == 0.5
    assert "1 thread" in times["machine"] and scoreboard.known(out) == made
    assert scoreboard.merged(rows, [made])["level1/1_x"]["times"] == times
    assert scoreboard.merged(made, [{"level1/1_x": right}])["level1/1_x"]["times"] == times
    assert scoreboard.table({"rows": made}).splitlines()[9].endswith("| 1, 2 |")


def test_schedules_are_searched_of_right_references_without_some_at_their_sizes(
    scoreboard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "level1").mkdir()
    for number in (1, 2, 3, 4):
        (tmp_path / "level1" / f"{number}_x.py").write_text("")
    rows = {
        "level1/1_x": row(1, text="a", threads=1, times={"machine": "M"}), "level1/2_x": row(2, reference="refused: x"),
        "level1/3_x": row(3, search={}),
    }  # fmt: skip
    found = scoreboard.scoreboard_search.nothing(7.0, "no rule for x")
    asked: list[Any] = []
    monkeypatch.setattr(scoreboard, "problem_at", lambda path, sizes: (path.name, sizes))
    monkeypatch.setattr(scoreboard.scoreboard_search, "searched", lambda problem, *_: asked.append(problem) or found)
    out = tmp_path / "rows.json"
    monkeypatch.setattr("sys.argv", ["scoreboard", str(tmp_path / "level1"), "--search", "7", "--out", str(out)])
    scoreboard.searched(scoreboard._arguments(), made := {}, rows)
    assert asked == [("1_x.py", {"N": 4})] and scoreboard.known(out) == made
    search = made["level1/1_x"]["search"]
    assert search["remark"] == "no rule for x" and "1 thread" in search["machine"]
    merged = scoreboard.merged(rows, [made])["level1/1_x"]
    assert merged["search"] == search and merged["times"] == {"machine": "M"}
    assert scoreboard.places(merged) == ["M, torch 2, 2026-01-01", "M", search["machine"]]
