"""Which walls of a sandbox a GPU's driver does not start behind: found by trying, since drivers and containers differ.

A process with all walls asks the driver to start. If it does not, a process without any asks, and then walls are put
back one by one, the strongest first, as long as it starts. What is left out stands in the judgement's first line.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from kernelworks.judge.process import sandbox
from kernelworks.judge.process.cleanup import remove_folder

__all__ = ["WALLS", "driver_starts_behind", "walls_to_leave_out"]

# As ``Isolation.attempt`` names them, those first whose loss lets the least through.
WALLS = (
    "shared memory", "seeing processes", "devices", sandbox.OTHERS_PLACES, "rights", "system calls", "users",
    "writing elsewhere", "network", "processes", "mounts", "files",
)  # fmt: skip
DRIVER = "libcuda.so.1"
CPU_S = 60.0  # of the driver's start; it takes a second or two


def walls_to_leave_out(starts: Callable[[frozenset[str]], bool]) -> frozenset[str]:
    """As few as there must be: none if the driver starts behind all of them, or does not start without any (then the
    walls are not what keeps it); else all but those that it starts behind, the strongest put back first. Cost: a start
    of the driver, or two more than there are walls."""
    left_out = frozenset(WALLS)
    if starts(frozenset()) or not starts(left_out):
        return frozenset()
    for wall in reversed(WALLS):
        if starts(left_out - {wall}):
            left_out -= {wall}
    return left_out


def driver_starts_behind(left_out: frozenset[str], start: Callable[[], bool] | None = None) -> bool:
    """Whether CUDA's driver starts in a process with all walls but these. ``start`` stands in for the driver."""
    folder = Path(tempfile.mkdtemp(prefix="kernelworks-driver-"))
    tried = os.fork()
    if tried == 0:
        code = 1
        try:
            apart = sandbox.Isolation(left_out)
            sandbox.leave_others(apart, folder)
            inner = os.fork()  # the first in a namespace of processes
            if inner == 0:
                sandbox.enclose(folder, apart, CPU_S, "cuda", filtered=True)
                code = 0 if (start or _start_driver)() else 1
            else:
                code = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
        except BaseException:  # whatever goes wrong, nothing of the process that was forked runs on
            code = 1
        finally:
            os._exit(abs(code))
    how = os.waitstatus_to_exitcode(os.waitpid(tried, 0)[1])
    with contextlib.suppress(OSError):
        remove_folder(folder)
    return how == 0


def _start_driver() -> bool:
    """Whether there is a device after it: a context is made on the first."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return False
    count, context = ctypes.c_int(0), ctypes.c_void_p()
    return (
        driver.cuInit(0) == 0
        and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
        and count.value > 0
        and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    )
