"""What measured rates cannot contradict: one is never below a share of another one, whatever machine it is.

Each line of a table is a law of the hardware with its reason, for the points of one record: ``rate(more) >= factor x
rate(less)``. A time stands here as the rate that it is the inverse of. ``mending.py`` holds records against them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from kernelworks.records import Bandwidth, FlopRate, FunctionRate, GpuPeaks, Peaks, name_with_threads

__all__ = ["FLOORS", "HOST", "Relation", "rates_of", "relations_of"]

ISAS = ("scalar", "avx2", "avx512")  # Each has at least the vector width of the one before.
LEVELS = ("L1", "L2", "L3", "DRAM")
FLOORS = ("launch_us", "isolated_us", "graph_us", "host_launch_us", "dispatch_us", "round_trip_us")  # of a GPU
HOST = ("to_device_gbs", "to_host_gbs")
FEW = 8  # A working set below this part of L2 is too little work for all multiprocessors.
AMPERE = 80  # From this architecture on, bfloat16 and TF32 products have units of their own.

THREADS = "threads together are no slower than one"
ONE_THREAD = "one thread alone is no slower than each of several"
WIDER = "wider vectors do what narrower ones do"
TWICE = "vectors twice as wide are at most twice as quick"
INNER = "what lies nearer to the core is no slower"
HALF_READ = "half of what a copy moves is read"
HALF_WRITTEN = "half of what a copy moves is written"
NARROWER = "numbers of half the width: at least as many at once"
AT_MOST_TWICE = "and at most twice as many at once"
DOTS = "a dot product of narrow numbers does at least one multiply-add a lane"
LANES = "and at most as many as fit into a lane, in twice as many units"
COSTS = "an elementary function takes two multiply-adds at the least"
FUNCTION = "and some 200 at the most"
FED = "the first level feeds multiply-adds with a load for two of them"
LOADS = "and with six loads for one at the most"
MATRIX = "matrix units are no slower than those for wider numbers"
PEAK = "a product is made of multiply-adds"
POWER = "power limits what goes on for a second"
RACE_BELOW_BURST = "what is timed call by call is no quicker than a burst"
GROWS = "more bytes in one launch hide more of its start"
MEMORY = "a copy from the host goes through the device's memory"
PART = "what is a part of it takes no longer"


class Relation(NamedTuple):
    more: str
    less: str
    factor: float
    why: str


def rates_of(record: Peaks | GpuPeaks) -> dict[str, float]:
    """Every point of a record by its name."""
    if isinstance(record, GpuPeaks):
        return dict(_gpu_rates(record))
    found = {each.name: each.gbs for each in record.bandwidth}
    found |= {each.name: each.gflops for each in record.flops}
    return found | {each.name: each.gops for each in record.functions}


def relations_of(record: Peaks | GpuPeaks) -> list[Relation]:
    """Those between points that a record has."""
    rates = rates_of(record)
    lines = _of_gpu(record) if isinstance(record, GpuPeaks) else _of_cpu(record)
    return [line for line in lines if line.more in rates and line.less in rates]


# ---------------------------------------------------------------- a CPU


def _of_cpu(record: Peaks) -> Iterator[Relation]:
    measured: list[Bandwidth | FlopRate | FunctionRate] = [*record.bandwidth, *record.flops, *record.functions]
    counts = sorted({each.threads for each in measured})
    yield from _by_threads(record, counts)
    for threads in counts:
        yield from _of_memory(threads)
        yield from _of_arithmetic(threads)
        for function, isa in dict.fromkeys((f.function, f.isa) for f in record.functions):
            name, flops = name_with_threads(f"{function} {isa}", threads), name_with_threads(f"float32 {isa}", threads)
            yield Relation(flops, name, 4.0, COSTS)
            yield Relation(name, flops, 1 / 400, FUNCTION)
        for function in dict.fromkeys(f.function for f in record.functions):
            yield from _by_width(function, threads)
        widest = [f.isa for f in record.flops if f.dtype == "float32" and f.isa in ISAS]
        if widest:
            flops = name_with_threads(f"float32 {max(widest, key=ISAS.index)}", threads)
            yield Relation(name_with_threads("L1 read", threads), flops, 0.5, FED)
            yield Relation(flops, name_with_threads("L1 read", threads), 1 / 12, LOADS)


def _by_threads(record: Peaks, counts: list[int]) -> Iterator[Relation]:
    kinds = dict.fromkeys((b.level, b.kind) for b in record.bandwidth)
    kinds |= dict.fromkeys((f.dtype, f.isa) for f in record.flops)
    kinds |= dict.fromkeys((f.function, f.isa) for f in record.functions)
    for kind, (few, many) in itertools.product(kinds, itertools.pairwise(counts)):
        one, all_ = name_with_threads(" ".join(kind), few), name_with_threads(" ".join(kind), many)
        yield Relation(all_, one, 1.0, THREADS)
        yield Relation(one, all_, few / many, ONE_THREAD)


def _of_memory(threads: int) -> Iterator[Relation]:
    for inner, outer in itertools.combinations(LEVELS, 2):
        for kind in ("read", "copy"):  # a non-temporal copy goes past all levels
            yield Relation(
                name_with_threads(f"{inner} {kind}", threads), name_with_threads(f"{outer} {kind}", threads), 1.0, INNER
            )
    for level, kind in itertools.product(LEVELS, ("copy", "copy_nt")):
        read, copied = name_with_threads(f"{level} read", threads), name_with_threads(f"{level} {kind}", threads)
        yield Relation(read, copied, 0.5, HALF_READ)


def _of_arithmetic(threads: int) -> Iterator[Relation]:
    for dtype in ("float32", "float64"):
        yield from _by_width(dtype, threads)
        yield Relation(
            name_with_threads(f"{dtype} avx2", threads), name_with_threads(f"{dtype} avx512", threads), 0.5, TWICE
        )
    for isa in ISAS:
        single, double = (name_with_threads(f"{dtype} {isa}", threads) for dtype in ("float32", "float64"))
        yield Relation(single, double, 1.0, NARROWER)
        yield Relation(double, single, 0.5, AT_MOST_TWICE)
    single = name_with_threads("float32 avx512", threads)
    for unit, lanes in (("bfloat16 avx512_bf16", 2), ("int8 avx512_vnni", 4)):
        dots = name_with_threads(unit, threads)
        yield Relation(dots, single, 1.0, DOTS)
        yield Relation(single, dots, 1 / (2 * lanes), LANES)  # Zen 4 has two units for dots, one for float32


def _by_width(what: str, threads: int) -> Iterator[Relation]:
    for narrow, wide in itertools.combinations(ISAS, 2):
        yield Relation(
            name_with_threads(f"{what} {wide}", threads), name_with_threads(f"{what} {narrow}", threads), 1.0, WIDER
        )


# ---------------------------------------------------------------- a GPU


def _gpu_rates(record: GpuPeaks) -> Iterator[tuple[str, float]]:
    for b in record.bandwidth:
        yield b.name, b.gbs
    for r in record.rates:
        yield f"{r.name} burst", r.burst_tflops
        yield f"{r.name} sustained", r.sustained_tflops
        if r.benchmarked_tflops:
            yield f"{r.name} benchmarked", r.benchmarked_tflops
    yield from record.functions.items()
    for name in FLOORS:
        time = getattr(record, name)
        yield name, 1 / time if time > 0 else 0.0
    for name in HOST:
        yield name, getattr(record, name)


def _of_gpu(record: GpuPeaks) -> Iterator[Relation]:
    yield from _of_device_memory(record)
    for r in record.rates:
        yield Relation(f"{r.name} burst", f"{r.name} sustained", 1.0, POWER)
        yield Relation(f"{r.name} burst", f"{r.name} benchmarked", 1.0, RACE_BELOW_BURST)
    yield from _of_products(record)
    chain = "float32 multiply-add burst"
    for function in record.functions:
        yield Relation(chain, function, 4e-3, COSTS)  # TFLOP/s beside 10^9 results a second
        yield Relation(function, chain, 1e3 / 400, FUNCTION)
    for shorter, longer in (
        ("launch_us", "isolated_us"), ("graph_us", "launch_us"), ("host_launch_us", "round_trip_us"),
        ("launch_us", "round_trip_us"),
    ):  # fmt: skip
        yield Relation(shorter, longer, 1.0, PART)


def _of_products(record: GpuPeaks) -> Iterator[Relation]:
    half, single, wide = (f"{dtype} torch.mm burst" for dtype in ("bfloat16", "float32", "tf32"))
    yield Relation("float32 multiply-add burst", single, 1.0, PEAK)
    yield Relation(wide, single, 1.0, MATRIX)
    digits = record.kind.removeprefix("sm_").partition("-")[0]
    if digits.isdigit() and int(digits) >= AMPERE:
        for narrow in (half, "float16 torch.mm burst"):
            yield Relation(narrow, wide, 1.0, MATRIX)
        yield Relation("float8_e4m3fn torch._scaled_mm burst", half, 1.0, MATRIX)


def _of_device_memory(record: GpuPeaks) -> Iterator[Relation]:
    at = {(b.kind, b.cache, b.bytes): b.name for b in record.bandwidth}
    for (kind, cache, size), copied in at.items():
        for single, why in (("read", HALF_READ), ("write", HALF_WRITTEN)):
            if kind in ("copy", "memcpy") and (single, cache, size) in at:
                yield Relation(at[single, cache, size], copied, 0.5, why)
    inside = [key for key in at if key[1] == "warm" and record.l2_bytes / FEW <= key[2] <= record.l2_bytes / 2]
    outside = [key for key in at if key[2] >= 4 * record.l2_bytes]
    for near, far in itertools.product(inside, outside):
        if near[0] == far[0]:
            yield Relation(at[near], at[far], 1.0, INNER)
    reads = sorted(key[2] for key in outside if key[:2] == ("read", "cold"))
    for small, large in itertools.pairwise(reads):
        yield Relation(at["read", "cold", large], at["read", "cold", small], 1.0, GROWS)
    for host in HOST if reads else ():
        yield Relation(at["read", "cold", reads[-1]], host, 1.0, MEMORY)
