"""The table of attacks in docs/judge.md: ``python tests/judge/attack_table.py`` writes it anew."""

from __future__ import annotations

import re
from pathlib import Path

from attacks import ATTACKS

__all__ = ["PAGE", "PART", "page"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "judge.md"
PART = re.compile(r"(<!-- generated: attacks -->\n).*?(<!-- end generated -->)", re.S)


def table() -> str:
    lines = ["| family | attacks | refused for |", "|---|---|---|"]
    for family in dict.fromkeys(a.family for a in ATTACKS):
        some = [a for a in ATTACKS if a.family == family]
        kinds = dict.fromkeys(f"{a.kind} (a remark)" if a.verdict == "right" else a.kind for a in some)
        lines.append(f"| {family} | {', '.join(a.name for a in some)} | {', '.join(kinds)} |")
    return "\n".join([f"{len(ATTACKS)} attacks of {len({a.family for a in ATTACKS})} families.", "", *lines, ""])


def page(text: str) -> str:
    """The text of the page with the table as it is now."""
    return PART.sub(lambda match: match[1] + table() + match[2], text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
