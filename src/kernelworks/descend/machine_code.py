"""The machine code of a function on an x86-64 CPU: its instructions, its loops, and what an iteration of one does."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelworks.build.code_listing import Instruction, list_code, loops_of, parse_listing
from kernelworks.descend.symbols import CodeLocation
from kernelworks.records.descent import LoopCounts

__all__ = ["Loop", "count_instructions", "disassemble", "hot_loop"]

MEMORY, STACK = re.compile(r"\[([^\]]*)\]"), re.compile(r"\b[re]sp\b|\brbp-")
REGISTER = re.compile(r"\b([xyz])mm\d+\b")
BITS = {"x": 128, "y": 256, "z": 512}
NO_ACCESS = ("lea", "nop", "prefetch", "endbr", "call", "j", "ret", "clflush")
READS_FIRST = ("cmp", "test", "ucomi", "comi", "vucomi", "vcomi", "push", "vtest", "ptest", "vptest")
FUSED_NAME = re.compile(r"^vfn?m(?:add|sub|addsub|subadd)\d*(ps|pd|ph|ss|sd|sh)$|^vfn?m(?:add|sub)(ps|pd|ss|sd)$")
DOTS = {"vpdpbusd": 4, "vpdpbusds": 4, "vpdpwssd": 2, "vpdpwssds": 2, "vdpbf16ps": 2}  # multiply-adds a lane of 32 bits
ARITHMETIC = re.compile(r"^v?(add|sub|mul|div|sqrt|max|min)(ps|pd|ph|ss|sd|sh)$")
LANE_BITS = {"ps": 32, "pd": 64, "ph": 16, "ss": 32, "sd": 64, "sh": 16}
TOTALS = ("loads", "stores", "spills", "reloads", "multiply_adds", "other_arithmetic", "gathers", "calls")
MOST_BYTES = 1 << 16  # of code made while the program runs, around a place
LEAST_SHARE = 0.25  # of a function's samples, that a loop has to hold


@dataclass(frozen=True, slots=True)
class Loop:
    """The instructions between the target of a jump backwards and the jump. ``share`` of the function's samples."""

    body: tuple[Instruction, ...]
    share: float


def disassemble(place: CodeLocation) -> list[Instruction]:
    """The instructions of the function around a place; none if there is no ``objdump`` or nothing can be read.

    Code that was made while the program ran (oneDNN's, a graph's) is read from this process's memory."""
    if place.file.startswith("/"):
        bounds = [f"--start-address={place.begin:#x}", f"--stop-address={place.end:#x}"]
        return parse_listing(list_code(["-d", *bounds, place.file]))
    begin = max(place.begin, place.address - MOST_BYTES // 2)
    end = min(place.end, place.address + MOST_BYTES // 2)
    try:
        with open("/proc/self/mem", "rb") as memory, tempfile.NamedTemporaryFile(suffix=".bin") as file:
            memory.seek(begin)
            file.write(memory.read(end - begin))
            file.flush()
            return parse_listing(
                list_code(["-D", "-b", "binary", "-m", "i386:x86-64", f"--adjust-vma={begin:#x}", file.name])
            )
    except (OSError, ValueError, OverflowError):
        return []


def hot_loop(code: Sequence[Instruction], samples: Mapping[int, int]) -> Loop | None:
    """The innermost loop that holds the most samples, by address; None if none holds a quarter of them."""
    total = sum(samples.values())
    loops = loops_of(code)
    inner = [loop for loop in loops if not any(loop[0] <= o[0] and o[1] <= loop[1] and o != loop for o in loops)]
    held = {loop: sum(samples.get(one.address, 0) for one in code[loop[0] : loop[1] + 1]) for loop in inner}
    best = max(inner, key=lambda loop: held[loop], default=None)
    if best is None or not total or held[best] < LEAST_SHARE * total:
        return None
    return Loop(tuple(code[best[0] : best[1] + 1]), held[best] / total)


def count_instructions(body: Sequence[Instruction]) -> LoopCounts:
    """What one pass over these instructions does. A memory operand that is read counts as a load whatever reads it."""
    totals = dict.fromkeys(TOTALS, 0)
    flop, bits = 0.0, 0
    for one in body:
        if match := REGISTER.search(one.operands):
            width = max(BITS[m] for m in REGISTER.findall(one.operands))
            scalar = one.name.endswith(("ss", "sd", "sh")) and bool(match)
            bits = bits if scalar else max(bits, width)
        for access in _accesses(one):
            totals[access] += 1
        fused, multiplied = _multiply_adds(one)
        totals["multiply_adds"] += fused
        flop += multiplied
        if match := ARITHMETIC.match(one.name):
            totals["other_arithmetic"] += 1
            flop += _lanes(one, match[2])
        totals["gathers"] += "gather" in one.name
        totals["calls"] += one.name == "call"
    return LoopCounts(instructions=len(body), flop=flop, vector_bits=bits, **totals)


def _lanes(one: Instruction, kind: str) -> int:
    if kind[0] == "s":
        return 1
    widths = [BITS[m] for m in REGISTER.findall(one.operands)]
    return max(widths, default=128) // LANE_BITS[kind]


def _multiply_adds(one: Instruction) -> tuple[int, float]:
    """Whether it is one (1 or 0), and its flop."""
    if match := FUSED_NAME.match(one.name):
        return 1, 2.0 * _lanes(one, match[1] or match[2])
    if one.name in DOTS:
        return 1, 2.0 * DOTS[one.name] * _lanes(one, "ps")
    if one.name.startswith("tdp"):  # AMX: 16 rows by 16 columns, 64 bytes deep, at the most
        return 1, 2.0 * 16 * 16 * (32 if "bf16" in one.name or "fp16" in one.name else 64)
    return 0, 0.0


def _accesses(one: Instruction) -> Iterator[str]:
    """The accesses to memory: of the stack they are spills and reloads."""
    if one.name.startswith(NO_ACCESS) or not (memory := MEMORY.search(one.operands)):
        return
    on_stack = bool(STACK.search(memory[1]))
    first = one.operands.partition("[")[0].count(",") == 0  # the operand that is written
    moves = "mov" in one.name or one.name.startswith(("set", "vextract", "vpscatter", "vscatter", "vcvtps2ph"))
    writes = first and not one.name.startswith(READS_FIRST)
    if not writes or not moves:
        yield "reloads" if on_stack else "loads"
    if writes:
        yield "spills" if on_stack else "stores"
