"""The page of KernelBench's calls: made of the data, and a call without an op is told."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import kernelbench_coverage

ROOT = Path(__file__).resolve().parents[2]
DATA = tomllib.loads((ROOT / kernelbench_coverage.DATA).read_text(encoding="utf-8"))


def test_the_page_is_what_the_data_makes() -> None:
    page = ROOT / "docs" / "reference" / "kernelbench.md"
    assert page.read_text(encoding="utf-8") == kernelbench_coverage.page(ROOT), "run `make docs`"


def test_all_problems_are_there_once_and_in_order() -> None:
    assert [len(level["problems"]) for level in DATA["level"]] == [100, 100, 50]
    for level in DATA["level"]:
        assert [int(name.partition("_")[0]) for name in level["problems"]] == [*range(1, len(level["problems"]) + 1)]


def test_a_call_that_nothing_computes_is_told(tmp_path: Path) -> None:
    told = kernelbench_coverage.Coverage(DATA)
    assert told.missing(["relu", "cat", "max", "matmul", "no_such_call"]) == ["no_such_call"]
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / kernelbench_coverage.DATA).write_text(
        '[[level]]\nnumber = 1\ntitle = "some"\n[level.problems]\n"1_One" = "relu no_such_call"\n"2_Two" = "max cat"\n'
        '[[same]]\ncalls = ["max"]\nby = "amax"\nhow = "of the values"\n[moves]\ncalls = ["cat"]\n',
        encoding="utf-8",
    )
    page = kernelbench_coverage.page(tmp_path)
    assert "| 1: some | 2 | 1 | 3 | 1 | 1 | 1 |" in page
    assert "| `no_such_call` |" in page and "[`relu`](ops.md#activation)" in page


def test_data_that_names_no_op_is_refused() -> None:
    wrong = DATA | {"same": [{"calls": ["max"], "by": "no_such_op", "how": ""}]}
    with pytest.raises(ValueError, match="no_such_op"):
        kernelbench_coverage.Coverage(wrong)
