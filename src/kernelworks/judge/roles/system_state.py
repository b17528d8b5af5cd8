"""What the system and the C library keep of a process, below what Python tells: its own calls of these see none of a
C extension's."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import socket
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch

__all__ = ["SYSTEM_SETTINGS", "count_audit_hooks", "library_variables", "strange_modules"]

_C: Any = torch._C
_libc = ctypes.CDLL(None)
_environ = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
# Libraries tell themselves here that they are loaded.
LIBRARIES_OWN = ("__", "KMP_", "CUDA_", "NVIDIA_", "KINETO_", "TORCH_", "TRITON_", "MAX_JOBS")
THREADS_OWN = 0b11 << 31  # signals 32 and 33, by which the C library speaks to threads
ASK_PERSONALITY, GET_TIMER_SLACK, GET_HUGE_PAGES = 0xFFFFFFFF, 30, 42
audit_hooks = [0]  # that somebody has added since ``count_audit_hooks``
_prctl, _personality = _libc.prctl, _libc.personality
_origin = PathFinder.find_spec


def library_variables() -> dict[str, str]:
    """The C library's, of which Python has a copy."""
    found, at = {}, 0
    while (entry := _environ[at]) is not None:
        name, _, value = os.fsdecode(entry).partition("=")
        if not name.startswith(LIBRARIES_OWN):
            found[name] = value
        at += 1
    return found


def _signals() -> list[int]:
    """Those that are blocked, ignored and caught, whoever has asked for it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    said = dict(line.split(":", 1) for line in lines if line.startswith(("SigBlk", "SigIgn", "SigCgt")))
    return [int(said[name], 16) & ~THREADS_OWN for name in ("SigBlk", "SigIgn", "SigCgt")]


def _descriptors() -> list[tuple[int, int]]:
    """Where what a program writes goes."""
    return [(where.st_dev, where.st_ino) for where in map(os.fstat, (0, 1, 2))]


SYSTEM_SETTINGS: dict[str, Callable[[], Any]] = {
    "signals that are blocked, ignored or caught": _signals,
    "descriptors of input and output": _descriptors,
    "faults that are told": faulthandler.is_enabled,
    "depth of calls": sys.getrecursionlimit,
    "patience of sockets": socket.getdefaulttimeout,
    "hooks of audits": lambda: audit_hooks[0],
    "keys of dispatch": lambda: (
        str(_C._dispatch_tls_local_include_set()), str(_C._dispatch_tls_local_exclude_set())
    ),
    "ways of the kernel": lambda: (
        _personality(ASK_PERSONALITY), _prctl(GET_TIMER_SLACK, 0, 0, 0, 0), _prctl(GET_HUGE_PAGES, 0, 0, 0, 0)
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
