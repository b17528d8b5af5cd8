"""The CPU's own counters around one call, where the system gives them: cycles and instructions."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Callable, Iterator

__all__ = ["counters"]

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}  # its number among the system's calls
HARDWARE, CYCLES, INSTRUCTIONS = 0, 0, 1
USER_ONLY = 0b11 << 5 | 1 << 1  # neither kernel nor hypervisor; inherited by threads that start later
CALLS = 3


@contextlib.contextmanager
def _counter(event: int) -> Iterator[int]:
    """A file to read the count from. Raises OSError."""
    number = PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        raise OSError("not known on this architecture")
    attributes = struct.pack("IIQQQQQIIQQ", HARDWARE, 72, event, 0, 0, 0, USER_ONLY, 0, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.syscall(number, ctypes.create_string_buffer(attributes, 128), 0, -1, -1, 0)
    if handle < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        yield handle
    finally:
        os.close(handle)


def counters(call: Callable[[], object]) -> tuple[dict[str, float], str]:
    """``{"cycles", "instructions"}`` of one call on this thread, the least of a few; or none, and why."""
    found: dict[str, float] = {}
    try:
        for name, event in (("cycles", CYCLES), ("instructions", INSTRUCTIONS)):
            with _counter(event) as handle:
                counts = []
                for _ in range(CALLS):
                    before = struct.unpack("Q", os.read(handle, 8))[0]
                    call()
                    counts.append(struct.unpack("Q", os.read(handle, 8))[0] - before)
                found[name] = float(min(counts))
    except OSError as error:
        return {}, f"no counters of cycles and instructions: the system does not give them ({error.strerror or error})"
    return found, ""
