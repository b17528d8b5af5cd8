"""The inner loop that the compiler made: the loop of a function that holds the most arithmetic, read with objdump."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

__all__ = ["inner_loop"]

ARITHMETIC = re.compile(r"^v?(?:fn?m(?:add|sub)\d*|mul|dpb\w+|dp)(?:[ps][sd]|\w*)\b")
WIDTHS = (("zmm", 16), ("ymm", 8), ("xmm", 4))
LONGEST = 200  # instructions: what is longer is no inner loop


def inner_loop(library: Path) -> tuple[str, ...]:
    """Instructions of the innermost loop that does the most multiplications a turn; empty without objdump."""
    if shutil.which("objdump") is None:
        return ()
    command = ["objdump", "-d", "--no-show-raw-insn", "-M", "intel", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    best: tuple[float, int, tuple[str, ...]] = (0.0, 0, ())
    for body in re.split(r"\n\n", done.stdout):
        lines = re.findall(r"^\s+([0-9a-f]+):\s+(.*?)\s*$", body, re.M)
        best = max([best, *_loops(lines)], key=lambda found: found[:2])
    return best[2]


def _loops(lines: list[tuple[str, str]]) -> list[tuple[float, int, tuple[str, ...]]]:
    """Every innermost loop as (arithmetic, minus its length, instructions)."""
    at = {int(address, 16): index for index, (address, _) in enumerate(lines)}
    found = []
    for last, (_, text) in enumerate(lines):
        jump = re.match(r"j\w+\s+([0-9a-f]+)\b", text)
        first = at.get(int(jump[1], 16)) if jump else None
        if first is None or first > last or last - first >= LONGEST:
            continue
        body = [re.sub(r"\s+<.*?>|\s+#.*", "", text) for _, text in lines[first : last + 1]]
        if not any(line.startswith("j") for line in body[:-1]):
            found.append((sum(map(_weight, body)), -len(body), tuple(re.sub(r"\s+", " ", line) for line in body)))
    return found


def _weight(line: str) -> float:
    """Elements that an instruction multiplies, 0 for one that does not."""
    if not ARITHMETIC.match(line):
        return 0.0
    return float(next((width for name, width in WIDTHS if name in line and not re.match(r"v?\w+s[sd] ", line)), 1))
