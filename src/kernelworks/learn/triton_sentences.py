"""What a Triton kernel did to memory, as sentences for somebody who learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelworks.learn.emulator.advice import condition_advice
from kernelworks.learn.triton_words import joined_masks

__all__ = [
    "Access",
    "KernelFault",
    "idle_sentence",
    "order_sentence",
    "outside_sentence",
    "race_sentence",
    "tf32_sentence",
    "undefined_sentence",
]

ATOMIC = -3
FAR = 1 << 30  # elements: no array of a check is that large


class KernelFault(Exception):
    """What no right kernel does, and the line that does it."""

    def __init__(self, sentence: str, line: int) -> None:
        super().__init__(sentence)
        self.sentence, self.line = sentence, line


@dataclass(frozen=True)
class Access:
    """One load, store or atomic of one program."""

    deed: str  # reads, writes, updates
    line: int
    program: int
    grid: tuple[int, ...]
    has_mask: bool

    @property
    def program_name(self) -> str:
        return program_words(self.program, self.grid)


def program_words(program: int, grid: Sequence[int]) -> str:
    """``program 3``, ``program (1, 2)``: as many indices as the grid has dimensions."""
    x, rest = divmod(program, grid[1] * grid[2])
    y, z = divmod(rest, grid[2])
    if grid[2] > 1:
        return f"program ({x}, {y}, {z})"
    return f"program ({x}, {y})" if grid[1] > 1 else f"program {x}"


def _advice(access: Access, code: Sequence[str] = ()) -> str:
    what = {"reads": "tl.load", "writes": "tl.store"}.get(access.deed, "tl.atomic_add")
    if not access.has_mask:
        return f"{what} has no mask: a block that is not full needs one, such as mask=offsets < n"
    joined = joined_masks(code[-1]) if code else ""
    return joined or f"The mask {condition_advice(code) or 'lets them through'}"


def outside_sentence(access: Access, regions: Sequence[Any], address: int, lanes: int, code: Sequence[str]) -> str:
    """An address in no array: which one is the nearest, and how far from it. ``code``: the lines up to the access."""
    line = f"line {access.line} {access.deed}"
    many = f"{lanes} lanes do, the first in {access.program_name}" if lanes > 1 else f"in {access.program_name}"
    known = [r for r in regions if r.count]
    if not known:
        return f"{line} an address that is in no array ({many})"
    near = min(known, key=lambda r: max(r.first - address, address - r.end + r.itemsize, 0))
    slot = (address - near.first) // near.itemsize
    if slot < 0:
        count = f"{-slot} element{'s' if slot < -1 else ''}"
        if -slot > FAR:
            return f"{line} far outside of every array ({many}). {_advice(access, code[-1:])}"
        return f"{line} {count} before the beginning of {near.name} ({many}). {_advice(access, code[-1:])}"
    if len(near.shape) == 1:
        last = near.shape[0] - 1
        advice = _advice(access, code if slot == last + 1 else code[-1:])
        size = f"{near.name} has {near.shape[0]} elements, the last is {near.name}[{last}]"
        return f"{line} {near.name}[{slot}], outside of the array: {size} ({many}). {advice}"
    over = slot - near.count + 1
    size = f"{near.name} is {' x '.join(map(str, near.shape))}"
    beyond = f"{over} element{'s' if over > 1 else ''} beyond the end of {near.name}"
    return f"{line} {beyond}: {size} ({many}). {_advice(access, code[-1:])}"


def race_sentence(access: Access, name: str, writer: int | None, line: int) -> str:
    """Two programs of one launch at one element. ``writer`` is None where the other one has read it."""
    if writer is None:
        first = f"another program reads {name}"
    elif writer == ATOMIC:
        first = f"programs update {name} in line {line}"
    else:
        first = f"{program_words(writer, access.grid)} writes {name} in line {line}"
    whole = "" if access.has_mask else f" ({_advice(access)})"
    return (
        f"a race: {first}; {access.program_name} {access.deed} it in line {access.line}{whole}; nothing orders the "
        "programs of a launch. Give each program elements of its own, or end the launch between the two"
    )


def idle_sentence(grid: Sequence[int], first: int) -> str:
    """A launch with far more programs than blocks of elements."""
    programs = grid[0] * grid[1] * grid[2]
    return (
        f"the launch has {programs} programs, of which those from {program_words(first, grid)} on have no element. A "
        "grid counts programs, each of which does a block: triton.cdiv(n, BLOCK)"
    )


def order_sentence(name: str, got: int, want: int) -> str:
    """An element that another program has written than the contract says."""
    return f"{name} is written by program {got}: in the contract's order it is program {want} that does it"


def tf32_sentence(said: str, line: int) -> str:
    """What to say of a result that is a little off, if a product was done in TF32."""
    close = said.partition(":")[0]
    return f'{close}: line {line} multiplies in TF32, which keeps 11 bits of a float32. Say input_precision="ieee"'


def undefined_sentence(elements: str, verb: str, line: int) -> str:
    """Elements that depend on lanes that are off."""
    return (
        f"{elements} {verb} on lanes that a mask switches off: line {line} loads with mask= and without other=, and on "
        "a GPU such a lane holds anything. Say other= with what the sum or the maximum does not notice"
    )
