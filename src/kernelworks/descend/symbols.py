"""What lies at an address of this process: the file, the place in it, the function's name."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["CodeLocation", "Mappings", "demangle_names"]

SYMTAB, DYNSYM, FUNCTION, GNU_IFUNC, PT_LOAD = 2, 11, 2, 10, 1
SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)


class CodeLocation(NamedTuple):
    """``file`` is "" for code that was made while the program ran; ``address`` is as the file has it, of such code as
    the process has it. ``function`` is "" if no symbol is known; ``begin`` and ``end`` bound it then too, as far as the
    file tells."""

    file: str
    address: int
    function: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _Mapping:
    begin: int
    end: int
    offset: int
    path: str


class Mappings:
    """Code as it lies in this process now. Cost: reading the symbols of each file that is asked for, once."""

    def __init__(self) -> None:
        self._mappings: list[_Mapping] = []
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            fields = line.split(maxsplit=5)
            if "x" in fields[1]:
                begin, end = (int(part, 16) for part in fields[0].split("-"))
                self._mappings.append(_Mapping(begin, end, int(fields[2], 16), fields[5] if len(fields) > 5 else ""))
        self._begins = np.array([m.begin for m in self._mappings], np.uint64)

    def locate(self, address: int) -> CodeLocation:
        at = int(np.searchsorted(self._begins, np.uint64(address), side="right")) - 1
        mapping = self._mappings[at] if at >= 0 and address < self._mappings[at].end else None
        if mapping is None:
            return CodeLocation("", address, "", address, address)
        if not mapping.path.startswith("/"):
            return CodeLocation(mapping.path.strip("[]"), address, "", mapping.begin, mapping.end)
        its = _symbols(mapping.path)
        if its is None:
            return CodeLocation(mapping.path, address - mapping.begin + mapping.offset, "", 0, 0)
        return its.locate(address - mapping.begin + mapping.offset)


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    loads: tuple[tuple[int, int, int], ...]  # where each segment lies in the file, its bytes, and its address
    values: Any  # uint64[n], in order
    sizes: Any
    names: Any
    strings: bytes

    def locate(self, offset: int) -> CodeLocation:
        begin, address, limit = 0, offset, 0
        for start, size, virtual in self.loads:
            if start <= offset < start + size:
                begin, address, limit = virtual, offset - start + virtual, virtual + size
        at = int(np.searchsorted(self.values, np.uint64(address), side="right")) - 1
        if at < 0:
            return CodeLocation(self.path, address, "", begin, limit)
        value, size = int(self.values[at]), int(self.sizes[at])
        after = int(self.values[at + 1]) if at + 1 < len(self.values) else limit
        end = value + size if size else after
        if address >= end:  # between two functions: code without a symbol
            return CodeLocation(self.path, address, "", end, after)
        start = int(self.names[at])
        name = self.strings[start : self.strings.index(b"\0", start)].decode(errors="replace")
        return CodeLocation(self.path, address, name, value, end)


@functools.cache
def _symbols(path: str) -> _File | None:
    """The functions of an ELF file, from its symbol table or what it exports; None if it is none or cannot be read."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:6] != b"\x7fELF\x02\x01":
                return None
            programs, sections = struct.unpack_from("<QQ", head, 32)
            entry, count, section_size, many = struct.unpack_from("<HHHH", head, 54)
            file.seek(programs)
            table = file.read(entry * count)
            loads = []
            for at in range(0, entry * count, entry):
                kind, _, offset, virtual, _, size = struct.unpack_from("<IIQQQQ", table, at)
                if kind == PT_LOAD:
                    loads.append((offset, size, virtual))
            file.seek(sections)
            table = file.read(section_size * many)
            kinds = [struct.unpack_from("<IIQQQQII", table, at) for at in range(0, len(table), section_size)]
            found = next((k for kind in (SYMTAB, DYNSYM) for k in kinds if k[1] == kind), None)
            if found is None:
                return _File(path, tuple(loads), np.zeros(0, np.uint64), np.zeros(0), np.zeros(0), b"")
            file.seek(found[4])
            symbols = np.frombuffer(file.read(found[5] // SYMBOL.itemsize * SYMBOL.itemsize), SYMBOL)
            file.seek(kinds[found[6]][4])
            strings = file.read(kinds[found[6]][5])
    except (OSError, struct.error, IndexError, ValueError):
        return None
    kind = symbols["info"] & 15
    symbols = symbols[((kind == FUNCTION) | (kind == GNU_IFUNC)) & (symbols["section"] != 0)]
    symbols = symbols[np.argsort(symbols["value"], kind="stable")]
    return _File(path, tuple(loads), symbols["value"], symbols["size"], symbols["name"], strings)


def demangle_names(names: list[str]) -> list[str]:
    """C++ names as their author wrote them, by the C++ library's own demangler; what is no such name stays."""
    import ctypes
    import ctypes.util

    try:
        library = ctypes.CDLL("libstdc++.so.6")
        free = ctypes.CDLL(None).free
    except OSError:
        return names
    demangle = library.__cxa_demangle
    demangle.restype, free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    found = []
    for name in names:
        status = ctypes.c_int(0)
        plain = name.partition(".")[0] if name.startswith("_Z") else name
        pointer = demangle(plain.encode(), None, None, ctypes.byref(status)) if plain.startswith("_Z") else None
        found.append(ctypes.string_at(pointer).decode(errors="replace") if pointer else name)
        if pointer:
            free(pointer)
    return found
