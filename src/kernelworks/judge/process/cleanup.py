"""Removing what a candidate has written, however deep it lies: ``shutil.rmtree`` goes a level down for each folder in a
folder, and ends with an error of its own, or without descriptors, where somebody has nested a few thousand."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

__all__ = ["remove_folder"]


def remove_folder(folder: Path) -> None:
    """Removes a folder; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        number, free = 0, secrets.token_hex(8)  # a name that nobody has there
        while entries := [*os.scandir(folder)]:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                for below in [*os.scandir(entry.path)]:
                    if below.is_dir(follow_symlinks=False):  # one level up, until none has any
                        number += 1
                        os.rename(below.path, folder / f"{free}-{number}")
                    else:
                        os.unlink(below.path)
                os.rmdir(entry.path)
        os.rmdir(folder)
