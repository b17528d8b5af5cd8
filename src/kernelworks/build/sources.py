"""What a compiled thing is made from: the files behind a source, and one hash over them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["hash_of", "text_of", "with_includes"]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def with_includes(source: Path, shared: Path, text_of: Callable[[Path], str] = text_of) -> list[Path]:
    """The source and every file of ours that it includes, from its own folder or ``shared``, in a fixed order."""
    found: list[Path] = []
    queue = [source.resolve()]
    while queue:
        path = queue.pop(0)
        if path in found:
            continue
        found.append(path)
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text_of(path), re.M):
            queue += [(folder / name).resolve() for folder in (path.parent, shared) if (folder / name).is_file()][:1]
    return found


def hash_of(beside: str, files: Iterable[Path]) -> str:
    """SHA-256 over names and bytes of files, and over what else decides the result (flags, configurations)."""
    digest = hashlib.sha256(beside.encode())
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
