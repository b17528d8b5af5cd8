"""A process with nothing but its own: no network, no other processes, no file that it could change but those in its
folder, no rights, and limits on what it takes.

Linux's namespaces do it, straight through the system calls. Where the kernel refuses one of them (many containers
do) the process runs without, and says so: a judgement lists what its candidate was not kept from.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from kernelworks.machine import environment
from kernelworks.machine.parent_process import die_with_parent

__all__ = [
    "CACHES", "INSIDE", "Isolation", "caches", "enclose", "keep_only", "keep_orphans",
    "leave_others",
]  # fmt: skip

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, ATTR_RDONLY = 442, -100, 0x8000, 1  # one number on every architecture
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
CAPABILITIES = 0x20080522  # the version of the kernel's header
FILE_BYTES = 2 << 30  # of one file that it writes: compilers' are smaller
FILES = 512
ENDLESS = 1 << 62  # bytes
MEMORY = 0.6  # of what is available, beside what the process begins with

INSIDE = Path("/tmp/judged")  # where its folder is, as it sees it

_libc = ctypes.CDLL(None, use_errno=True)


class Isolation:
    """What a process is kept from, and what not and why."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.open: list[str] = []

    def attempt(self, what: str, step: Callable[[], None]) -> bool:
        try:
            step()
        except OSError as error:
            self.open.append(f"{what}: {error.strerror}")
            return False
        self.kept.append(what)
        return True

    def not_tried(self, why: str, *words: str) -> None:
        """What a process is not kept from, since a step before it was refused."""
        self.open += [f"{what}: {why}" for what in words]


def _done(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = (w.encode() if w is not None else None for w in (source, target, kind))
    _done(_libc.mount(*words, ctypes.c_ulong(flags), data.encode() if data else None))


def _unshare(flags: int) -> None:
    _done(_libc.unshare(flags))


def _as_root_of_its_own() -> None:
    """A namespace of users in which this one may do what the others need."""
    user, group = os.getuid(), os.getgid()
    _unshare(NEWUSER)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="ascii")


def leave_others(apart: Isolation) -> None:
    """Before the fork of which the child is to be apart: namespaces of its own, each that can be had."""
    if os.getuid() != 0:
        apart.attempt("users", _as_root_of_its_own)
    for what, flag in (("network", NEWNET), ("processes", NEWPID), ("files", NEWNS), ("shared memory", NEWIPC)):
        apart.attempt(what, lambda flag=flag: _unshare(flag))  # type: ignore[misc]


def keep_only(descriptors: Sequence[int]) -> None:
    """Closes every other descriptor; input reads as empty, and what is printed goes nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    kept = sorted({0, 1, 2, *descriptors})
    for low, high in zip(kept, [*kept[1:], resource.getrlimit(resource.RLIMIT_NOFILE)[0]], strict=True):
        os.closerange(low + 1, high)


def enclose(folder: Path, apart: Isolation, cpu_s: float, device: str = "cpu") -> Path:
    """In the child: its own view of files and processes, limits, and no rights. Returns its folder as it sees it."""
    seen = folder
    if "files" in apart.kept:
        seen = _own_files(folder, apart)
    else:
        apart.not_tried("no files of its own", "writing elsewhere", "seeing processes")
    with contextlib.suppress(OSError):
        os.chdir(seen)
    with contextlib.suppress(OSError):  # where memory runs out it is this one that goes, and nobody of the judge's
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    _limits(cpu_s, memory=device == "cpu")
    if device != "cpu":
        apart.not_tried("a GPU's driver maps its memory too", "taking the host's memory")
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header, none = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    apart.attempt("rights", lambda: _done(_libc.capset(header, none)))
    die_with_parent()
    return seen


def keep_orphans() -> None:
    """Descendants of this process whose parents end become its children: they are found where it is known."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _own_files(folder: Path, apart: Isolation) -> Path:
    inside = os.open(folder, os.O_PATH)
    if not apart.attempt("mounts", lambda: _mount("none", "/", None, MS_REC | MS_PRIVATE)):
        os.close(inside)
        apart.not_tried("no mounts of its own", "writing elsewhere", "seeing processes")
        return folder  # what is mounted now would be everybody's
    readable = apart.attempt("writing elsewhere", lambda: _attributes("/", AT_RECURSIVE, ATTR_RDONLY, 0))
    if "processes" in apart.kept:
        apart.attempt("seeing processes", lambda: _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC))
    else:
        apart.not_tried("no processes of its own", "seeing processes")
    for place in filter(_spare, ("/dev/shm", str(Path.home()), "/tmp")):
        apart.attempt(f"others' {place}", lambda p=place: _mount("none", p, "tmpfs", MS_NOSUID | MS_NODEV))  # type: ignore[misc]
    seen = INSIDE if "others' /tmp" in apart.kept else folder
    if readable:
        seen.mkdir(exist_ok=True)
        apart.attempt("its folder", lambda: _writable(f"/proc/self/fd/{inside}", str(seen)))
    os.close(inside)
    return seen


def _attributes(place: str, flags: int, add: int, clear: int) -> None:
    wanted = (ctypes.c_uint64 * 4)(add, clear, 0, 0)
    at, path, size = ctypes.c_int(AT_FDCWD), ctypes.c_char_p(place.encode()), ctypes.c_size_t(ctypes.sizeof(wanted))
    _done(_libc.syscall(ctypes.c_long(MOUNT_SETATTR), at, path, ctypes.c_uint(flags), ctypes.byref(wanted), size))


def _writable(folder: str, seen: str) -> None:
    _mount(folder, seen, None, MS_BIND)
    _attributes(seen, 0, 0, ATTR_RDONLY)


def _spare(place: str) -> bool:
    """Whether Python and this package do not live there."""
    there = Path(place).resolve()
    needed = {
        Path(p).resolve() for p in (sys.prefix, sys.base_prefix, sys.exec_prefix, __file__, *filter(None, sys.path))
    }
    return there.is_dir() and there != Path("/") and not any(there in (path, *path.parents) for path in needed)


def _limits(cpu_s: float, *, memory: bool) -> None:
    begun, available = _kilobytes("/proc/self/status", "VmData"), _kilobytes("/proc/meminfo", "MemAvailable")
    wanted = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_CPU, max(1, round(cpu_s))),
        (resource.RLIMIT_DATA, 1024 * (begun + round(MEMORY * available)) if begun and available else ENDLESS),
    )
    for what, most in wanted if memory else wanted[:-1]:
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(what, (least, least))


def _kilobytes(file: str, name: str) -> int:
    """A line of /proc: files that the kernel could drop are available too, though they are not free."""
    with open(file, encoding="ascii") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def caches(folder: Path) -> None:
    """What compilers keep lies in the folder, and nothing else is told to the process by its variables."""
    told = {name: value for name, value in environment.variables().items() if name in PASSED_VARIABLES}
    own = {name: str(folder / below) for name, below in CACHES.items()}
    environment.restore_variables(told | own | {"TORCHINDUCTOR_COMPILE_THREADS": "1"})
    tempfile.tempdir = None  # asked before the fork: it is another one now


# Variables that a process needs to run as this one does; others may hold what is nobody's business.
PASSED_VARIABLES = {
    "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CXX", "CC", "PYTHONPATH",
    "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "KERNELWORKS_CXX", "KERNELWORKS_CHOOSE", "KERNELWORKS_ISA",
    "KERNELWORKS_NATIVE", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
    "TRITON_INTERPRET", "TORCH_CUDA_ARCH_LIST", "MKL_NUM_THREADS",
}  # fmt: skip
CACHES = {
    "HOME": ".", "TMPDIR": ".", "XDG_CACHE_HOME": "cache", "TORCH_EXTENSIONS_DIR": "extensions",
    "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "KERNELWORKS_CACHE": "kernelworks",
    "CUDA_CACHE_PATH": "cuda",
}  # fmt: skip
