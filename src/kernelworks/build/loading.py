"""A compiled library into this process, or a BuildError: a file that cannot be loaded is a fault like any other.

The file's tables are read before the system's loader sees it, because a loader that meets a file cut short does not
raise: the process dies of SIGBUS. All symbols are bound at once, because one that is missing would end the process at
the first call.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import threading
from pathlib import Path
from typing import Any

from kernelworks.build.cache import BuildError

__all__ = ["load_library", "open_library", "unfit"]

MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine, by what the system calls itself
EXPORT = re.compile(r"^KW_(?:EXPORT|ANSWER|POINTWISE\w*)\((\w+)[,)]", re.MULTILINE)
_opening = threading.Lock()


def unfit(path: Path) -> str:
    """Why a file is no whole shared library for this kind of CPU, or nothing."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(64)
            if len(head) < 64 or head[:4] != b"\x7fELF":
                return "it is no ELF file"
            if head[4:6] != b"\x02\x01":
                return "it is not a 64-bit little-endian ELF file"
            kind, machine = struct.unpack_from("<HH", head, 16)
            programs, sections = struct.unpack_from("<QQ", head, 32)
            entry, count, section, many = struct.unpack_from("<HHHH", head, 54)
            wanted = MACHINES.get(platform.machine())
            if kind != 3:
                return "it is no shared library"
            if wanted is not None and machine != wanted:
                return f"it is for another CPU (ELF machine {machine}, here {wanted})"
            if entry < 56 or not count or max(programs + entry * count, sections + section * many) > size:
                return "it is cut short"
            file.seek(programs)
            table = file.read(entry * count)
            for i in range(count):
                start, (held,) = (
                    struct.unpack_from("<Q", table, i * entry + 8)[0],
                    struct.unpack_from("<Q", table, i * entry + 32),
                )
                if start + held > size:
                    return "it is cut short"
    except (OSError, struct.error) as error:
        return str(error)
    return ""


def open_library(path: Path) -> ctypes.CDLL:
    """The library, all its symbols bound. Raises BuildError: not whole, for another CPU, a symbol missing, a file
    system that is mounted ``noexec``."""
    wrong = unfit(path)
    if not wrong:
        try:
            return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            wrong = str(error)
    if _noexec(path):
        text = f"{path.parent} is on a file system mounted noexec: nothing there can be loaded (set KERNELWORKS_CACHE)"
        raise BuildError(f"{text}: {wrong}", about=str(path.parent))
    raise BuildError(f"the compiled library {path} cannot be loaded: {wrong}", about=str(path))


def _noexec(path: Path) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


def load_library(path: Path, source: Path) -> Any:
    """The library with its functions as attributes, every one that ``source`` exports. Raises BuildError."""
    import tvm_ffi

    with _opening:
        handle = open_library(path)
        missing = [
            n for n in EXPORT.findall(source.read_text(encoding="utf-8")) if not hasattr(handle, f"__tvm_ffi_{n}")
        ]
        if missing:
            raise BuildError(f"the compiled library {path} exports no {', '.join(missing)}", about=str(path))
        try:
            return tvm_ffi.load_module(str(path))
        except Exception as error:  # whatever the binding raises: the kernels above torch's are then not there
            raise BuildError(f"the compiled library {path} cannot be loaded: {error}", about=str(path)) from error
