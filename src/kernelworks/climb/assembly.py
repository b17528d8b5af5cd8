"""The inner loop that the compiler made: the loop of a function that holds the most arithmetic, read with objdump."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kernelworks.build.code_listing import Instruction, list_code, loops_of, parse_listing

__all__ = ["inner_loop"]

ARITHMETIC = re.compile(r"^v?(?:fn?m(?:add|sub)\d*|mul|dpb\w+|dp)(?:[ps][sd]|\w*)\b")
WIDTHS = (("zmm", 16), ("ymm", 8), ("xmm", 4))
LONGEST = 200  # instructions: what is longer is no inner loop


def inner_loop(library: Path) -> tuple[str, ...]:
    """Instructions of the innermost loop that does the most multiplications a turn; empty without objdump."""
    best: tuple[float, int, tuple[str, ...]] = (0.0, 0, ())
    for body in list_code(["-d", str(library)]).split("\n\n"):
        best = max([best, *_loops(parse_listing(body))], key=lambda found: found[:2])
    return best[2]


def _loops(code: Sequence[Instruction]) -> list[tuple[float, int, tuple[str, ...]]]:
    """Every innermost loop as (arithmetic, minus its length, instructions)."""
    found = []
    for first, last in sorted(loops_of(code), key=lambda loop: loop[1]):
        body = code[first : last + 1]
        if last - first < LONGEST and not any(one.name.startswith("j") for one in body[:-1]):
            lines = tuple(one.text for one in body)
            found.append((sum(map(_weight, lines)), -len(body), lines))
    return found


def _weight(line: str) -> float:
    """Elements that an instruction multiplies, 0 for one that does not."""
    if not ARITHMETIC.match(line):
        return 0.0
    return float(next((width for name, width in WIDTHS if name in line and not re.match(r"v?\w+s[sd] ", line)), 1))
