"""What a candidate leaves otherwise in its process is said, whatever it is: modules, classes, functions, constants,
settings. All changes are made at once, in a process that ends then."""

from __future__ import annotations

import json
from pathlib import Path

import forked
import pytest
from state_changes import CHANGES

PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); import state_changes; state_changes.print_reports(sys.argv[2])"


def reports_after(what: str) -> list[str]:
    """What a process of its own says, in which no other test has run."""
    run = forked.python(str(Path(__file__).parent), what, code=PROGRAM)
    assert run.returncode == 0, run.stderr
    found: list[str] = json.loads(run.stdout)
    return found


@pytest.fixture(scope="module")
def reports() -> list[str]:
    return reports_after("changes")


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_said(name: str, reports: list[str]) -> None:
    said = CHANGES[name][0]
    assert any(said in line for line in reports), [line for line in reports if said.split()[0] in line]


def test_what_libraries_do_as_they_are_used_is_no_change() -> None:
    assert reports_after("use") == []
