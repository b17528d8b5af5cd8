"""What the emulator saw, as sentences for somebody who learns: what happens, where, and what usually mends it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelworks.learn.emulator.advice import guarded_advice, indexed_name, range_advice
from kernelworks.learn.emulator.request import Fault, Place

__all__ = ["fault_sentence", "ordered_faults"]

# What explains the rest comes first.
ORDER = (
    "block_size", "grid_size", "static_shared", "shared_size", "wild", "host_access", "freed", "out_of_bounds", "index",
    "misaligned", "writes_input", "stack_overflow", "crash", "assertion", "nested_launch",
    "missing_thread", "two_barriers", "warp_divergence",
    "not_in_mask", "absent_lane", "race", "unwritten_atomic", "unwritten", "endless",
)  # fmt: skip
VERBS = {0: "is", 1: "reads", 2: "writes", 3: "updates (atomically)"}
CALLS = {0: "a shuffle", 1: "a vote", 10: "a match", 100: "__syncwarp()"}


def ordered_faults(faults: Sequence[Fault]) -> list[Fault]:
    """The faults without those that another one explains, the most telling first."""
    outside = {(f.case, f.second.line) for f in faults if f.kind == "out_of_bounds" and not f.shared}
    indexed = {(f.case, f.second.line) for f in faults if f.kind == "index"} - outside
    racing = {(f.case, f.array) for f in faults if f.kind == "race"}
    kept: dict[tuple[object, ...], Fault] = {}
    for fault in faults:
        if fault.kind == "index" and (fault.case, fault.second.line) in outside:
            continue
        if fault.kind == "out_of_bounds" and (fault.case, fault.second.line) in indexed:
            continue
        if fault.kind == "unwritten" and (fault.case, fault.array) in racing:
            continue
        lines = tuple(sorted((fault.first.line, fault.second.line)))
        kept.setdefault((fault.kind, fault.array, lines), fault)
    return sorted(
        kept.values(), key=lambda f: (ORDER.index(f.kind) if f.kind in ORDER else len(ORDER), f.case, f.order)
    )


def _coordinates(index: tuple[int, int, int], size: tuple[int, int, int]) -> str:
    dimensions = 3 if size[2] > 1 else 2 if size[1] > 1 else 1
    return str(index[0]) if dimensions == 1 else f"({', '.join(map(str, index[:dimensions]))})"


def _who(place: Place, fault: Fault, with_block: bool) -> str:
    thread = f"thread {_coordinates(place.thread, fault.block)}"
    blocks = fault.grid[0] * fault.grid[1] * fault.grid[2]
    return f"{thread} of block {_coordinates(place.block, fault.grid)}" if with_block and blocks > 1 else thread


def _at(place: Place) -> str:
    return f" in line {place.line}" if place.line else ""


def _element(fault: Fault) -> str:
    return f"{fault.array}{fault.indices}"


def _race(fault: Fault) -> str:
    apart = fault.first.block != fault.second.block
    first, second = _who(fault.first, fault, apart), _who(fault.second, fault, apart)
    does, then = VERBS[fault.first.access], VERBS[fault.second.access]
    what = f"{first} {does} {_element(fault)}{_at(fault.first)}; {second} {then} {_element(fault)}{_at(fault.second)}; "
    same_line = fault.first.line == fault.second.line
    if apart:
        return (
            f"a race: {what}nothing orders the blocks of a launch. Give each block elements of its own, use an atomic "
            "such as atomicAdd, or end the launch between the two"
        )
    if fault.shared or not same_line:
        linear = [
            p.thread[0] + fault.block[0] * (p.thread[1] + fault.block[1] * p.thread[2])
            for p in (fault.first, fault.second)
        ]
        warp = (
            " (the threads of one warp need it too: __syncwarp() at the least)"
            if linear[0] // 32 == linear[1] // 32
            else ""
        )
        return (
            f"a race: {what}no barrier stands between. The other order gives another result: put __syncthreads() "
            f"between the two accesses{warp}, or use an atomic if both add to the element"
        )
    return f"a race: {what}nothing orders the two. Use an atomic such as atomicAdd, or let one thread own the element"


def _out_of_bounds(fault: Fault, advice: str, text: str) -> str:
    where = f"{fault.array} has {fault.length} elements, the last is {fault.array}[{fault.length - 1}]"
    if not fault.length:
        where = f"{fault.array} has none: the launch's third argument says how many bytes there are"
    many = f"{fault.threads} threads do, the first is " if fault.threads > 1 else "it is "
    index = "An index below 0" if fault.index < 0 else "A grid of whole blocks has more threads than elements: an index"
    advice = advice or guarded_advice(fault, text) or f"{index} has to be kept out by an `if`"
    wide = f" to {fault.array}[{fault.index + fault.elements - 1}] at once" if fault.elements > 1 else ""
    return (
        f"line {fault.second.line} {VERBS[fault.second.access]} {fault.array}[{fault.index}]{wide}, outside of the "
        f"array: {where} ({many}{_who(fault.second, fault, True)}). {advice}"
    )


def _index(fault: Fault, text: str, who: str) -> str:
    of_type = fault.array.strip("'")
    length, name = re.search(r"\[(\d+)\]", of_type), indexed_name(fault, text)
    array = f"{name}, an array of type {of_type}" if name else f"an array of type {of_type}"
    last = f": there it goes from 0 to {int(length[1]) - 1}" if length else ""
    return f"line {fault.second.line} uses index {fault.index} of {array}{last} ({who})"


def _unwritten(fault: Fault) -> str:
    who = _who(fault.second, fault, True)
    if fault.kind == "unwritten_atomic":
        return (
            f"line {fault.second.line} adds to {_element(fault)}, which nobody has set ({who}): memory holds what was "
            "there before. Set it to 0 first"
        )
    if fault.shared:
        return (
            f"line {fault.second.line} reads {_element(fault)}, which no thread of this block has written ({who}): "
            "shared "
            "memory is not zero at the start"
        )
    return (
        f"line {fault.second.line} reads {_element(fault)}, which nobody has written yet ({who}): it holds what was "
        "there "
        "before"
    )


def _barrier(fault: Fault) -> str:
    whole = fault.block[0] * fault.block[1] * fault.block[2]
    waiting, other = _who(fault.first, fault, True), _who(fault.second, fault, False)
    if fault.kind == "missing_thread":
        return (
            f"{fault.value} of the {whole} threads of a block, {waiting} among them, wait at the barrier in line "
            f"{fault.first.line}, and {other} has returned without coming there. All threads of a block must reach "
            "each "
            "__syncthreads(): no barrier inside an `if` or a loop that some threads leave earlier, no return before it"
        )
    return (
        f"{waiting} waits at the barrier in line {fault.first.line}, {other} at the one in line {fault.second.line}: "
        "all "
        "threads of a block must come to the same __syncthreads()"
    )


def _warp(fault: Fault) -> str:
    second = fault.second
    if fault.kind == "not_in_mask":
        return (
            f"{_who(second, fault, True)}{_at(second)} is lane {fault.index} and calls with a mask that leaves out "
            "its own "
            "lane: the mask must name every lane that makes the call"
        )
    if fault.kind == "absent_lane":
        return (
            f"{_who(second, fault, True)}{_at(second)} asks lane {fault.index} for its value, which does not take "
            "part: it "
            "has returned, does not exist or is not in the mask. What comes is undefined"
        )
    call = CALLS.get(fault.index, "a reduction of the warp")
    why = {1: "which waits at a __syncthreads()", 2: "which waits in another call", 3: "which calls with another mask"}
    return (
        f"{_who(fault.first, fault, True)} waits in {call} in line {fault.first.line} for "
        f"{_who(second, fault, False)}, "
        f"{why.get(fault.value, 'which never comes')}{_at(second)}: all lanes of the mask must make the same call"
    )


def _limit(fault: Fault) -> str:
    line = f" in line {fault.first.line}" if fault.first.line else ""
    return {
        "block_size": f"the launch{line} asks for {fault.value} threads a block: 1 to 1024 are allowed",
        "grid_size": f"the launch{line} asks for {fault.value} blocks: at least 1 is needed, and here at most 4194304",
        "static_shared": f"__shared__ arrays take {fault.value} bytes{line}: 49152 are allowed without a launch that "
        "asks for more",
        "shared_size": f"a block's shared memory takes {fault.value} bytes{line}: an SM has 232448",
    }[fault.kind]


def _end(fault: Fault) -> str:
    who = f"{_who(fault.second, fault, True)}, last seen{_at(fault.second) or ' before its first access'}"
    if fault.kind == "endless":
        return f"the kernel does not end ({who}): a loop never stops, or a thread waits for what another block does"
    if fault.kind == "stack_overflow":
        return f"the local variables of one thread are too large ({who}): the emulator has 60 KiB for each"
    return (
        f"the program was stopped by the processor ({who}): a division of integers by 0, or a pointer that points "
        "nowhere"
    )


def fault_sentence(fault: Fault, text: str = "") -> str:
    """One fault in words. ``text``: of the source, which may show why an index is outside."""
    advice = range_advice(fault, text)
    access, line = VERBS[fault.second.access], fault.second.line
    if fault.kind == "race":
        return _race(fault)
    if fault.kind == "out_of_bounds":
        return _out_of_bounds(fault, advice, text)
    if fault.kind in ("unwritten", "unwritten_atomic"):
        return _unwritten(fault)
    if fault.kind in ("missing_thread", "two_barriers"):
        return _barrier(fault)
    if fault.kind in ("warp_divergence", "not_in_mask", "absent_lane"):
        return _warp(fault)
    if fault.kind in ("block_size", "grid_size", "static_shared", "shared_size"):
        return _limit(fault)
    if fault.kind in ("endless", "stack_overflow", "crash"):
        return _end(fault)
    who = _who(fault.second, fault, True)
    return {
        "assertion": f"the assert in line {line} fails ({who})",
        "nested_launch": f"line {line} launches a kernel from a kernel ({who}): not emulated, the host launches",
        "index": _index(fault, text, who),
        "misaligned": f"line {line} {access} {fault.bytes} bytes at once at {_element(fault)} ({who}): such an "
        "address must "
        f"be a multiple of {fault.bytes} bytes",
        "writes_input": f"line {line} {access} {_element(fault)} ({who}): {fault.array} is an input, which stays as "
        "it is",
        "host_access": f"line {line} {access} {_element(fault)} in host code: the host cannot reach the GPU's memory",
        "freed": f"line {line} {access} {_element(fault)} after cudaFree ({who})",
        "wild": f"line {line} {access} an address that is in no array ({who}): "
        + ("the pointer is null" if fault.array == "null" else "a pointer to host memory, or an index far outside")
        + (f". {advice}" if advice else ""),
    }[fault.kind]
