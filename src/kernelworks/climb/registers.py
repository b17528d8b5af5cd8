"""What the register file costs a loop of multiply-adds, counted from its SASS: no GPU is needed.

A multiply-add reads three registers, and a scheduler could issue one every cycle. The model of Hopper's register file:

- There are two banks, even registers in one and odd ones in the other. Each delivers one register of a warp a cycle.
- An instruction may take two cycles to collect its operands, while the next one is issued the cycle after. So one read
  too many in a bank is absorbed, and what would come a third cycle later holds up issue.
- An operand marked ``.reuse`` stays for the same operand place of the warp's next arithmetic instruction, and costs
  that one no read. Loads and uniform instructions in between read elsewhere and leave it there.

So two reads a cycle are all there are: to go on at one a cycle, a multiply-add must find one operand already there.

Source: fitted to Nsight Compute's dispatch stalls, instruction by instruction, of three float32 products on an H200.
Their correlation with the stalls of this model is 0.43, 0.55 and 0.65. One, three or four cycles to collect, and four
banks, fit all three worse; operands that stay for longer, two of them. That a register's parity is its bank, and that
three operands of one bank conflict, is also what was published of Volta (Jia and others, 2018, arXiv 1804.06826).

It leaves out other warps, between whose instructions ``.reuse`` may be lost; the uniform registers; the ports that
results are written through; the operands of loads and stores; and pairs of registers, so it says nothing of float64.
The three kernels lost 1.4 to 1.7 times what is counted here: a count is taken for a lower bound, good for comparing two
orders of the same work. A loop is taken to be run straight through.

Cost: some 20 ms for a loop of a thousand instructions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelworks.climb.sass import bare, mnemonic

__all__ = ["one_pass"]

BANKS = 2
COLLECT = 2  # cycles that an instruction may take for its operands
PASSES = 4  # the last is counted: by then it begins as it ends
ARITHMETIC_SHARE = 0.5  # of the instructions: from here on a loop is one of arithmetic

# One warp's instruction a cycle, in 32-bit registers. Matrix units and float64 are fed in other ways.
ARITHMETIC = {"FFMA", "FADD", "FMUL", "HFMA2", "HADD2", "HMUL2"}
# What else has a fixed latency and collects its operands in the same way.
FIXED_LATENCY_OPS = {
    "FMNMX", "FSEL", "FSETP", "HMNMX2", "HSETP2", "IABS", "IADD3", "IDP", "IMAD", "IMNMX", "ISETP", "LEA", "LOP3",
    "MOV", "PRMT", "SEL", "SGXT", "SHF", "VIADD", "VIMNMX",
}  # fmt: skip

RegisterRead = tuple[int, int, bool]  # operand place, register, whether it is marked .reuse


def one_pass(loop: Sequence[str]) -> dict[str, int]:
    """Of a loop's instructions as cuobjdump prints them: ``loop_slots`` that it takes to issue them once, how many of
    them are ``loop_arithmetic``, and ``loop_stalls``, the cycles in which operands hold up issue; as it is after many
    passes. Empty for a loop that is not mostly arithmetic on registers."""
    names = [mnemonic(text)[0] for text in loop]
    reads = [
        _reads(text) if name in ARITHMETIC | FIXED_LATENCY_OPS else None for name, text in zip(names, loop, strict=True)
    ]
    # Without registers it only sets one to a constant.
    arithmetic = sum(name in ARITHMETIC and bool(read) for name, read in zip(names, reads, strict=True))
    if not arithmetic or arithmetic < ARITHMETIC_SHARE * len(loop):
        return {}
    return {"loop_slots": len(loop), "loop_arithmetic": arithmetic, "loop_stalls": _stalls(reads)}


def _reads(text: str) -> list[RegisterRead]:
    """The registers that an instruction reads. The first operand is its result, as are predicates that follow it."""
    operands = bare(text).partition(" ")[2].split(",")[1:]
    while operands and re.fullmatch(r"\s*U?P[0-9T]", operands[0]):
        operands = operands[1:]
    found = [(place, re.match(r"\s*[-~|]*R(\d+)\b(.*)", operand)) for place, operand in enumerate(operands)]
    return [(place, int(read[1]), ".reuse" in read[2]) for place, read in found if read]


def _stalls(loop: Sequence[list[RegisterRead] | None]) -> int:
    """Cycles of the last of several passes in which nothing is issued; None reads nothing and keeps what is kept."""
    now, stalls = 0, 0
    free = [0] * BANKS  # the cycle in which a bank has delivered all that was asked of it
    kept: dict[int, int] = {}  # register by operand place
    for _ in range(PASSES):
        stalls = 0
        for reads in loop:
            if reads is not None:
                asked = [register % BANKS for place, register, _ in reads if kept.get(place) != register]
                kept = {place: register for place, register, reuse in reads if reuse}
                for bank in asked:
                    free[bank] = max(free[bank], now) + 1
                late = max((free[bank] - COLLECT - now for bank in asked), default=0)
                stalls += max(0, late)
                now += max(0, late)
            now += 1
    return stalls
