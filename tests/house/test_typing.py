"""The public face as a type checker sees it: ``typed.py`` says what is what, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

ROOT = Path(__file__).resolve().parents[2]
CALLS = Path(__file__).with_name("typed.py")


def test_types_are_exact(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(ROOT)
    found, problems, _ = api.run(["--strict", "--no-error-summary", str(CALLS)])
    assert not problems, problems
    wrong = {int(line) for line in re.findall(r"typed\.py:(\d+): error", found)}
    lines = CALLS.read_text(encoding="utf-8").splitlines()
    assert wrong == {number for number, line in enumerate(lines, 1) if "# refused" in line}, found
