"""A process's own view of files: everything is read-only but its folder, places where others keep theirs are empty, and
there are no devices but those that hold nothing.

Python and this package may lie in such a place, a home say. There they are mounted anew, read-only, in a folder that is
empty but for them: a process without the rights of its user finds them too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "COVERED_PLACES", "OpenedPlaces", "cover", "covered_places", "make_devices", "mount", "mount_writable",
    "set_read_only",
]  # fmt: skip

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC = 1, 2, 4, 8, 4096, 16384
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, ATTR_RDONLY = 442, -100, 0x8000, 1  # one number on every architecture
COVERED_PLACES = ("/dev/shm", "/run", "/var/run", "/var/tmp", "/tmp")  # and homes
COVER_SIZE = "size=256m,nr_inodes=16k"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
GPU_DEVICES = "nvidia*"

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Raises OSError."""
    words = (w.encode() if w is not None else None for w in (source, target, kind))
    _check(_libc.mount(*words, ctypes.c_ulong(flags), data.encode() if data else None))


def set_read_only(place: str, *, below: bool = True, on: bool = True) -> None:
    """Raises OSError."""
    wanted = (ctypes.c_uint64 * 4)(ATTR_RDONLY if on else 0, 0 if on else ATTR_RDONLY, 0, 0)
    at, path, size = ctypes.c_int(AT_FDCWD), ctypes.c_char_p(place.encode()), ctypes.c_size_t(ctypes.sizeof(wanted))
    flags = ctypes.c_uint(AT_RECURSIVE if below else 0)
    _check(_libc.syscall(ctypes.c_long(MOUNT_SETATTR), at, path, flags, ctypes.byref(wanted), size))


def mount_writable(descriptor: int, target: str) -> None:
    """The folder behind a descriptor, at another place. Raises OSError."""
    mount(f"/proc/self/fd/{descriptor}", target, None, MS_BIND)
    set_read_only(target, below=False, on=False)


def covered_places() -> list[Path]:
    """Where others keep their files, as far as they are there: the whole of each is empty for a process."""
    found = dict.fromkeys(
        Path(place).resolve() for place in (*COVERED_PLACES[1:], str(Path.home()))
    )  # of a device's own
    return [place for place in found if place.is_dir() and place != Path("/")]


def _needed() -> Iterator[Path]:
    """Where Python, its libraries and this package lie, as they are named and where they are. A home whose scripts are
    run is on the path of modules, and is not needed for that."""
    package, covered = Path(__file__).parents[3], covered_places()
    libraries = [place for place in filter(None, sys.path) if Path(place).resolve() not in covered]
    for place in (sys.prefix, sys.base_prefix, sys.exec_prefix, str(package), *libraries):
        for path in (Path(place), Path(place).resolve()):
            if path.exists():
                yield path


class OpenedPlaces:
    """Descriptors of what is mounted elsewhere later, opened while its user's rights are still there."""

    def __init__(self, device: str) -> None:
        self.needed = {str(path): os.open(path, os.O_PATH | os.O_CLOEXEC) for path in dict.fromkeys(_needed())}
        paths = [Path("/dev") / name for name in DEVICES]
        if device != "cpu":
            paths += [p for p in Path("/dev").rglob(GPU_DEVICES) if not p.is_dir()]
            paths += [p for p in Path("/dev/nvidia-caps").rglob("*") if not p.is_dir()]
        self.devices = {}
        for path in paths:
            with contextlib.suppress(OSError):
                self.devices[str(path)] = os.open(path, os.O_PATH | os.O_CLOEXEC)

    def below(self, place: Path) -> dict[str, int]:
        """Of what is needed the outermost that lie below a place."""
        inner = [Path(path) for path in self.needed if place in Path(path).parents]
        return {str(p): self.needed[str(p)] for p in inner if not any(q in p.parents for q in inner)}

    def is_needed(self, place: Path) -> bool:
        """Whether something that is needed is the place itself."""
        return str(place) in self.needed

    def close(self) -> None:
        for descriptor in (*self.needed.values(), *self.devices.values()):
            os.close(descriptor)


def cover(place: str, opened: OpenedPlaces) -> None:
    """Nothing is there any more but what is needed. Raises OSError."""
    mount("none", place, "tmpfs", MS_NOSUID | MS_NODEV, f"{COVER_SIZE},mode=0777")
    for path, descriptor in opened.below(Path(place).resolve()).items():
        is_folder = os.path.isdir(f"/proc/self/fd/{descriptor}")
        target = Path(path)
        (target if is_folder else target.parent).mkdir(parents=True, exist_ok=True)
        if not is_folder:
            target.touch()
        mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC)
        set_read_only(path)


def make_devices(opened: OpenedPlaces) -> None:
    """Devices of its own. Raises OSError."""
    mount("none", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=1m,nr_inodes=1k,mode=0755")
    for path, descriptor in opened.devices.items():
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
        mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND)
    for name, target_of in LINKS.items():
        os.symlink(target_of, f"/dev/{name}")
    os.mkdir("/dev/shm")
    mount("none", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"{COVER_SIZE},mode=1777")
    set_read_only("/dev", below=False)
