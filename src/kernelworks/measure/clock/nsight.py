"""Nsight Compute (``ncu``): how it is asked for counters of the kernels of a program, and what it answers."""

from __future__ import annotations

import csv
import io
import subprocess
from collections.abc import Mapping, Sequence

__all__ = ["command", "parse_counters", "refusal"]

SCALES = {
    "nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1.0, "s": 1.0,
    "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9,
}  # fmt: skip


def command(metrics: Mapping[str, str], program: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """What is run: the counters of what the program launches between starting and stopping the profiler, the clocks
    left alone and the caches emptied before each kernel."""
    return [
        "ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw", "--print-units",
        "base", "--metrics", ",".join(metrics.values()), *more, *program,
    ]  # fmt: skip


def parse_counters(text: str, metrics: Mapping[str, str]) -> list[tuple[str, dict[str, float]]]:
    """Name and counters of each kernel in ncu's raw CSV, in base units (seconds, bytes)."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.reader(io.StringIO("\n".join(lines))))
    if len(rows) < 3:
        return []
    header, units = rows[0], rows[1]
    found = []
    for row in rows[2:]:
        values = dict(zip(header, row, strict=False))
        unit = dict(zip(header, units, strict=False))
        numbers = {
            name: float(values[metric].replace(",", "")) * SCALES.get(unit[metric], 1.0)
            for name, metric in metrics.items()
            if values.get(metric, "").replace(",", "").replace(".", "").isdigit()
        }
        found.append((values.get("Kernel Name", ""), numbers))
    return found


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Why there are no counters, in ncu's words."""
    said = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line or "rror:" in line]
    return f"ncu read none: {said[0].strip('= ') if said else f'it exited with {done.returncode}'}"
