"""The page of troubles quotes messages that the package prints: each heading that is a message stands in a source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"


def printed(source: str) -> list[str]:
    """The strings of a source as they may be printed; what is filled in is a gap."""
    texts = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values]
            texts.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    return texts


def messages(page: str) -> list[str]:
    return re.findall(r"^### `(.+)`$", page, re.M)


def is_printed(message: str, texts: list[str]) -> bool:
    """Whether one string has all parts of a message, in their order."""
    parts = [part.strip(" ,;:") for part in message.split("...") if part.strip(" ,;:")]
    pattern = re.compile(".*".join(map(re.escape, parts)), re.S)
    return any(pattern.search(text) for text in texts)


def test_every_message_of_the_page_is_one_of_the_package() -> None:
    sources = sorted((ROOT / "src/kernelworks").rglob("*.py"))
    texts = [text for path in sources for text in printed(path.read_text("utf-8"))]
    asked = messages(PAGE.read_text(encoding="utf-8"))
    assert len(asked) > 10
    assert [message for message in asked if not is_printed(message, texts)] == [], "no source prints these"


def test_a_message_that_nobody_prints_is_found() -> None:
    texts = printed('raise ValueError(f"no {thing} in {place}, which is sad")')
    assert is_printed("no ... in ..., which", texts)
    assert not is_printed("in ... no", texts) and not is_printed("no such thing", texts)
