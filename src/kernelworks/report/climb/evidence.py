"""What the evidence of a rung means in words: what a block takes of a GPU, the hot loop's instructions, counters."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from kernelworks.records.climb import Climb, RungResult
from kernelworks.report import quantity
from kernelworks.report.climb.words import judged_time

__all__ = ["MEANINGS", "counters", "excerpt", "instructions", "loop", "meaning", "operands", "resources"]

# Of one Hopper multiprocessor.
WARPS, BLOCKS, REGISTERS, SHARED, OF_SYSTEM = 64, 32, 65536, 233472, 1024

# What an instruction of a GPU does, by its name without modifiers.
MEANINGS = {
    "FFMA": "a float32 multiply-add for each of a warp's 32 threads",
    "FADD": "a float32 addition a thread",
    "FMUL": "a float32 multiplication a thread",
    "DFMA": "a float64 multiply-add a thread",
    "HFMA2": "two 16-bit multiply-adds a thread; compilers also set a register to a constant with it",
    "HADD2": "two 16-bit additions or conversions a thread",
    "FMNMX": "the lesser or greater of two numbers, a thread",
    "IDP": "four 8-bit products a thread, added up",
    "MUFU": "an elementary function a thread, at an eighth of the rate of a multiply-add or less",
    "HMMA": "mma.sync: a warp multiplies two small matrices out of its registers on the matrix unit",
    "IMMA": "mma.sync in integers",
    "DMMA": "mma.sync in float64",
    "HGMMA": "wgmma: four warps multiply matrices that lie in shared memory, while they go on",
    "QGMMA": "wgmma in 8-bit floating point",
    "IGMMA": "wgmma in integers",
    "LDG": "a load from memory (through L1 and L2) into registers",
    "STG": "a store to memory",
    "LDS": "a load from shared memory into registers",
    "STS": "a store to shared memory",
    "LDSM": "ldmatrix: 8 x 8 pieces from shared memory, spread over a warp's registers as mma.sync wants them",
    "STSM": "stmatrix: the way back",
    "LDL": "a load of what was spilled from registers",
    "STL": "a spill from registers to memory",
    "LDGSTS": "cp.async: from memory to shared memory, past the registers, without waiting",
    "LDGDEPBAR": "the end of a group of cp.async",
    "DEPBAR": "a wait for copies or matrix products that were started earlier",
    "UTMALDG": "the copy unit (TMA) fetches a box of a matrix into shared memory; one thread asks",
    "UTMASTG": "the copy unit writes a box from shared memory to memory",
    "UBLKCP": "the copy unit copies bytes that lie in one piece",
    "BAR": "all threads of a block wait for each other",
    "SYNCS": "an mbarrier: arrive at it, or look whether its bytes have come",
    "WARPSYNC": "the threads of a warp wait for each other",
    "WARPGROUP": "four warps begin, end or wait for their matrix products",
    "UCGABAR_ARV": "a block arrives at its cluster's barrier",
    "UCGABAR_WAIT": "a block waits for its cluster",
    "MEMBAR": "earlier writes become visible to others",
    "ERRBAR": "part of such a fence",
    "ATOMG": "an atomic operation in memory",
    "RED": "an atomic addition in memory that returns nothing",
    "SHFL": "threads of a warp exchange registers",
}

# A GPU's counters by the names that they have in a record: shares of what a unit could have done, and of warps' cycles.
UNITS = {
    "matrix pipe": "matrix units", "multiply-add pipe": "multiply-add units",
    "L1 and shared memory": "L1 and shared memory", "L2": "L2", "HBM": "memory", "issue slots": "issue slots",
}  # fmt: skip
WARPS_SPEND = ("issuing", "ready, another was picked", "waiting", "asleep", "elsewhere")  # how the names begin
MIN_LISTED_SHARE = 0.05  # a share that is worth a word
MAX_LISTED = 3

FULL_LOOP_INSTRUCTIONS = 20  # instructions of a loop that is shown whole
EXCERPT_INSTRUCTIONS = 12  # of one that is not


def meaning(name: str) -> str:
    """What an instruction of a GPU does; empty for one that nobody wrote down."""
    base, *more = name.split(", ")[0].split(".")
    text = MEANINGS.get(base, "")
    width = next((f"{int(m) // 8} bytes a thread" for m in more if m in ("64", "128")), "")
    return f"{text}, {width}" if text and width else text


# ---------------------------------------------------------------- a block on a multiprocessor


def _limits(rung: RungResult) -> list[str]:
    """What allows no further block on a multiprocessor."""
    taken, more = rung.resources, rung.resources["blocks_resident"] + 1
    warps = math.ceil(rung.launch["threads"] / 32)
    registers = warps * math.ceil(taken.get("registers", 0) * 32 / 256) * 256
    found = {
        "registers": more * registers > REGISTERS,
        "shared memory": more * (taken.get("shared_bytes", 0) + OF_SYSTEM) > SHARED,
        "room for warps": more * warps > WARPS,
        "room for blocks": more > BLOCKS,
    }
    return [name for name, full in found.items() if full]


def resources(rung: RungResult) -> str:
    """What a block takes, how many of them a multiprocessor holds, and what allows no more; empty on the CPU."""
    taken, launch = rung.resources, rung.launch
    if not taken:
        return ""
    text = f"A block is {launch['threads']} threads with {taken.get('registers', 0)} registers each"
    if taken.get("shared_bytes"):
        text += f" and {quantity.size(taken['shared_bytes'])} of shared memory"
    if launch.get("tile_rows"):
        text += f", for {launch['tile_rows']} x {launch['tile_columns']} outputs"
    text += "; " + (f"{launch['blocks']} blocks" if launch.get("blocks") else "blocks")
    text += f" in clusters of {launch['cluster']}. " if launch.get("cluster", 1) > 1 else ". "
    if taken.get("blocks_resident"):
        held, warps = taken["blocks_resident"], taken.get("warps_resident", 0)
        text += f"A multiprocessor holds {held} at a time, {warps} warps of {WARPS} ({quantity.percent(warps / WARPS)})"
        text += f"; for more it lacks {' and '.join(_limits(rung))}. " if _limits(rung) else ". "
    spilled = taken.get("local_bytes", 0)
    return text + (f"{spilled} bytes a thread spill to memory." if spilled else "Nothing spills.")


# ---------------------------------------------------------------- the hot loop


def instructions(rung: RungResult) -> list[tuple[str, int, str]]:
    """(name, count, meaning) of the decisive ones: of a GPU's as recorded, of a CPU's by mnemonic and width."""
    if rung.instructions:
        return [(name, count, meaning(name)) for name, count in rung.instructions.items()]
    return [(name, count, "") for name, count in _tally(rung.assembly).items() if name.startswith(("v", "p"))]


def _tally(assembly: Sequence[str]) -> dict[str, int]:
    """Instructions of x86 or ARM, by mnemonic and the widest register that they name."""
    found: Counter[str] = Counter()
    for line in assembly:
        width = next((w for w in ("zmm", "ymm", "xmm") if re.search(rf"\b{w}\d", line)), "")
        found[f"{line.split()[0]} {width}".strip()] += 1
    return dict(found.most_common())


def loop(rung: RungResult) -> str:
    """The hot loop in one line: how long it is, and how many of which."""
    listed = ", ".join(f"{count} {name}" for name, count, _ in instructions(rung) if not name.endswith(", elsewhere"))
    apart = ", ".join(
        f"{count} {name.removesuffix(', elsewhere')}"
        for name, count, _ in instructions(rung)
        if name.endswith(", elsewhere")
    )
    text = f"{len(rung.assembly)} instructions" if rung.assembly else ""
    if listed:
        text += f"{': ' if text else ''}{listed}"
    if apart:
        text += f"; outside of it {apart}"
    return text


def operands(taken: Mapping[str, int]) -> str:
    """What the two banks of registers cost the hot loop, of a rung's resources; empty where it was not counted."""
    if "loop_stalls" not in taken:
        return ""
    slots, stalls = taken["loop_slots"], taken["loop_stalls"]
    more = (
        f" and, as registers come from two banks, at least {stalls} cycle{'s' * (stalls > 1)} more in which operands "
        "are waited for"
        if stalls
        else ", and no operands that registers' two banks would keep it waiting for"
    )
    share = quantity.percent(taken["loop_arithmetic"] / (slots + stalls))
    return f"A pass through the loop is {slots} instructions{more}: at most {share} of its cycles multiply or add."


def excerpt(rung: RungResult) -> list[str]:
    """The loop where it is short, else how it begins; of a GPU's only a short one, counts say more than many lines."""
    if len(rung.assembly) <= FULL_LOOP_INSTRUCTIONS:
        return list(rung.assembly)
    if rung.instructions:
        return []
    return [*rung.assembly[:EXCERPT_INSTRUCTIONS], f"; and {len(rung.assembly) - EXCERPT_INSTRUCTIONS} more"]


# ---------------------------------------------------------------- counters


def counters(record: Climb, rung: RungResult, *, brief: bool = False) -> list[tuple[str, str]]:
    """(what, figure with its meaning) of one call, from the processor's own counters; ``brief`` leaves out what says
    little."""
    if not rung.counters:
        return []
    return _of_gpu(record, rung, brief) if "HBM read bytes" in rung.counters else _of_cpu(record, rung)


def _of_cpu(record: Climb, rung: RungResult) -> list[tuple[str, str]]:
    timed, cycles = judged_time(rung), rung.counters.get("cycles", 0.0)
    if not cycles or timed is None:
        return []
    share = math.prod(timed.size[n] / record.size[n] for n in record.size if n in timed.size)
    found = [("multiply-adds a cycle", quantity.figures(record.flop * share / 2 / cycles))]
    if rung.counters.get("instructions"):
        found.append(("instructions a cycle", quantity.figures(rung.counters["instructions"] / cycles)))
    return [*found, ("cycles of one call on one thread", f"{cycles:,.0f}")]


def _of_gpu(record: Climb, rung: RungResult, brief: bool) -> list[tuple[str, str]]:
    c = rung.counters
    memory = c["HBM read bytes"] + c.get("HBM written bytes", 0.0)
    moved = f"{_bytes(c['HBM read bytes'])} read, {_bytes(c.get('HBM written bytes', 0.0))} written"
    least = quantity.ratio(memory / record.bytes)
    found = [("moved between memory and L2", f"{moved}: {least} what must move")]
    if c.get("L2 bytes"):
        each = quantity.figures(record.flop / c["L2 bytes"])
        found.append(("moved through L2", f"{_bytes(c['L2 bytes'])}: {each} flop for each byte"))
    if c.get("shared accesses"):
        share = c.get("shared bank conflicts", 0.0) / c["shared accesses"]
        text = f"{quantity.percent(share)} of them" if share >= 0.005 else "none"
        if share >= MIN_LISTED_SHARE or not brief:
            found.append(("accesses of shared memory", f"{c['shared accesses']:,.0f}, {text} for bank conflicts"))
    busy = {words: c[name] for name, words in UNITS.items() if c.get(name, 0.0) >= MIN_LISTED_SHARE}
    if busy:
        listed = sorted(busy.items(), key=lambda item: -item[1])[: MAX_LISTED if brief else None]
        found.append(("how busy the units were", ", ".join(f"{name} {quantity.percent(x)}" for name, x in listed)))
    if "resident warps" in c and not brief:
        text = f"{quantity.percent(c['resident warps'])} of the {WARPS} that it can hold"
        found.append(("warps on a multiprocessor", text))
    spent = {name: x for name, x in c.items() if name.startswith(WARPS_SPEND) and x >= MIN_LISTED_SHARE}
    if spent:
        listed = sorted(spent.items(), key=lambda item: -item[1])[:MAX_LISTED]
        text = ", ".join(f"{name} {quantity.percent(x)}" for name, x in listed)
        found.append(("what warps spend their cycles on", text))
    return found


def _bytes(count: float) -> str:
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= scale:
            return f"{quantity.figures(count / scale)} {unit}"
    return f"{count:.0f} bytes"
