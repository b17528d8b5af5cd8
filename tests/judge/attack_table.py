"""The tables of attacks in docs/reference/attacks.md: ``python tests/judge/attack_table.py`` writes it anew."""

from __future__ import annotations

import re
from pathlib import Path

from attacked import Attack
from attacks import ATTACKS
from attacks_on_cuda import ON_CUDA

__all__ = ["PAGE", "PART", "page"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "attacks.md"
PART = re.compile(r"(<!-- generated: (attacks|attacks on a GPU) -->\n).*?(<!-- end generated -->)", re.S)
OF = {"attacks": ATTACKS, "attacks on a GPU": ON_CUDA}


def table(attacks: tuple[Attack, ...]) -> str:
    lines = ["| family | attacks | refused for |", "|---|---|---|"]
    for family in dict.fromkeys(a.family for a in attacks):
        some = [a for a in attacks if a.family == family]
        kinds = dict.fromkeys(f"{a.kind} (a remark)" if a.verdict == "right" else a.kind for a in some)
        lines.append(f"| {family} | {', '.join(a.name for a in some)} | {', '.join(kinds)} |")
    return "\n".join([f"{len(attacks)} attacks of {len({a.family for a in attacks})} families.", "", *lines, ""])


def page(text: str) -> str:
    """The text of the page with the tables as they are now."""
    return PART.sub(lambda match: match[1] + table(OF[match[2]]) + match[3], text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
