"""Puts the cache's timings into the package: ``python benchmarks/timed.py`` after ``kernelworks autotune ...``.

Of every kind of machine that the cache knows (one may have been brought here from another machine): what it holds takes
the place of what shipped for the same call. Timings of noisy hours or another format, and of
kernels whose source or toolchain is another one by now, are left out.
"""

from __future__ import annotations

import argparse

import kernelworks  # noqa: F401  fills OPS
from kernelworks.build import BuildError
from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.tuning_records import TuningRecord
from kernelworks.machine import environment


def current(timing: TuningRecord) -> bool:
    """Whether it speaks of the kernels as they are."""
    op = OPS.get(timing.op)
    names = {kernel.name for kernel in op.kernels} if op else set()
    ways = timing.way.split("+")
    if op is None or not names.issuperset(ways):
        return False
    try:
        return tuning_records.sources_of(op.kernel(way) for way in ways) == (timing.source_hash, timing.toolchain)
    except BuildError:
        return False


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for folder in sorted(p for p in environment.cache_dir("tuning_records").glob("*") if p.is_dir()):
        found: dict[tuple[object, ...], TuningRecord] = {}
        place, shipped = folder.name, tuning_records.shipped_path(folder.name)
        for path in filter(lambda path: path.is_file(), [shipped, *sorted(folder.glob("*.json"))]):
            for timing in tuning_records._read(path)[0]:
                if not timing.is_noisy and current(timing):
                    found[timing.op, timing.key] = timing
        if found:
            print(tuning_records.write_shipped(found.values(), place), len(found))


if __name__ == "__main__":
    main()
