"""A process with nothing but its own: no network, no other processes, no file that it could change but those in its
folder, no devices, no rights, not its user's number where that is root's, no call of the kernel that reaches beyond all
that, and limits on what it takes.

Linux's namespaces do it, straight through the system calls, with a filter of system calls and Landlock. Where the
kernel refuses one of them (many containers do) the process runs without, and says so: a judgement lists what its
candidate was not kept from, and names the walls that are missing in its first line.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import resource
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from kernelworks.judge.process.own_files import (
    COVERED_PLACES,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    OpenedPlaces,
    cover,
    covered_places,
    make_devices,
    mount,
    mount_writable,
    set_read_only,
)
from kernelworks.judge.process.syscall_filter import close_files_to_writing, filter_system_calls
from kernelworks.machine import environment
from kernelworks.machine.parent_process import die_with_parent

__all__ = [
    "CACHES", "INSIDE", "OTHERS_PLACES", "Isolation", "caches", "enclose", "keep_only", "keep_orphans",
    "leave_others",
]  # fmt: skip

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
MS_PRIVATE = 1 << 18
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 36, 38
NOBODY = 65534
# To change owners, groups and users, and to read the memory of another one's process.
RIGHTS_TO_DROP = (0, 6, 7, 19)
PROCESSES = 4096  # and threads of its user, where that is nobody else's
COUNTED_SINCE = (5, 14)  # of Linux
WRITABLE_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/shm")
CAPABILITIES = 0x20080522  # the version of the kernel's header
FILE_BYTES = 2 << 30  # of one file that it writes: compilers' are smaller
FILES = 512
ENDLESS = 1 << 62  # bytes
MEMORY = 0.6  # of what is available, beside what the process begins with

OTHERS_PLACES = "others'"  # how the walls before places of others' files are named
INSIDE = Path("/tmp/judged")  # where its folder is, as it sees it

_libc = ctypes.CDLL(None, use_errno=True)


class Isolation:
    """What a process is kept from, and what not and why. Walls that are ``left_out`` are not tried: a GPU's driver does
    not start behind them (``driver_walls.py``)."""

    def __init__(self, left_out: Collection[str] = ()) -> None:
        self.left_out = frozenset(left_out)
        self.kept: list[str] = []
        self.open: list[str] = []
        self.becomes_nobody = False  # its user's number is root's until its files are open
        self.drops_root = False  # or until its mounts are made, where there is no namespace of users

    def attempt(self, what: str, step: Callable[[], None]) -> bool:
        if (OTHERS_PLACES if what.startswith(OTHERS_PLACES) else what) in self.left_out:
            self.not_tried("a GPU's driver does not start behind it", what)
            return False
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


def _unshare(flags: int) -> None:
    _done(_libc.unshare(flags))


def _as_root_of_its_own() -> None:
    """A namespace of users in which this one may do what the others need."""
    user, group = os.getuid(), os.getgid()
    _unshare(NEWUSER)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="ascii")


def _as_nobody() -> None:
    """A namespace of users whose root is nobody outside: the kernel lets only somebody outside say so, which is a
    process of root's that is forked before."""
    (ours, theirs), (told, tells) = os.pipe(), os.pipe()
    me, helper = os.getpid(), os.fork()
    if helper == 0:
        code = 1
        try:
            os.close(theirs)
            os.read(ours, 1)
            for kind in ("uid_map", "gid_map"):
                Path(f"/proc/{me}/{kind}").write_text(f"0 {NOBODY} 1", encoding="ascii")
            os.write(tells, b"+")
            code = 0
        finally:
            os._exit(code)
    os.close(ours)
    os.close(tells)
    try:
        os.setgroups([])
        _unshare(NEWUSER)
        os.write(theirs, b"+")
        if os.read(told, 1) != b"+":
            raise OSError(errno.EPERM, "nobody is nobody's number here")
    finally:
        os.close(theirs)
        os.close(told)
        os.waitpid(helper, 0)


def _is_mapping_possible() -> bool:
    """Whether root's processes may be another user's in a namespace of their own: tried in one that ends at once."""
    tried = os.fork()
    if tried == 0:
        code = 1
        try:
            _as_nobody()
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(tried, 0)[1]) == 0


def _has_rights(numbers: Sequence[int]) -> bool:
    """Whether this process may do what each of these capabilities allows."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    held = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return all(held >> number & 1 for number in numbers)


def _drop_root() -> None:
    """This process is nobody's, for good. Raises OSError, where nobody would not find Python too."""
    tried = os.fork()
    if tried == 0:
        code = 1
        try:
            _become(NOBODY)
            for place in filter(os.path.isdir, (sys.prefix, sys.base_prefix, str(Path(__file__).parent), *sys.path)):
                os.listdir(place)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(tried, 0)[1] != 0:
        raise OSError(errno.EACCES, "nobody finds no Python here")
    _become(NOBODY)


def _become(number: int) -> None:
    if number:
        os.setgroups([])
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)
    _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # the kernel takes that back with another user's number


def give_folder(folder: Path) -> None:
    """What lies in a folder is nobody's, as whose user a process of root's may run."""
    with contextlib.suppress(OSError):
        os.chown(folder, NOBODY, NOBODY)
        for _, folders, files, at in os.fwalk(folder):
            for name in (*folders, *files):
                with contextlib.suppress(OSError):
                    if os.stat(name, dir_fd=at, follow_symlinks=False).st_uid == 0:
                        os.chown(name, NOBODY, NOBODY, dir_fd=at, follow_symlinks=False)


def leave_others(apart: Isolation, folder: Path) -> None:
    """Before the fork of which the child is to be apart: namespaces of its own, each that can be had."""
    if os.getuid() != 0:
        apart.attempt("users", _as_root_of_its_own)
    elif _is_mapping_possible():
        give_folder(folder)
        apart.becomes_nobody = apart.attempt("users", _as_nobody)
    elif _has_rights(RIGHTS_TO_DROP):
        give_folder(folder)
        apart.drops_root = True
    else:
        apart.not_tried("no other user's number can be had", "users")
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


def enclose(folder: Path, apart: Isolation, cpu_s: float, device: str, *, filtered: bool) -> Path:
    """In the child: its own view of files and processes, limits, and no rights; ``filtered`` where foreign code decides
    which system calls it makes. Returns its folder as it sees it."""
    with contextlib.suppress(OSError):  # where memory runs out it is this one that goes, and nobody of the judge's
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    opened, inside = OpenedPlaces(device), os.open(folder, os.O_PATH)
    if apart.becomes_nobody:
        _become(0)
    seen = folder
    if "files" in apart.kept:
        seen = _own_files(folder, inside, opened, apart)
    else:
        apart.not_tried("no files of its own", "writing elsewhere", "seeing processes", "devices")
    opened.close()
    os.close(inside)
    with contextlib.suppress(OSError):
        os.chdir(seen)
    if apart.drops_root:
        apart.becomes_nobody = apart.attempt("users", _drop_root)
    alone = apart.becomes_nobody or ("users" in apart.kept and _is_counted_by_namespace())
    _limits(cpu_s, memory=device == "cpu", processes=alone)
    if device != "cpu":
        apart.not_tried("a GPU's driver maps its memory too", "taking the host's memory")
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header, none = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    apart.attempt("rights", lambda: _done(_libc.capset(header, none)))
    own = [str(seen), *(p for p in (*WRITABLE_DEVICES, *COVERED_PLACES) if os.path.exists(p))]
    if device == "cpu":  # a GPU's devices are opened for writing
        apart.attempt("writing to anything", lambda: close_files_to_writing(own))
    die_with_parent()  # before the filter, behind which nobody takes that back
    if filtered:
        apart.attempt("system calls", filter_system_calls)
    return seen


def keep_orphans() -> None:
    """Descendants of this process whose parents end become its children: they are found where it is known."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _own_files(folder: Path, inside: int, opened: OpenedPlaces, apart: Isolation) -> Path:
    if not apart.attempt("mounts", lambda: mount("none", "/", None, MS_REC | MS_PRIVATE)):
        apart.not_tried("no mounts of its own", "writing elsewhere", "seeing processes", "devices")
        return folder  # what is mounted now would be everybody's
    readable = apart.attempt("writing elsewhere", lambda: set_read_only("/"))
    if "processes" in apart.kept:
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY
        apart.attempt("seeing processes", lambda: mount("proc", "/proc", "proc", flags))
    else:
        apart.not_tried("no processes of its own", "seeing processes")
    apart.attempt("devices", lambda: make_devices(opened))
    for place in covered_places():
        if place.is_dir() and not opened.is_needed(place):  # one below another is gone with that
            apart.attempt(f"{OTHERS_PLACES} {place}", lambda p=str(place): cover(p, opened))  # type: ignore[misc]
    seen = INSIDE if f"{OTHERS_PLACES} /tmp" in apart.kept else folder
    if readable:
        seen.mkdir(exist_ok=True)
        apart.attempt("its folder", lambda: mount_writable(inside, str(seen)))
    return seen


def _limits(cpu_s: float, *, memory: bool, processes: bool) -> None:
    begun, available = _kilobytes("/proc/self/status", "VmData"), _kilobytes("/proc/meminfo", "MemAvailable")
    wanted: tuple[tuple[int, int], ...] = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_CPU, max(1, round(cpu_s))),
        (resource.RLIMIT_DATA, 1024 * (begun + round(MEMORY * available)) if begun and available else ENDLESS),
    )
    if processes:
        wanted = ((resource.RLIMIT_NPROC, PROCESSES), *wanted)
    for what, most in wanted if memory else wanted[:-1]:
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(what, (least, least))


def _is_counted_by_namespace() -> bool:
    """Whether the kernel counts the processes of each namespace of users by themselves: before, all of the user's were
    one number, and others of theirs would be kept from starting any."""
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= COUNTED_SINCE


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
