"""System calls that a candidate has no use for, and that reach beyond its namespaces: a filter of the kernel's refuses
them, and Landlock refuses to open anything for writing but what is its own. Neither needs a right or a library.

Sockets of files are refused where they connect and where they listen: a socket that listens outside by a name in the
file system, or that would be found there, another process's FIFO, a key of the user's, the kernel's log, another
process's memory, mounts and programs in the kernel are out of reach.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence

__all__ = ["close_files_to_writing", "filter_system_calls"]

PR_SET_SECCOMP, FILTER_MODE = 22, 2
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # of the filter's machine
ALLOW, REFUSE, END = 0x7FFF0000, 0x00050000, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEW_NAMESPACES = 0x7E020000 | 0x80  # flags of clone
X32 = 0x40000000

# Number on x86_64 and on aarch64; -1 where there is none.
REFUSED_CALLS = {
    "connect": (42, 203), "sendmmsg": (307, 269), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    "open_by_handle_at": (304, 265), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "swapon": (167, 224),
    "swapoff": (168, 225), "reboot": (169, 142), "sethostname": (170, 161), "quotactl": (179, 60),
    "acct": (163, 89), "syslog": (103, 116), "listen": (50, 201), "pidfd_getfd": (438, 438),
    "iopl": (172, -1), "ioperm": (173, -1), "fanotify_init": (300, 262), "kcmp": (312, 272),
    "process_madvise": (440, 440), "modify_ldt": (154, -1), "name_to_handle_at": (303, 264),
}  # fmt: skip
# Which libraries do without where a kernel has none: rings of calls that no filter sees, a clone whose flags lie in
# memory, reading and writing that goes on while a process is stopped, and memory that nobody else can read.
UNKNOWN_CALLS = {
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "clone3": (435, 435), "openat2": (437, 437), "io_setup": (206, 0), "io_submit": (209, 2),
    "memfd_secret": (447, 447),
}  # fmt: skip
# By which of a call's arguments it gives a file rights: one that runs as its owner lends those to whoever finds it,
# past the end of all of this.
MODES = {
    "chmod": (90, -1, 1), "fchmod": (91, 52, 1), "fchmodat": (268, 53, 2), "fchmodat2": (452, 452, 2),
    "creat": (85, -1, 1), "open": (2, -1, 2), "openat": (257, 56, 3), "mknod": (133, -1, 1), "mknodat": (259, 33, 2),
}  # fmt: skip
AS_ITS_OWNER = 0o6000
PRCTL, SIGNAL_OF_PARENTS_END = (157, 167), 1  # whoever takes that signal back lives on where the judge is killed
SENDMSG, SENDTO, CLONE, SOCKET = (46, 211), (44, 206), (56, 220), (41, 198)
FAMILIES = (1, 2, 10, 16)  # of sockets: of files, of both internets, and by which those are asked for their addresses
ADDRESS = 4  # of sendto's arguments

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
# Writing to a file, and making, linking and removing entries of each kind; of later kernels moving and shortening, too.
WRITES, MOVES, SHORTENS = 0x2 | 0x1FF0, 0x2000, 0x4000
O_PATH = os.O_PATH | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


def _one(code: int, value: int, then: int = 0, other: int = 0) -> bytes:
    return struct.pack("HBBI", code, then, other, value)


def _argument(number: int) -> int:
    """Where the low half of an argument lies."""
    return 16 + 8 * number


def _program(at: int, architecture: int) -> bytes:
    """``at``: the column of the numbers."""
    steps = [_one(LOAD, 4), _one(EQUAL, architecture, 1, 0), _one(RETURN, END), _one(LOAD, 0)]
    steps += [_one(ANY_BIT, X32, 0, 1), _one(RETURN, REFUSE | errno.ENOSYS)] if at == 0 else []
    for numbers, code in ((REFUSED_CALLS, errno.EPERM), (UNKNOWN_CALLS, errno.ENOSYS)):
        for number in (one[at] for one in numbers.values() if one[at] >= 0):
            steps += [_one(EQUAL, number, 0, 1), _one(RETURN, REFUSE | code)]
    steps += [_one(EQUAL, SENDMSG[at], 0, 1), _one(RETURN, REFUSE | errno.EPERM)]
    new = [_one(LOAD, _argument(0)), _one(ANY_BIT, NEW_NAMESPACES, 0, 1), _one(RETURN, REFUSE | errno.EPERM)]
    steps += [_one(EQUAL, CLONE[at], 0, len(new) + 1), *new, _one(RETURN, ALLOW)]
    other = [_one(RETURN, REFUSE | errno.EAFNOSUPPORT)]
    steps += [_one(EQUAL, SOCKET[at], 0, len(FAMILIES) + 3), _one(LOAD, _argument(0))]
    steps += [_one(EQUAL, family, len(FAMILIES) - number, 0) for number, family in enumerate(FAMILIES)]
    steps += [*other, _one(RETURN, ALLOW)]
    to = [
        _one(LOAD, _argument(ADDRESS)), _one(EQUAL, 0, 1, 0), _one(RETURN, REFUSE | errno.EPERM),
        _one(LOAD, _argument(ADDRESS) + 4), _one(EQUAL, 0, 1, 0), _one(RETURN, REFUSE | errno.EPERM),
    ]  # fmt: skip
    steps += [_one(EQUAL, SENDTO[at], 0, len(to) + 1), *to, _one(RETURN, ALLOW)]
    for on_x86, on_arm, argument in MODES.values():
        number = (on_x86, on_arm)[at]
        if number >= 0:
            refused = [_one(LOAD, _argument(argument)), _one(ANY_BIT, AS_ITS_OWNER, 0, 1)]
            refused += [_one(RETURN, REFUSE | errno.EPERM), _one(RETURN, ALLOW)]
            steps += [_one(EQUAL, number, 0, len(refused)), *refused]
    # Libraries that ask for it for processes of their own are told that they have it.
    kept = [_one(LOAD, _argument(0)), _one(EQUAL, SIGNAL_OF_PARENTS_END, 0, 1), _one(RETURN, REFUSE)]
    steps += [_one(EQUAL, PRCTL[at], 0, len(kept)), *kept]
    return b"".join([*steps, _one(RETURN, ALLOW)])


def filter_system_calls() -> None:
    """Of this process and its descendants, from now on. Raises OSError."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no table of calls for {machine}")
    program = ctypes.create_string_buffer(_program([*ARCHITECTURES].index(machine), ARCHITECTURES[machine]))
    count = (len(program) - 1) // 8
    handed = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", count, ctypes.addressof(program)))
    if _libc.prctl(PR_SET_SECCOMP, FILTER_MODE, handed, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def close_files_to_writing(own: Sequence[str]) -> None:
    """Nothing but what lies below these places is opened for writing from now on, FIFOs and devices neither. Raises
    OSError."""
    version = _libc.syscall(ctypes.c_long(LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    rights = WRITES | (MOVES if version >= 2 else 0) | (SHORTENS if version >= 3 else 0)
    handled = ctypes.c_uint64(rights)
    rules = _libc.syscall(ctypes.c_long(LANDLOCK_CREATE), ctypes.byref(handled), ctypes.c_size_t(8), ctypes.c_uint32(0))
    _check(rules)
    try:
        for place in own:
            below = os.open(place, O_PATH)
            allowed = rights if os.path.isdir(place) else rights & (0x2 | SHORTENS)
            beneath = ctypes.create_string_buffer(struct.pack("=Qi", allowed, below))
            code = _libc.syscall(
                ctypes.c_long(LANDLOCK_ADD), ctypes.c_int(rules), ctypes.c_int(1), beneath, ctypes.c_uint32(0)
            )
            os.close(below)
            _check(code)
        _check(_libc.syscall(ctypes.c_long(LANDLOCK_RESTRICT), ctypes.c_int(rules), ctypes.c_uint32(0)))
    finally:
        os.close(rules)


def _check(code: int) -> None:
    if code < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
