"""The scoreboard's page is what its record makes; what is not known stays empty."""

from __future__ import annotations

import json
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
        "reference": "right",
    } | more  # fmt: skip


def test_the_page_is_what_the_record_makes(scoreboard: Any) -> None:
    text = scoreboard.PAGE.read_text(encoding="utf-8")
    assert scoreboard.page(text, json.loads(scoreboard.RECORD.read_text(encoding="utf-8"))) == text


def test_what_is_not_known_is_left_empty(scoreboard: Any) -> None:
    times = {
        "seconds": {"eager": 3e-6, "compiled": 2e-6, "ours": 1e-6}, "speeds": {}, "limit_share": 0.5, "bound_by": "DRAM"
    }  # fmt: skip
    rows = [
        row(10), row(2, times=times), row(3, reference="refused: late answer: a|b"),
        row(1, verdict="not worth scoring", findings=["zeros", "zeros"], reference=""),
    ]  # fmt: skip
    record = {
        "rows": dict(enumerate(rows)),
        "machine": "M",
        "versions": {"torch": "2"},
        "date": "2026-01-01",
    }
    lines = scoreboard.table(record).splitlines()
    assert lines[0].startswith("4 problems; 3 are worth a score. The judge takes 2 of their references for right")
    assert lines[0].endswith("for 1.")
    assert lines[4:8] == [
        "| level1/1_x | `N=4` | not worth scoring: zeros |  |  |  |  |  |",
        "| level1/2_x | `N=4` | worth scoring | right | 3 us | 2 us | 1 us | 50% (DRAM) |",
        "| level1/3_x | `N=4` | worth scoring | refused: late answer: a/b |  |  |  |  |",
        "| level1/10_x | `N=4` | worth scoring | right |  |  |  |  |",
    ]
