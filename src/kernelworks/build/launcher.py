"""The way from Python to a kernel on the GPU: ``launch.cpp``, opened once, and its errors as exceptions."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelworks.build.cpp import library

__all__ = [
    "SOURCE",
    "UNKNOWN",
    "LaunchError",
    "LoadedFunction",
    "check_status",
    "launch_log",
    "launcher",
    "load",
    "recording",
]

SOURCE = Path(__file__).resolve().parent / "launch.cpp"
UNKNOWN = -2  # what `launch` answers for arguments that no function is bound to yet
COOPERATIVE, SERIALIZATION, TRITON = 1, 2, 4


class LaunchError(RuntimeError):
    """The driver refused to load or launch a kernel; the text holds its words."""


@dataclass(frozen=True)
class LoadedFunction:
    """A function on a device: its number in the launcher, and what it takes of the machine."""

    number: int
    registers: int  # a thread
    local_bytes: int  # a thread: spills and stack
    shared_bytes: int  # a block, static part


@functools.cache
def launcher() -> Any:
    """The compiled launcher. Raises BuildError where it cannot be built (no C++ compiler)."""
    return library(SOURCE, "scalar")


def check_status(status: int, what: str) -> None:
    """Raises LaunchError unless ``status`` is 0."""
    if status:
        text = torch.zeros(256, dtype=torch.uint8)
        launcher().error(text, status)
        raise LaunchError(f"{what}: {bytes(text.tolist()).split(bytes(1))[0].decode()} (code {status})")


def load(
    image: bytes, name: str, device: int, *, threads: int, shared: int = 0, cluster: int = 1, flags: int = 0
) -> LoadedFunction:
    """Loads a cubin's function onto a device. ``threads`` a block, ``shared`` dynamic bytes, ``cluster`` blocks.

    Modules stay loaded for the life of the process. Raises LaunchError.
    """
    result = torch.zeros(4, dtype=torch.int64)
    kept = ctypes.create_string_buffer(image, len(image)), ctypes.create_string_buffer(name.encode())
    addresses = [ctypes.addressof(buffer) for buffer in kept]
    status = launcher().load(result, device, *addresses, threads, shared, cluster, flags)
    check_status(status, f"loading {name}")
    return LoadedFunction(*result.tolist())


# ---------------------------------------------------------------- who watches launches

# What launches (one of Triton's or of CUDA C++), grid, arguments.
RecordedLaunches = list[tuple[Any, tuple[int, int, int], tuple[Any, ...]]]


class _Seen(threading.local):
    """The launches of this thread while somebody records them."""

    launches: RecordedLaunches | None = None
    dry = False  # kernels of CUDA C++ are not launched


launch_log = _Seen()


@contextmanager
def recording(dry: bool = False) -> Iterator[RecordedLaunches]:
    """Collects what this thread launches inside; with ``dry`` kernels of CUDA C++ are noted and not launched."""
    before, launch_log.launches, launch_log.dry = (launch_log.launches, launch_log.dry), [], dry
    try:
        yield launch_log.launches
    finally:
        launch_log.launches, launch_log.dry = before
