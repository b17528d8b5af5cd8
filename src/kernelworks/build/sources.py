"""What a compiled thing is made from: the files behind a source, and one hash over them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["hash_of", "text_of", "with_includes"]


INCLUDE_LINE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def with_includes(source: Path, shared: Path, text_of: Callable[[Path], str] = text_of) -> list[Path]:
    """The source and every file of ours that it includes, from its own folder or ``shared``, in a fixed order."""
    found: dict[str, Path] = {}
    queue = [os.path.realpath(source)]
    folder = os.path.realpath(shared)
    while queue:
        path = queue.pop(0)
        if path in found:
            continue
        found[path] = Path(path)
        for name in INCLUDE_LINE.findall(text_of(found[path])):
            places = (os.path.normpath(os.path.join(place, name)) for place in (os.path.dirname(path), folder))
            queue += [place for place in places if os.path.isfile(place)][:1]
    return list(found.values())


def hash_of(beside: str, files: Iterable[Path]) -> str:
    """SHA-256 over names and bytes of files, and over what else decides the result (flags, configurations)."""
    digest = hashlib.sha256(beside.encode())
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
