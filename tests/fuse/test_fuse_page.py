"""The code of docs/how-to/fuse-a-chain.md prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "fuse-a-chain.md"
OF_A_MACHINE = re.compile(r"\w+, verified on (\d+) inputs, at most 0\.\d+ of")


def test_the_page_prints_what_it_says() -> None:
    text, scope, printed = PAGE.read_text(encoding="utf-8"), dict[str, Any](), io.StringIO()
    with contextlib.redirect_stdout(printed):
        for code in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
            exec(compile(code, str(PAGE), "exec"), scope)
    said = "".join(re.findall(r"^```python\n.*?^```\n\n```text\n(.*?)^```", text, re.M | re.S))
    assert said and OF_A_MACHINE.sub(r"verified on \1", printed.getvalue()) == OF_A_MACHINE.sub(r"verified on \1", said)
