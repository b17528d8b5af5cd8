"""The hot loop that the compiler made of a CUDA rung, as the GPU runs it, and how many of which instruction it holds.

Read from the cubin with ``cuobjdump``, which comes with Triton and with the CUDA toolkit; no GPU is needed.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

from kernelworks.build.cuda import build_cubin, cuobjdump, resources

__all__ = ["bare", "hot_loop", "hot_loop_of", "loops", "mnemonic", "usage"]

# What a loop is known by, and what one is worth beside another: about the multiply-adds that an instruction does.
ARITHMETIC = {
    "HGMMA": 65536, "QGMMA": 65536, "IGMMA": 65536, "HMMA": 1024, "IMMA": 1024, "DMMA": 256, "IDP": 4, "HFMA2": 2,
    "FFMA": 1, "DFMA": 1, "FADD": 0.5, "FMUL": 0.5, "HADD2": 0.5, "MUFU": 0.5, "FMNMX": 0.5,
}  # fmt: skip
MOVES = {
    "LDG", "STG", "LDS", "STS", "LDSM", "STSM", "LDL", "STL", "LDGSTS", "LDGDEPBAR", "UTMALDG", "UTMASTG", "UBLKCP",
    "ATOMG", "RED", "SHFL",
}  # fmt: skip
FROM_MEMORY = {"LDG": 1, "LDGSTS": 1, "UTMALDG": 4096, "UBLKCP": 4096}  # about the numbers that one brings
WAITS = {"BAR", "SYNCS", "WARPGROUP", "DEPBAR", "WARPSYNC", "UCGABAR_ARV", "UCGABAR_WAIT", "ERRBAR", "MEMBAR"}
DECISIVE = ARITHMETIC.keys() | MOVES | WAITS
MISSING = "no SASS: cuobjdump is neither in Triton nor on the PATH"
OF_THE_SYSTEM = 1024  # bytes of a block's shared memory, which cuobjdump counts and the driver does not
CONSTANT = r"HFMA2\S* R\d+, -RZ, RZ"  # no arithmetic: how compilers set a register where the other unit is busy
LONGEST = 4000  # instructions: unrolled loops are long
Line = tuple[int, str]


def usage(source: Path, kernel: str) -> tuple[dict[str, int] | None, str]:
    """Registers and local bytes (spills and stack) a thread, static shared bytes a block; or why they are not known."""
    if cuobjdump() is None:
        return None, MISSING
    found = resources(source).get(kernel)
    if found is None:
        return None, f"cuobjdump found no {kernel} in {source.name}"
    return {
        "registers": found["reg"], "local_bytes": found["stack"] + found["local"],
        "shared_bytes": max(0, found["shared"] - OF_THE_SYSTEM),
    }, ""  # fmt: skip


def hot_loop(source: Path, kernel: str, *, moving: bool = False) -> tuple[tuple[str, ...], dict[str, int], str]:
    """Its instructions; how many of the decisive ones by mnemonic, as wide as they are; and why there is none.
    ``moving``: of a kernel that is there to read memory, the loop that does.

    Of what only another loop of the kernel holds, as the copies of a producer, the count there is given with
    ", elsewhere".
    """
    if cuobjdump() is None:
        return (), {}, MISSING
    return hot_loop_of(build_cubin(source), kernel, moving=moving)


def hot_loop_of(cubin: Path, kernel: str, *, moving: bool = False) -> tuple[tuple[str, ...], dict[str, int], str]:
    """The same of a kernel in a cubin."""
    tool = cuobjdump()
    if tool is None:
        return (), {}, MISSING
    done = subprocess.run([tool, "-sass", str(cubin)], capture_output=True, text=True, check=False)
    body = next((b for b in re.split(r"\n\s*Function : ", done.stdout) if b.split("\n", 1)[0].strip() == kernel), "")
    lines = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", body)]
    if not lines:
        return (), {}, f"no SASS: cuobjdump read no {kernel} ({done.stderr.strip()[:200]})"
    best, others = loops(lines, moving=moving)
    inside = _decisive(best)
    elsewhere = _decisive([line for loop in others for line in loop] if best else lines)
    inside |= {f"{name}, elsewhere": count for name, count in elsewhere.items() if not _known(name, inside)}
    return tuple(text for _, text in best), inside, ""


def loops(lines: list[Line], *, moving: bool = False) -> tuple[list[Line], list[list[Line]]]:
    """The innermost loop that does the kernel's kind of arithmetic, the densest of several; ``moving``: that does any,
    and reads the most memory. And the others, as far as they are innermost and no part of it, like the one that waits
    for a barrier."""
    index = {address: i for i, (address, _) in enumerate(lines)}
    spans = []
    for last, (address, text) in enumerate(lines):
        jump = re.search(r"\bBRA\b.*?\b0x([0-9a-f]+)", text)
        target = int(jump[1], 16) if jump else address
        if target in index and target < address and last - index[target] < LONGEST:
            spans.append((index[target], last))
    names = {
        span: {mnemonic(text)[0] for _, text in lines[span[0] : span[1] + 1] if not re.match(CONSTANT, text)}
        for span in spans
    }
    kind = max((n for held in names.values() for n in held if n in ARITHMETIC), key=ARITHMETIC.__getitem__, default="")
    both = (FROM_MEMORY.keys(), ARITHMETIC.keys())
    reading = [span for span in spans if all(names[span] & kinds for kinds in both)] if moving else []
    working = _innermost(reading or [span for span in spans if not kind or kind in names[span]])
    worth = _read if reading else _worth
    hot = max(working, key=lambda span: worth(lines[span[0] : span[1] + 1]), default=None)
    if hot is None:
        return [], []
    apart = [span for span in _innermost(spans) if span[1] < hot[0] or span[0] > hot[1]]
    return lines[hot[0] : hot[1] + 1], [lines[first : last + 1] for first, last in apart]


def _innermost(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]


def bare(text: str) -> str:
    """An instruction without the predicate before it."""
    return re.sub(r"^@!?U?P\w+\s+", "", text)


def mnemonic(text: str) -> tuple[str, ...]:
    """An instruction's name, and its modifiers."""
    return tuple(bare(text).split()[0].split("."))


def _worth(loop: list[Line]) -> float:
    """For each instruction: what waits aside of a loop jumps back into it, and makes a long loop of little work."""
    names = [mnemonic(text)[0] for _, text in loop]
    moved = sum(name in MOVES for name in names) / 1e3
    return (sum(ARITHMETIC.get(name, 0) for name in names) + moved) / len(loop)


def _read(loop: list[Line]) -> float:
    """Of a loop that is there to read memory."""
    found = [mnemonic(text) for _, text in loop]
    return sum(FROM_MEMORY.get(name, 0) * (4 if "128" in more else 2 if "64" in more else 1) for name, *more in found)


def _decisive(lines: list[Line]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for _, text in lines:
        name, *more = mnemonic(text)
        if name in DECISIVE:
            width = next((m for m in more if m in ("64", "128")), "")
            shape = next((m for m in more if re.fullmatch(r"\d+x\d+x\d+|\d{4,}", m)), "")
            found[".".join(filter(None, (name, width, shape)))] += 1
    return dict(found.most_common())


def _known(name: str, inside: dict[str, int]) -> bool:
    return any(other.split(".")[0] == name.split(".")[0] for other in inside)
