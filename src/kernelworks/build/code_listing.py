"""Machine code as ``objdump`` lists it, on x86-64 in Intel's syntax: instructions, and the loops that jumps make."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Instruction", "list_code", "loops_of", "parse_listing"]

LINE = re.compile(r"^\s*([0-9a-f]+):\t(\S+)\s*(.*?)\s*(?:#.*|<[^>]*>)?$")
TARGET = re.compile(r"^(?:0x)?([0-9a-f]+)(?:\s|$)")
PREFIXES = ("rep", "repz", "repnz", "lock", "bnd", "notrack", "data16", "cs", "{evex}", "{vex}")
SECONDS = 60.0  # a library of 400 MB takes two


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a listing, in Intel's syntax: the first operand is what is written."""

    address: int
    name: str
    operands: str
    target: int | None = None  # of a jump
    prefix: str = ""

    @property
    def text(self) -> str:
        return " ".join(filter(None, (self.prefix, self.name, self.operands)))


def list_code(arguments: Sequence[str]) -> str:
    """What objdump lists for these arguments; "" without objdump, or if it does not end."""
    command = ["objdump", "--no-show-raw-insn", "-M", "intel", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def parse_listing(text: str) -> list[Instruction]:
    """The instructions in a listing, without names of places and comments."""
    found = []
    for line in text.splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        address, name, operands, prefix = int(match[1], 16), match[2], match[3], ""
        while name in PREFIXES and operands:
            prefix = f"{prefix} {name}".strip()
            name, _, operands = operands.partition(" ")
            operands = operands.strip()
        jump = TARGET.match(operands) if name.startswith("j") else None
        found.append(Instruction(address, name, operands, int(jump[1], 16) if jump else None, prefix))
    return found


def loops_of(code: Sequence[Instruction]) -> list[tuple[int, int]]:
    """Each loop as the places of its first and last instruction, the shortest first."""
    places = {one.address: at for at, one in enumerate(code)}
    found = {
        (places[one.target], at)
        for at, one in enumerate(code)
        if one.target is not None and one.target <= one.address and one.target in places
    }
    return sorted(found, key=lambda loop: (loop[1] - loop[0], loop[0]))
