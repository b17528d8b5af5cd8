"""Kernels that a tool has summed up already: no timeline, so nothing of what lies between them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kernelworks.profile.foreign.events import TraceError
from kernelworks.profile.replay import short
from kernelworks.records.trace import TraceKernel

__all__ = ["KernelSums", "Totals", "figure", "seconds_of"]

MOST_KERNELS = 100_000
UNITS = {
    "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "µs": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1.0,
    "second": 1.0, "sec": 1.0,
}  # fmt: skip
THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+")


@dataclass
class KernelSums:
    kernels: list[TraceKernel]
    unknown: tuple[str, ...]  # what the file cannot tell
    remarks: list[str] = field(default_factory=list)
    devices: tuple[str, ...] = ()
    skipped: int = 0


@dataclass
class Totals:
    """Of the launches of one kernel: how many, how long, and time-weighted shares by what bounds it."""

    found: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, name: str, seconds: float, runs: int = 1, shares: dict[str, float] | None = None) -> None:
        name = name[:500]
        if name not in self.found and len(self.found) >= MOST_KERNELS:
            raise TraceError(f"no trace that can be read here: it names more than {MOST_KERNELS} different kernels")
        held = self.found.setdefault(name, {"runs": 0.0, "seconds": 0.0})
        held["runs"] += runs
        held["seconds"] += seconds
        for what, share in (shares or {}).items():
            held[what] = held.get(what, 0.0) + share * seconds

    def kernels(self) -> list[TraceKernel]:
        return [
            TraceKernel(short(name), "", int(held["runs"]), held["seconds"], *_bound_by(held))
            for name, held in self.found.items()
        ]


LOW_SHARE = 0.6  # below it Nsight Compute itself speaks of latency


def _bound_by(held: dict[str, float]) -> tuple[str, float | None]:
    """What reached the largest share of its peak, and that share."""
    if not held["seconds"]:
        return "", None
    shares = {what: value / held["seconds"] for what, value in held.items() if what not in ("runs", "seconds")}
    if not shares:
        return "", None
    best = max(shares, key=lambda what: shares[what])
    share = min(1.0, shares[best])
    return (best if share >= LOW_SHARE else "below the roofline, cause unknown"), share


def figure(text: str | None) -> float | None:
    """A number as tools print it: ``3,164.5``, ``1,234``, and ``9,00`` where the comma is the decimal sign."""
    plain = (text or "").strip().replace("\u202f", "").replace("\xa0", "").replace(" ", "")
    if "," in plain and "." in plain:
        decimal = max(plain.rfind(","), plain.rfind("."))
        plain = re.sub(r"[.,]", "", plain[:decimal]) + "." + plain[decimal + 1 :]
    elif THOUSANDS.fullmatch(plain):
        plain = plain.replace(",", "")
    else:
        plain = plain.replace(",", ".")
    try:
        found = float(plain)
    except ValueError:
        return None
    return found if abs(found) < 1e30 else None


def seconds_of(text: str | None, unit: str) -> float | None:
    """A duration that makes sense, in seconds."""
    found, scale = figure(text), UNITS.get(unit.strip().lower())
    return found * scale if found is not None and scale is not None and found >= 0 else None
