"""The measured peaks of this machine that are on record, read without torch; what bounds a piece of work by them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from kernelworks.learn.compiling import widest_target
from kernelworks.machine import environment, machine
from kernelworks.records import Peaks, from_json
from kernelworks.records.json_text import read_json

__all__ = ["Limit", "limit_of", "recorded_peaks"]

EXPLAINED_SHARE = 0.6  # of the time: from here on a peak names what bounds the work
FITS = 0.75  # of a cache that a working set may fill and still be served from it


@dataclass(frozen=True)
class Limit:
    """The measured peak that bounds some work: seconds at the peak, and its name with the rate."""

    seconds: float
    name: str
    bound: str  # the same in a word: the cache or memory that it is, or arithmetic


def recorded_peaks() -> Peaks | None:
    """What ``kernelworks machine`` measured last on this machine, None if nothing is on record."""
    here, newest = machine(), None
    for path in environment.cache_dir("peaks").glob("*.json"):
        if "." in path.stem:  # rough ones, and those of one round
            continue
        try:
            note = read_json(path)
            body = json.dumps(note["peaks"], sort_keys=True)
            if note["sha256"] != hashlib.sha256(body.encode()).hexdigest():
                continue
            record = from_json(Peaks, body)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        same = (record.kind, record.name, record.cores) == (here.kind, here.name, here.cores)
        if same and not record.unknown and (newest is None or record.date > newest.date):
            newest = record
    return newest


def limit_of(flop: float, moved: float, threads: int, peaks: Peaks) -> Limit | None:
    """The larger of the time at the rate of multiply-adds and the time at the bandwidth of the level that holds the
    bytes."""
    level = next((n for n in ("L1", "L2", "L3") if moved <= FITS * peaks.cache_bytes.get(n, 0)), "DRAM")
    rates = [b.gbs for b in peaks.bandwidth if (b.level, b.threads) == (level, threads)]
    widest = widest_target()
    flops = [f.gflops for f in peaks.flops if (f.dtype, f.isa, f.threads) == ("float32", widest, threads)]
    found = []
    if rates and moved:
        found.append(
            Limit(
                moved / max(rates) / 1e9,
                f"{level}, {max(rates):.3g} GB/s",
                "memory" if level == "DRAM" else f"the {level} cache",
            )
        )
    if flops and flop:
        found.append(Limit(flop / max(flops) / 1e9, f"multiply-adds, {max(flops):.3g} GFLOP/s", "arithmetic"))
    return max(found, key=lambda limit: limit.seconds, default=None)
