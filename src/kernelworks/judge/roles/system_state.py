"""What the system and the C library keep of a process, below what Python tells: its own calls of these see none of a
C extension's.

Libraries do some of it themselves as they are loaded or used, in the process of an honest candidate too: tvm-ffi
catches faults of memory, torch's compiler allows deeper calls, OpenMP's libraries note variables. So a fault that a
function of an installed library tells of, a greater depth and such libraries' own variables are no change. What nobody
does but for itself is one: a signal that is ignored or blocked, a handler of its own code, another output, a timer,
arithmetic that traps.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch

from kernelworks.judge.process.own_code import mapped_files

__all__ = ["SYSTEM_SETTINGS", "count_audit_hooks", "library_variables", "other_arithmetic", "other_handlers",
           "signal_handlers", "strange_modules"]  # fmt: skip

_C: Any = torch._C
_Library = ctypes.CDLL  # another stands there where kernels are watched
_libc = _Library(None)
_environ: Any = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
# Libraries tell themselves here that they are loaded.
LIBRARIES_OWN = (
    "__", "_TORCHINDUCTOR_", "KMP_", "CUDA_", "NVIDIA_", "KINETO_", "TORCH_", "TORCHINDUCTOR_", "TRITON_", "MAX_JOBS",
)  # fmt: skip
# By which a library tells where a program crashed: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS.
FAULTS = frozenset({4, 5, 6, 7, 8, 11, 31})
HANDLER_BYTES = 512  # more than any system's struct sigaction, which a handler's address begins
ASK_PERSONALITY, PARENTS_END, DUMPABLE, KEPT_RIGHTS, TIMER_SLACK, FAULTY_MEMORY, HUGE_PAGES = (
    0xFFFFFFFF, 2, 3, 7, 30, 34, 42
)  # fmt: skip
ASKED_CALLS = {"x86_64": {"get_mempolicy": 239, "ioprio_get": 252}, "aarch64": {"get_mempolicy": 236, "ioprio_get": 31}}
OPENMP = ("libgomp", "libomp", "libiomp")
LEAST_OF_A_THREAD = 1 << 16  # elements, from which on torch shares them out
FIRST_DEPTH = sys.getrecursionlimit()
ARITHMETIC_BYTES = 64  # more than any system's fenv_t
SSE_AT, SSE_NOTES = 28, 0x3F  # of x86-64's: where the vector unit's word lies, and what in it notes what has happened
audit_hooks = [0]  # that somebody has added since ``count_audit_hooks``
_sigaction, _fegetenv, _prctl, _personality = _libc.sigaction, _libc.fegetenv, _libc.prctl, _libc.personality
_uselocale = _libc.uselocale
_uselocale.argtypes, _uselocale.restype = [ctypes.c_void_p], ctypes.c_void_p
_full = torch.full
_mask, _origin = signal.pthread_sigmask, PathFinder.find_spec


def library_variables() -> dict[str, str]:
    """The C library's, of which Python has a copy."""
    found, at = {}, 0
    while _environ and (entry := _environ[at]) is not None:
        name, _, value = os.fsdecode(entry).partition("=")
        if not name.startswith(LIBRARIES_OWN):
            found[name] = value
        at += 1
    return found


def signal_handlers() -> dict[int, int]:
    """Of each signal the address of what the system calls, 0 for what it does itself, 1 where it is ignored."""
    found, held = {}, ctypes.create_string_buffer(HANDLER_BYTES)
    for number in sorted(signal.valid_signals()):
        if _sigaction(number, None, held) == 0:
            found[int(number)] = int.from_bytes(held.raw[:8], sys.byteorder)
    return found


def other_handlers(was: dict[int, int]) -> list[str]:
    """Signals that go elsewhere than they did, a line each."""
    found = []
    for number, handler in signal_handlers().items():
        if handler != was.get(number) and not (number in FAULTS and _is_library(handler)):
            found.append(f"signal {number} goes elsewhere than it did")
    return found


def _is_library(address: int) -> bool:
    """Whether a file lies at an address that is not of this process's own folder."""
    not_theirs = os.getcwd(), "/memfd:"
    return any(
        low <= address < high and "x" in rights and path.startswith("/") and not path.startswith(not_theirs)
        and os.path.exists(path)
        for (low, high), rights, path in mapped_files("self")
    )  # fmt: skip


def _descriptors() -> list[tuple[int, int] | None]:
    """Where what a program writes goes."""
    found: list[tuple[int, int] | None] = []
    for number in (0, 1, 2):
        try:
            where = os.fstat(number)
        except OSError:
            found.append(None)
        else:
            found.append((where.st_dev, where.st_ino))
    return found


def _arithmetic() -> tuple[int, ...]:
    """How its first thread rounds, what traps and what is taken for zero there, whoever has set that."""
    held = ctypes.create_string_buffer(ARITHMETIC_BYTES)
    _fegetenv(held)
    words = [int.from_bytes(held.raw[at : at + 4], sys.byteorder) for at in (0, SSE_AT)]
    if platform.machine() != "x86_64":
        return (words[0],)
    return words[0] & 0xFFFF, words[1] & ~SSE_NOTES


def _asked_of_kernel(name: str, *arguments: int) -> tuple[int, int]:
    """What a system call returns and writes, of those that the C library has no function for."""
    number, held = ASKED_CALLS.get(platform.machine(), {}).get(name), ctypes.c_int(-1)
    if number is None:
        return -1, -1
    given = (ctypes.byref(held), *arguments) if name.startswith("get_") else arguments
    return _libc.syscall(number, *given), held.value


def _status(name: str) -> str:
    """A line of what the kernel says of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next((line for line in lines if line.startswith(name)), "")


def _is_told_of_parents_end() -> int:
    number = ctypes.c_int(0)
    _prctl(PARENTS_END, ctypes.byref(number), 0, 0, 0)
    return number.value


def _timers() -> int:
    """How many of the kernel's timers it has; 0 where the kernel does not list them."""
    try:
        return Path("/proc/self/timers").read_text(encoding="ascii").count("ID:")
    except OSError:
        return 0


def _of_openmp() -> Any:
    """The library that torch's threads are made by; None where it is not known."""
    paths = [path for _, _, path in mapped_files("self") if Path(path).name.startswith(OPENMP)]
    return _Library(paths[0]) if paths else None


def _openmp_settings() -> tuple[int, ...]:
    """Whether it makes fewer threads than it is asked for, in how many levels, and how it shares out a loop."""
    library = _of_openmp()
    if library is None:
        return ()
    kind, share = ctypes.c_int(), ctypes.c_int()
    library.omp_get_schedule(ctypes.byref(kind), ctypes.byref(share))
    return library.omp_get_dynamic(), library.omp_get_max_active_levels(), kind.value, share.value


def _frames() -> int:
    """The address of what runs Python's frames, 0 where that is a library's: torch's compiler puts its own there."""
    api = ctypes.pythonapi
    try:
        ask = api._PyInterpreterState_GetEvalFrameFunc
    except AttributeError:
        return 0
    api.PyInterpreterState_Get.restype = ask.restype = ctypes.c_void_p
    ask.argtypes = [ctypes.c_void_p]
    address = int(ask(api.PyInterpreterState_Get()) or 0)
    return 0 if _is_library(address) else address


def other_arithmetic() -> list[str]:
    """Whether torch's threads, of which each has such a setting of its own, take tiny numbers for zero or round
    otherwise: a line."""
    count = torch.get_num_threads() * LEAST_OF_A_THREAD
    try:
        tiny, third = _full((count,), 1e-40) * 0.5, _full((count,), 1.0) / 3.0
        words = [one.view(torch.int32) for one in (tiny, third)]  # which no such setting makes equal
    except (RuntimeError, TypeError):  # torch itself is another one by then, which is said elsewhere
        return []
    return [] if all(bool((one == one[0]).all()) for one in words) else ["arithmetic of its other threads"]


SYSTEM_SETTINGS: dict[str, Callable[[], Any]] = {
    "signals that are blocked": lambda: sorted(map(int, _mask(signal.SIG_BLOCK, ()))),
    "descriptors of input and output": _descriptors,
    "faults that are told": faulthandler.is_enabled,
    "depth of calls": lambda: min(sys.getrecursionlimit(), FIRST_DEPTH),
    "patience of sockets": socket.getdefaulttimeout,
    "hooks of audits": lambda: audit_hooks[0],
    "timers of the kernel": _timers,
    "arithmetic of its first thread": _arithmetic,
    "OpenMP": _openmp_settings,
    "frames of Python": _frames,
    "memory that stays": lambda: _status("VmLck"),
    "places of memory": lambda: _asked_of_kernel("get_mempolicy", 0, 0, 0, 0),
    "turn at the disk": lambda: _asked_of_kernel("ioprio_get", 1, 0),
    "locale of its first thread": lambda: _uselocale(None),
    "keys of dispatch": lambda: (
        str(_C._dispatch_tls_local_include_set()), str(_C._dispatch_tls_local_exclude_set())
    ),
    "ways of the kernel": lambda: (
        _personality(ASK_PERSONALITY), _is_told_of_parents_end(),
        *(_prctl(asked, 0, 0, 0, 0) for asked in (DUMPABLE, KEPT_RIGHTS, TIMER_SLACK, FAULTY_MEMORY, HUGE_PAGES)),
    ),
}  # fmt: skip


def count_audit_hooks() -> None:
    """From now on in this process: nothing lists them, and nobody can take one off."""
    add = sys.addaudithook

    def counted(hook: Callable[[str, tuple[Any, ...]], Any]) -> None:
        add(hook)
        audit_hooks[0] += 1

    sys.addaudithook = counted


def strange_modules(known: frozenset[str]) -> list[str]:
    """Modules that somebody has put in the place of ones that there are and that were not loaded."""
    found = []
    for name, module in list(sys.modules.items()):
        if name in known or "." in name or name.startswith("judged_") or getattr(module, "__spec__", None) is not None:
            continue
        if _origin(name) is not None:
            found.append(f"the module {name} is another one")
    return found
