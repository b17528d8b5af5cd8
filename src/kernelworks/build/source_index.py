"""The files of ours, read once for what a kernel's hash is made of, and kept read in the cache folder.

What is kept is made of a file's bytes alone and named by their digest, so that a file that changed is another. A kept
file begins with a digest of its name and of the rest: what is cut short, damaged or another's is read anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernelworks.build import source_units
from kernelworks.build.cpp_text import strip_source
from kernelworks.build.sources import text_of, with_includes
from kernelworks.machine import environment

__all__ = ["FILES", "NAME", "PACKAGE", "Files"]

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = str(PACKAGE)
NAME = __name__.split(".")[0]


@functools.cache
def _reader() -> bytes:
    """What the reading of a file hangs on beside its bytes."""
    names = ("source_units", "source_scopes", "sources", "cpp_text")
    own = (Path(__file__).with_name(f"{name}.py") for name in names)
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in own)).digest()


def _kept(what: str, of: bytes, make: Callable[[], Any]) -> Any:
    """What ``make`` makes of some bytes, from the cache folder where it lies there whole."""
    version = f"{what} {sys.version_info[:2]} {NAME}".encode()
    name = hashlib.sha256(version + _reader() + of).hexdigest()
    path = f"{environment.cache_dir('launching')}/{name[:32]}.json"
    try:
        with open(path, "rb") as file:
            digest, _, text = file.read().partition(b"\n")
        if _seal(name, text) == digest:
            return json.loads(text)
    except (OSError, ValueError):
        pass
    found = make()
    text = json.dumps(found).encode()
    with contextlib.suppress(OSError):  # it is read anew in each process
        environment.write_whole(Path(path), f"{_seal(name, text).decode()}\n{text.decode()}", ".launching-")
    return found


def _seal(name: str, text: bytes) -> bytes:
    """What a kept file begins with: one that was cut short, damaged, or is another's has it not."""
    return hashlib.sha256(name.encode() + text).hexdigest().encode()


class Files:
    """The files of ours as they lie, each read once. ``changed`` holds the bytes of some in their stead, for tests."""

    def __init__(self, changed: Mapping[Path, bytes] | None = None, base: Files | None = None) -> None:
        self.changed, self.base = dict(changed or {}), base  # what is not changed is read once, by ``base``
        self._indexed: dict[str, dict[str, Any] | None] = {}
        self._sources: dict[Path, str] = {}
        self._included: dict[Path, list[Path]] = {}
        self._paths: dict[str, Path | None] = {}
        self._folders: dict[str, frozenset[str]] = {}

    def bytes_of(self, path: Path) -> bytes:
        return self.changed[path] if path in self.changed else path.read_bytes()

    def text_of(self, path: Path) -> str:
        return self.bytes_of(path).decode() if path in self.changed else text_of(path)

    def path_of(self, module: str) -> Path | None:
        """Where a module lies: one of ours by its name, any other by its path."""
        if module not in self._paths:
            if module.endswith(".py"):
                self._paths[module] = Path(module)
            elif self.base is not None and (found := self.base.path_of(module)) is not None:
                self._paths[module] = found
            else:
                self._paths[module] = self._lies(os.path.join(ROOT, *module.split(".")[1:]))
        return self._paths[module]

    def _lies(self, place: str) -> Path | None:
        """A package or a module; folders are listed once, for most names that are asked for are none."""
        folder, name = os.path.split(place)
        if folder not in self._folders:
            self._folders[folder] = frozenset(os.listdir(folder)) if os.path.isdir(folder) else frozenset()
        if f"{name}.py" in self._folders[folder] or Path(f"{place}.py") in self.changed:
            return Path(f"{place}.py")
        inside = os.path.join(place, "__init__.py")
        return Path(inside) if place == ROOT or (name in self._folders[folder] and os.path.isfile(inside)) else None

    def index(self, module: str) -> dict[str, Any] | None:
        """What ``reading.read_units`` tells of a module; None where there is none."""
        if module not in self._indexed:
            path = self.path_of(module)
            if self.base is not None and path not in self.changed:
                self._indexed[module] = self.base.index(module)
            else:
                self._indexed[module] = None if path is None else self._read(path, module)
        return self._indexed[module]

    def _read(self, path: Path, module: str) -> dict[str, Any]:
        data = self.bytes_of(path)

        def make() -> dict[str, Any]:
            return source_units.read_units(data.decode(), module, NAME, is_package=path.name == "__init__.py")

        named = "" if module.endswith(".py") else module  # decides what relative imports are
        found: dict[str, Any] = make() if path in self.changed else _kept(f"python {named}", data, make)
        return found

    def index_text(self, text: str) -> dict[str, Any]:
        """What ``reading.read_units`` tells of a text that lies in no file."""
        if text not in self._indexed:
            if self.base is not None:
                return self.base.index_text(text)
            self._indexed[text] = _kept("written", text.encode(), lambda: source_units.read_units(text, "", NAME))
        found = self._indexed[text]
        assert found is not None
        return found

    def module_digest(self, module: str) -> str:
        """All that a module says, as a digest."""
        index = self.index(module)
        return str(index["whole"]) if index else ""

    def forget(self) -> None:
        for known in (self._indexed, self._sources, self._included, self._paths, self._folders):
            known.clear()

    def source(self, path: Path) -> str:
        """A C++ or CUDA source with what it includes, as a digest."""
        path = path.resolve()
        if path not in self._sources:
            shared = PACKAGE / ("tile" if path.suffix in (".cu", ".cuh") else "simd")
            files = self._with_includes(path, shared)
            if self.base is not None and not self.changed.keys() & set(files):
                self._sources[path] = self.base.source(path)
                return self._sources[path]
            of = b"\0".join(str(len(data)).encode() + b" " + data for data in map(self.bytes_of, files))

            def make() -> str:
                return hashlib.sha256(strip_source(path, shared, self.text_of).encode()).hexdigest()

            self._sources[path] = make() if self.changed.keys() & set(files) else _kept("source", of, make)
        return self._sources[path]

    def _with_includes(self, path: Path, shared: Path) -> list[Path]:
        if path not in self._included:
            found = self.base._with_includes(path, shared) if self.base is not None else None
            if found is None or self.changed.keys() & set(found):
                found = with_includes(path, shared, self.text_of)
            self._included[path] = found
        return self._included[path]


FILES = Files()
