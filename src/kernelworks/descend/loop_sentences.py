"""What the counts of a hot loop say, in sentences."""

from __future__ import annotations

from kernelworks.records.descent import LoopCounts

__all__ = ["explain_loop"]

LOADS_A_CYCLE = 2  # of one core, as multiply-adds: the cores of the last ten years issue two of each
MANY_SPILLS = 2
SHORT = 12  # instructions: the loop's own counter and jump are then a large part


def explain_loop(counts: LoopCounts, *, widest_bits: int) -> tuple[str, ...]:
    """Sentences on one pass of a loop, on a CPU whose widest vectors have so many bits."""
    found = [_work(counts)]
    if counts.multiply_adds and counts.multiply_adds >= counts.other_arithmetic:
        ratio = counts.loads / counts.multiply_adds
        if ratio > 1:
            found.append(
                f"{ratio:.2g} loads a multiply-add: a core issues {LOADS_A_CYCLE} of each a cycle, so loads bound it"
            )
        else:
            found.append(f"{ratio:.2g} loads a multiply-add: loads do not bound it")
    if counts.spills + counts.reloads >= MANY_SPILLS:
        found.append(
            f"{counts.spills} spills and {counts.reloads} reloads of the stack: it holds more values than registers"
        )
    if counts.calls:
        many = f"{counts.calls} call{'s' if counts.calls > 1 else ''}"
        found.append(f"{many} of other functions a pass: they are not inlined")
    if counts.gathers:
        found.append(f"{counts.gathers} gathers: each element is loaded by itself")
    if counts.flop and not counts.vector_bits:
        found.append("no vector instruction: one number at a time")
    elif counts.vector_bits and counts.vector_bits < widest_bits:
        found.append(f"its vectors have {counts.vector_bits} bits, this CPU's have {widest_bits}")
    if counts.instructions <= SHORT and counts.flop and counts.multiply_adds + counts.other_arithmetic <= 2:
        found.append("few operations a pass: its counter and its jump cost as much; unrolled it would do more")
    return tuple(found)


def _work(counts: LoopCounts) -> str:
    parts = [
        _many(counts.multiply_adds, "multiply-add"), _many(counts.other_arithmetic, "other floating-point operation"),
        _many(counts.loads, "load"), _many(counts.stores, "store"),
    ]  # fmt: skip
    said = ", ".join(part for part in parts if part) or "no access to memory, no arithmetic"
    width = f" in vectors of {counts.vector_bits} bits" if counts.vector_bits else ""
    flop = f" ({counts.flop:.0f} flop{width})" if counts.flop else width
    return f"a pass is {counts.instructions} instructions: {said}{flop}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}" if count else ""
