"""The process that builds, beside a fix from its start, what the fix would otherwise wait for: the C++ entry of ops,
and on a Hopper GPU the launcher and our kernels of CUDA C++. ``python -m``, once on a machine for each source.

It writes the name of each once that is built. What it cannot build is left: who needs it says why.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from kernelworks.build import cuda, launcher, native
from kernelworks.build.cache import BuildError
from kernelworks.machine.parent_process import die_with_parent
from kernelworks.machine.usable_cores import usable_cores

__all__ = ["ENTRY", "cuda_sources", "main"]

NICE = 5  # the search's own compiler goes before
SHARE = 0.25  # of the cores
HOPPER = (9, 0)
ENTRY = "the C++ entry of the ops"
PACKAGES = Path(__file__).resolve().parents[2] / "ops"

Build = tuple[str, Callable[[], object]]


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which ends what stands still when its supervisor is gone
    os.nice(NICE)
    with concurrent.futures.ThreadPoolExecutor(max(2, int(SHARE * usable_cores()))) as threads:
        for name in filter(None, threads.map(_build, _builds())):
            print(name, flush=True)


def _builds() -> Iterator[Build]:
    """In the order in which they begin."""
    yield ENTRY, native.provide
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != HOPPER:
        return
    yield "the launcher", launcher.launcher
    for source in cuda_sources():
        yield f"{source.parent.name}/{source.name}", functools.partial(cuda.build_cubin, source)


def cuda_sources() -> list[Path]:
    """Our kernels of CUDA C++."""
    return sorted(PACKAGES.rglob("*.cu"))


def _build(one: Build) -> str:
    """Its name, if it is built."""
    with contextlib.suppress(BuildError, ImportError, OSError):
        return one[0] if one[1]() is not None else ""
    return ""


if __name__ == "__main__":
    main()
