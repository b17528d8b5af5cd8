"""Removing what a candidate has written, however deep it lies: ``shutil.rmtree`` goes a level down for each folder in a
folder, and ends with an error of its own, or without descriptors, where somebody has nested a few thousand.

A process that is being ended may still put a link in a folder's place. So each folder is opened as one, and what is
done in it is done by its descriptor: nothing outside is reached.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

__all__ = ["remove_folder"]

FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OWN = 0o700


def remove_folder(folder: Path) -> None:
    """Removes a folder; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        outer = _opened(str(folder), None)
        try:
            _empty(outer)
        finally:
            os.close(outer)
        os.rmdir(folder)


def _empty(outer: int) -> None:
    number, free = 0, secrets.token_hex(8)  # a name that nobody has there
    while names := os.listdir(outer):
        for name in names:
            if not _is_folder(name, outer):
                os.unlink(name, dir_fd=outer)
                continue
            inner = _opened(name, outer)
            try:
                for below in os.listdir(inner):
                    if _is_folder(below, inner):  # one level up, until none has any
                        number += 1
                        os.close(_opened(below, inner))  # one that is closed does not move
                        os.rename(below, f"{free}-{number}", src_dir_fd=inner, dst_dir_fd=outer)
                    else:
                        os.unlink(below, dir_fd=inner)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=outer)


def _is_folder(name: str, within: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode)


def _opened(name: str, within: int | None) -> int:
    """A descriptor of a folder, also where its owner has closed it to all. Raises OSError."""
    with contextlib.suppress(PermissionError):
        found = os.open(name, os.O_RDONLY | FOLDER, dir_fd=within)
        if os.access(f"/proc/self/fd/{found}", os.R_OK | os.W_OK | os.X_OK):
            return found
        os.close(found)
    place = os.open(name, os.O_PATH | FOLDER, dir_fd=within)
    try:
        os.chmod(f"/proc/self/fd/{place}", OWN)
    finally:
        os.close(place)
    return os.open(name, os.O_RDONLY | FOLDER, dir_fd=within)
