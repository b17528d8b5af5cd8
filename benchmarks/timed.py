"""Puts this machine's timings into the package: ``python benchmarks/timed.py`` after ``kernelworks settle ...`` here.

What the cache holds takes the place of what shipped for the same call. Timings of noisy hours or another format, and of
rows whose source or toolchain is another one by now, are left out.
"""

from __future__ import annotations

import argparse

import kernelworks  # noqa: F401  fills OPS
from kernelworks import environment, timings
from kernelworks.build import BuildError
from kernelworks.machine import has_gpu, place_of
from kernelworks.op import OPS
from kernelworks.timings import Timing


def current(timing: Timing) -> bool:
    """Whether it speaks of the rows as they are."""
    op = OPS.get(timing.op)
    names = {row.name for row in op.rows} if op else set()
    ways = timing.way.split("+")
    if op is None or not names.issuperset(ways):
        return False
    try:
        return timings.sources_of(op.row(way) for way in ways) == (timing.source_hash, timing.toolchain)
    except BuildError:
        return False


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for place in {place_of(device) for device in ("cpu", *(["cuda"] if has_gpu() else []))}:
        found: dict[tuple[object, ...], Timing] = {}
        shipped = timings.shipped_path(place)
        files = [shipped, *sorted((environment.cache_dir("timings") / place).glob("*.json"))]
        for path in filter(lambda path: path.is_file(), files):
            for timing in timings._read(path)[0]:
                if not timing.noisy and current(timing):
                    found[timing.op, timing.key] = timing
        if found:
            print(timings.write_shipped(found.values(), place), len(found))


if __name__ == "__main__":
    main()
