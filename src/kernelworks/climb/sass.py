"""The hot loop that the compiler made of a CUDA rung, as the GPU runs it, and how many of which instruction it holds.

Read from the cubin with ``cuobjdump``, which comes with Triton and with the CUDA toolkit; no GPU is needed.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from kernelworks.build.cuda import built

__all__ = ["hot_loop", "loops"]

# What a loop is known by, and what one is worth beside another: about the multiply-adds that an instruction does.
ARITHMETIC = {
    "HGMMA": 65536, "QGMMA": 65536, "IGMMA": 65536, "HMMA": 1024, "IMMA": 1024, "DMMA": 256, "IDP": 4, "HFMA2": 2,
    "FFMA": 1, "DFMA": 1, "FADD": 0.5, "FMUL": 0.5, "HADD2": 0.5, "MUFU": 0.5, "FMNMX": 0.5,
}  # fmt: skip
MOVES = {
    "LDG", "STG", "LDS", "STS", "LDSM", "STSM", "LDL", "STL", "LDGSTS", "LDGDEPBAR", "UTMALDG", "UTMASTG", "UBLKCP",
    "ATOMG", "RED", "SHFL",
}  # fmt: skip
WAITS = {"BAR", "SYNCS", "WARPGROUP", "DEPBAR", "WARPSYNC", "UCGABAR_ARV", "UCGABAR_WAIT", "ERRBAR", "MEMBAR"}
DECISIVE = ARITHMETIC.keys() | MOVES | WAITS
LONGEST = 4000  # instructions: unrolled loops are long
Line = tuple[int, str]


@functools.cache
def _tool() -> str | None:
    found = importlib.util.find_spec("triton")
    for place in (found.submodule_search_locations or ()) if found else ():
        beside = Path(place) / "backends/nvidia/bin/cuobjdump"
        if beside.is_file():
            return str(beside)
    return shutil.which("cuobjdump")


def hot_loop(source: Path, kernel: str) -> tuple[tuple[str, ...], dict[str, int], str]:
    """Its instructions; how many of the decisive ones by mnemonic, as wide as they are; and why there is none.

    Of what only another loop of the kernel holds, as the copies of a producer, the count there is given with
    ", elsewhere".
    """
    tool = _tool()
    if tool is None:
        return (), {}, "no SASS: cuobjdump is neither in Triton nor on the PATH"
    done = subprocess.run([tool, "-sass", str(built(source))], capture_output=True, text=True, check=False)
    body = next((b for b in re.split(r"\n\s*Function : ", done.stdout) if b.split("\n", 1)[0].strip() == kernel), "")
    lines = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", body)]
    if not lines:
        return (), {}, f"no SASS: cuobjdump read no {kernel} ({done.stderr.strip()[:200]})"
    found = loops(lines)
    best = max(found, key=_worth, default=[])
    inside = _decisive(best)
    elsewhere = _decisive([line for loop in found if loop is not best for line in loop] if best else lines)
    inside |= {f"{name}, elsewhere": count for name, count in elsewhere.items() if not _known(name, inside)}
    return tuple(text for _, text in best), inside, ""


def loops(lines: list[Line]) -> list[list[Line]]:
    """Every innermost loop: from the target of a jump back to the jump, with no other such jump between."""
    index = {address: i for i, (address, _) in enumerate(lines)}
    spans = []
    for last, (address, text) in enumerate(lines):
        jump = re.search(r"\bBRA\b.*?\b0x([0-9a-f]+)", text)
        first = index.get(int(jump[1], 16)) if jump else None
        if first is not None and int(jump[1], 16) < address and last - first < LONGEST:  # type: ignore[index]
            spans.append((first, last))
    inner = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    return [lines[first : last + 1] for first, last in inner]


def _name(text: str) -> tuple[str, ...]:
    """The mnemonic with its modifiers, the predicate aside."""
    return tuple(re.sub(r"^@!?U?P\w+\s+", "", text).split()[0].split("."))


def _worth(loop: list[Line]) -> tuple[float, int]:
    names = [_name(text)[0] for _, text in loop]
    moved = sum(name in MOVES for name in names) / 1e3
    return sum(ARITHMETIC.get(name, 0) for name in names) + moved, -len(loop)


def _decisive(lines: list[Line]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for _, text in lines:
        name, *more = _name(text)
        if name in DECISIVE:
            width = next((m for m in more if m in ("64", "128")), "")
            shape = next((m for m in more if re.fullmatch(r"\d+x\d+x\d+|\d{4,}", m)), "")
            found[".".join(filter(None, (name, width, shape)))] += 1
    return dict(found.most_common())


def _known(name: str, inside: dict[str, int]) -> bool:
    return any(other.split(".")[0] == name.split(".")[0] for other in inside)
