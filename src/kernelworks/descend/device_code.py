"""The machine code of a GPU's kernel: found in a folder of Triton's cache, read with the disassembler that Triton
brings; its hot loop, and what a pass of it does."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelworks.build.cuda import cuobjdump
from kernelworks.climb.sass import CONSTANT, bare, loops, mnemonic
from kernelworks.records.descent import DeviceLoop

__all__ = ["KernelCode", "count_classes", "device_loop", "find_code", "instructions", "ir_operations", "read_cache"]

# What an instruction is there for, by the name before its first point.
CLASSES = {
    "matrix product": ("HGMMA", "QGMMA", "IGMMA", "HMMA", "IMMA", "DMMA", "QMMA"),
    "multiply-add": ("FFMA", "HFMA2", "DFMA", "IDP", "FFMA2"),
    "other arithmetic operation": ("FADD", "FMUL", "FMNMX", "HADD2", "HMUL2", "HMNMX2", "DADD", "DMUL",
                                   "FSEL", "FSETP", "FSET", "HSETP2", "HSET2", "DSETP"),
    "special function": ("MUFU",),
    "conversion": ("F2F", "F2FP", "F2I", "I2F", "I2FP", "FRND", "F2IP", "I2I"),
    "load": ("LDG", "LD"),
    "store": ("STG", "ST", "RED", "ATOMG", "ATOM", "REDG"),
    "asynchronous copy": ("LDGSTS", "UTMALDG", "UTMASTG", "UBLKCP"),
    "shared load": ("LDS", "LDSM"),
    "shared store": ("STS", "STSM", "ATOMS"),
    "constant load": ("LDC", "LDCU", "ULDC"),
    "shuffle": ("SHFL", "REDUX", "VOTE", "MATCH", "CREDUX"),
    "wait": ("BAR", "SYNCS", "WARPGROUP", "DEPBAR", "LDGDEPBAR", "WARPSYNC", "MEMBAR", "ERRBAR", "FENCE", "NANOSLEEP",
             "UCGABAR_ARV", "UCGABAR_WAIT", "WARPGROUPSET", "UTMACMDFLUSH", "CCTL", "PREEXIT", "ACQBULK"),
    "spill": ("LDL", "STL"),
    "jump": ("BRA", "EXIT", "BSSY", "BSYNC", "CALL", "RET", "BREAK", "BRX", "JMP", "UBRA", "YIELD"),
}  # fmt: skip
CLASS_OF = {name: kind for kind, names in CLASSES.items() for name in names}
ADDRESSES = "addresses and counters"  # whatever is none of these: integers, moves, predicates
FILLING = ("NOP",)
WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
PARTS = ("cubin", "ptx", "ttgir", "ttir", "source")
LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
# Operations of Triton's IR that say what a kernel does; the others shape tensors and compute addresses.
OPERATION = re.compile(
    r"(?<![\w\"#!])(tt\.(?:load|store|dot|dot_scaled|reduce|scan|gather|atomic_\w+|descriptor_\w+|elementwise_inline_asm|"
    r"extern_elementwise)|math\.\w+|scf\.(?:for|while))(?![\w.])"
)
Line = tuple[int, str]


@dataclass(frozen=True)
class KernelCode:
    """One compiled kernel. Texts are "" where they are not at hand."""

    name: str
    threads: int
    shared_bytes: int
    cubin: bytes
    ptx: str = ""
    ttir: str = ""
    where: str = ""  # "recorded" or "compiled here"

    @functools.cached_property
    def registers(self) -> int:
        """A thread's; 0 if no tool tells."""
        tool = cuobjdump()
        if tool is None:
            return 0
        found = re.search(r"REG:(\d+)", _asked(tool, "-res-usage", self.cubin))
        return int(found[1]) if found else 0


def read_cache(folder: Path) -> list[KernelCode]:
    """Every kernel below a folder that Triton (or inductor, by Triton) has compiled to. Raises OSError."""
    found = []
    for path in sorted(folder.rglob("*.cubin")):
        described = path.with_suffix(".json")
        try:
            meta = json.loads(described.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not isinstance(meta, dict):
            continue
        found.append(
            KernelCode(
                name=str(meta.get("name", path.stem)), threads=32 * _whole(meta.get("num_warps")),
                shared_bytes=_whole(meta.get("shared")), cubin=path.read_bytes(), ptx=_text(path, "ptx"),
                ttir=_text(path, "ttir"), where="recorded",
            )
        )  # fmt: skip
    return found


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _text(path: Path, kind: str) -> str:
    other = path.with_suffix(f".{kind}")
    return other.read_text(encoding="utf-8", errors="replace") if other.is_file() else ""


def find_code(codes: Sequence[KernelCode], name: str, *, threads: int, registers: int) -> list[KernelCode]:
    """Those of a kernel's name that were launched with so many threads, the likeliest first: with the launch's
    registers, or the most below (a profiler may round them up). Several are one kernel for several kinds of arguments
    or several settings, which a trace does not tell apart."""
    named = [code for code in codes if code.name == name and threads in (0, code.threads)]
    if len(named) < 2 or not registers:
        return named
    fitting = [code for code in named if code.registers <= registers]
    return sorted(fitting, key=lambda code: (registers - code.registers, code.cubin))


def instructions(code: KernelCode) -> list[Line]:
    """(address, text) of each instruction; none without the tool."""
    tool = cuobjdump()
    if tool is None:
        return []
    listing = _asked(tool, "-sass", code.cubin)
    body = next((b for b in re.split(r"\n\s*Function : ", listing) if b.split("\n", 1)[0].strip() == code.name), "")
    lines = [(int(at, 16), text) for at, text in LINE.findall(body)]
    return [line for line in lines if mnemonic(line[1])[0] not in FILLING]


def _asked(tool: str, what: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, what, file.name], capture_output=True, text=True, check=False).stdout


def class_of(text: str) -> str:
    """What an instruction is there for: a key of ``CLASSES``, or addresses and counters."""
    return ADDRESSES if re.match(CONSTANT, bare(text)) else CLASS_OF.get(mnemonic(text)[0], ADDRESSES)


def count_classes(texts: Sequence[str]) -> dict[str, int]:
    """How many instructions of each class, in the order of ``CLASSES``."""
    counted = Counter(map(class_of, texts))
    return {kind: counted[kind] for kind in (*CLASSES, ADDRESSES) if counted[kind]}


def moved_bytes(texts: Sequence[str], kind: str) -> dict[int, int]:
    """How many loads or stores there are of how many bytes a thread."""
    found: Counter[int] = Counter()
    for text in texts:
        if class_of(text) == kind:
            _, *more = mnemonic(text)
            found[next((WIDTHS[word] for word in more if word in WIDTHS), 4)] += 1
    return dict(sorted(found.items(), reverse=True))


def device_loop(code: KernelCode, *, moving: bool = False) -> DeviceLoop | None:
    """The hot loop, or if there is no loop the whole kernel; None without a disassembler. ``moving``: of a kernel that
    is there to read memory."""
    lines = instructions(code)
    if not lines:
        return None
    best, _ = loops(lines, moving=moving)
    shown = [text for _, text in best or lines]
    return DeviceLoop(
        whole=not best, kernel_instructions=len(lines), counts=count_classes(shown),
        lines=tuple((text, class_of(text)) for text in shown), explained=explain_device_loop(shown, whole=not best),
    )  # fmt: skip


def explain_device_loop(texts: Sequence[str], *, whole: bool) -> tuple[str, ...]:
    """Sentences on a pass of a loop, of one warp."""
    counts = count_classes(texts)
    named = ", ".join(
        f"{count} {kind}{'s' if count > 1 and kind != ADDRESSES else ''}" for kind, count in counts.items()
    )
    what = "no loop: each thread goes through the kernel once," if whole else "a pass of the loop is"
    said = [f"{what} {len(texts)} instructions: {named}"]
    products = sorted({".".join(mnemonic(t)) for t in texts if class_of(t) == "matrix product"})
    if products:
        said.append(f"matrix units: {', '.join(products)}")
    for kind in ("load", "store"):
        widths = moved_bytes(texts, kind)
        if widths:
            parts = ", ".join(f"{count} of {width} bytes" for width, count in widths.items())
            widest = max(widths)
            narrow = f"; 16 bytes at once would take {16 // widest} times fewer" if widest < 16 else ""
            said.append(f"{kind}s of memory, a thread: {parts}{narrow}")
    if counts.get("spill"):
        said.append(
            f"{counts['spill']} accesses of local memory: values that found no register, or "
            "an array whose index is no constant"
        )
    if counts.get("multiply-add", 0) and counts.get("shared load", 0) > counts["multiply-add"]:
        said.append(
            "more loads of shared memory than multiply-adds: a larger square of sums a thread uses each more often"
        )
    if counts.get(ADDRESSES, 0) > len(texts) / 2:
        said.append("more than half of it is addresses and counters: more work a pass would share them")
    return tuple(said)


def ir_operations(ttir: str) -> dict[str, int]:
    """Operations of a kernel's Triton IR that say what it does, most frequent first."""
    return dict(Counter(OPERATION.findall(ttir)).most_common())


def ptx_operations(ptx: str) -> dict[str, int]:
    """Accesses of memory, products and barriers of a kernel's PTX, with their widths."""
    kept = re.compile(
        r"^\s*(?:@!?%p\d+\s+)?((?:ld|st|red|atom)\.(?:global|shared|local)[\w.:]*|cp\.async[\w.:]*|wgmma\.mma[\w.]*|"
        r"mma\.sync[\w.]*|bar\.sync|shfl\.sync[\w.]*|ex2[\w.]*|fma\.rn[\w.]*)\s", re.M,
    )  # fmt: skip
    return dict(Counter(kept.findall(ptx)).most_common())
