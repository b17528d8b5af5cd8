"""The CPU this process runs on: vendor, model, instruction sets and caches, as Linux reports them."""

from __future__ import annotations

import functools
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from kernelworks.machine import environment

__all__ = ["Machine", "machine"]

# The names of /proc/cpuinfo that a target of ours asks for, under the names the field uses.
FEATURES = {
    "avx2": "avx2", "fma": "fma", "f16c": "f16c", "avx512f": "avx512f", "avx512bw": "avx512bw",
    "avx512dq": "avx512dq", "avx512vl": "avx512vl", "avx512_bf16": "avx512_bf16", "avx512_vnni": "avx512_vnni",
}  # fmt: skip
AVX2 = frozenset({"avx2", "fma", "f16c"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
CAPS = {"": frozenset(FEATURES), "scalar": frozenset[str](), "avx2": AVX2, "avx512": AVX512}  # by KERNELWORKS_ISA


@dataclass(frozen=True)
class Machine:
    """One machine, as far as choosing and verifying kernels depends on it.

    ``kind`` names the sort of machine that a certificate speaks for: architecture, vendor, family and model, and the
    instruction sets that its kernels may use. Two machines of one kind run the same instructions with the same result.
    """

    kind: str
    architecture: str
    name: str
    features: frozenset[str]
    cores: int
    cache_bytes: tuple[tuple[str, int], ...]  # ("L1", per core), ("L2", per core), ("L3", shared)
    memory_bytes: int


def _cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    fields = (line.split(":", 1) for line in text.split("\n\n", 1)[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in fields}


def _cache_sizes() -> tuple[tuple[str, int], ...]:
    units = {"K": 1024, "M": 1024**2}
    sizes = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((folder / f).read_text().strip() for f in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            sizes[f"L{level}"] = int(size[:-1]) * units.get(size[-1], 1)
    return tuple(sorted(sizes.items()))


@functools.cache
def machine() -> Machine:
    """This machine, with no wider instructions than ``KERNELWORKS_ISA`` allows: its kind is then that of a machine
    without them. Cost: one read of ``/proc`` and ``/sys`` the first time, cached after. Raises ValueError if the
    variable names no instruction set."""
    info = _cpuinfo()
    flags = set(info.get("flags", info.get("Features", "")).split())
    features = CAPS[environment.instruction_set_cap()] & {name for name, flag in FEATURES.items() if flag in flags}
    architecture = platform.machine()
    vendor = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}.get(
        info.get("vendor_id", ""), info.get("vendor_id", "unknown")
    )
    widest = next((f for f in ("avx512_bf16", "avx512f", "avx2") if f in features), "base")
    identity = (vendor, f"family{info.get('cpu family', '0')}", f"model{info.get('model', '0')}", widest)
    kind = re.sub(r"[^a-z0-9_-]", "", "-".join((architecture, *identity)).lower())
    return Machine(
        kind=kind,
        architecture=architecture,
        name=info.get("model name", platform.processor() or architecture),
        features=features,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1),
        cache_bytes=_cache_sizes(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
