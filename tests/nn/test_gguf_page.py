"""The code of docs/how-to/gguf.md prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "gguf.md"


def test_the_page_of_gguf_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, scope, printed = PAGE.read_text(encoding="utf-8"), dict[str, Any](), io.StringIO()
    with contextlib.redirect_stdout(printed):
        for code in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
            exec(compile(code, str(PAGE), "exec"), scope)
    said = "".join(re.findall(r"^```python\n.*?^```\n\n```text\n(.*?)^```", text, re.M | re.S))
    assert said and printed.getvalue() == said
