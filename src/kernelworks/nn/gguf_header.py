"""The header of a GGUF file: metadata, and where each tensor lies. Nothing in a file is believed before it is checked.

The layout is that of ggml's docs/gguf.md, versions 2 and 3: magic, version, counts; pairs of key and value; names,
shapes, types and offsets of tensors; then their bytes, each at a multiple of an alignment.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelworks.contract.packed_formats import FORMATS

__all__ = ["ALIGNMENT", "MAGIC", "TENSOR_TYPES", "GGUFError", "Header", "TensorEntry", "TensorType", "read_header"]

MAGIC, VERSIONS, ALIGNMENT = b"GGUF", (2, 3), 32
LONGEST_KEY, LONGEST_NAME, MOST_DIMS, DEEPEST = 65535, 64, 4, 8  # of bytes, of dimensions, of arrays of arrays
LEAST_PAIR, LEAST_ENTRY = 8 + 4 + 1, 8 + 4 + 4 + 8  # bytes
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
BOOL, STRING, ARRAY = 7, 8, 9


class GGUFError(ValueError):
    """A file is not what GGUF says; the message names file, field and value."""


@dataclass(frozen=True)
class TensorType:
    """One of GGML's types: so many numbers take so many bytes."""

    name: str
    block: int
    nbytes: int


# By GGML's number. Of those that are no format of ours the size is known, so that a file that has some can be read.
PLAIN_TYPES = {
    0: ("F32", 4), 1: ("F16", 2), 30: ("BF16", 2), 24: ("I8", 1), 25: ("I16", 2), 26: ("I32", 4), 27: ("I64", 8),
    28: ("F64", 8),
}  # fmt: skip
OTHER_TYPES = {
    9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
TENSOR_TYPES: Mapping[int, TensorType] = {
    **{number: TensorType(name, 1, size) for number, (name, size) in PLAIN_TYPES.items()},
    **{number: TensorType(*said) for number, said in OTHER_TYPES.items()},
    **{found.number: TensorType(name, found.block, found.nbytes) for name, found in FORMATS.items() if found.of_ggml},
}


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of the file. ``shape`` is torch's, the last dimension contiguous; ``begin`` counts from its start."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    begin: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    version: int
    metadata: Mapping[str, Any]
    tensors: tuple[TensorEntry, ...]


@dataclass
class Cursor:
    """A place in the file's bytes. What lies beyond their end raises."""

    path: str
    data: memoryview
    at: int = 0
    strings: dict[bytes, str] = field(default_factory=dict)

    def error(self, where: str, what: str) -> GGUFError:
        return GGUFError(f"{self.path}: {where} {what}")

    def need(self, count: int, where: str) -> None:
        if count > len(self.data) - self.at:
            raise self.error(
                where, f"needs {count} bytes at byte {self.at}, and the file has {len(self.data)}: it is truncated"
            )  # fmt: skip

    def number(self, code: str, where: str) -> Any:
        return self.numbers(code, 1, where)[0]

    def numbers(self, code: str, count: int, where: str) -> tuple[Any, ...]:
        form = f"<{count}{code}"
        self.need(count * struct.calcsize(f"<{code}"), where)
        found = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found

    def text(self, where: str, longest: int | None = None) -> str:
        size = self.number("Q", f"the length of {where}")
        if longest is not None and size > longest:
            raise self.error(where, f"may have {longest} bytes at most, got {size}")
        self.need(size, where)
        raw = bytes(self.data[self.at : self.at + size])
        self.at += size
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(where, f"must be UTF-8, got {raw[:40]!r}") from None

    def value(self, type: int, where: str, depth: int = 0) -> Any:
        if type == STRING:
            return self.text(where)
        if type == ARRAY:
            return self.array(where, depth)
        return self.scalars(type, 1, where)[0]

    def scalars(self, type: int, count: int, where: str) -> list[Any]:
        if type not in SCALARS:
            raise self.error(where, f"has a value of a type that is not known, number {type}")
        found = list(self.numbers(SCALARS[type], count, where))
        if type != BOOL:
            return found
        odd = next((value for value in found if value > 1), None)
        if odd is not None:
            raise self.error(where, f"must be a bool, 0 or 1, got {odd}")
        return [bool(value) for value in found]

    def array(self, where: str, depth: int) -> list[Any]:
        if depth == DEEPEST:
            raise self.error(where, f"has arrays in arrays, more than {DEEPEST} deep")
        type, count = self.number("I", f"the type of {where}"), self.number("Q", f"the length of {where}")
        if type not in (STRING, ARRAY):
            return self.scalars(type, count, where)
        self.need(count * (8 if type == STRING else 12), where)  # what so many take at least
        return [self.value(type, f"{where}[{i}]", depth + 1) for i in range(count)]


# ---------------------------------------------------------------- the parts of a header


def read_header(path: str, data: memoryview) -> Header:
    """What a file's bytes say, or ``GGUFError``."""
    cursor = Cursor(path, data)
    cursor.need(24, "the header")
    if bytes(data[:4]) != MAGIC:
        raise cursor.error("the magic", f"must be {MAGIC!r}, got {bytes(data[:4])!r}: this is no GGUF file")
    cursor.at = 4
    version = cursor.number("I", "version")
    if version & 0xFFFF == 0:
        raise cursor.error("version", f"is {version}: the file is big-endian, and little-endian ones are read alone")
    if version not in VERSIONS:
        raise cursor.error("version", f"must be {' or '.join(map(str, VERSIONS))}, got {version}")
    tensors, pairs = cursor.number("Q", "tensor_count"), cursor.number("Q", "metadata_kv_count")
    left = len(data) - cursor.at
    for where, count, least in (("metadata_kv_count", pairs, LEAST_PAIR), ("tensor_count", tensors, LEAST_ENTRY)):
        if count * least > left:
            raise cursor.error(where, f"is {count}, for which {left} bytes are too few")
    metadata = _read_metadata(cursor, pairs)
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
        raise cursor.error("general.alignment", f"must be a power of two from 8 on, got {alignment!r}")
    return Header(version, metadata, _read_tensors(cursor, tensors, alignment))


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i in range(count):
        key = cursor.text(f"metadata key {i}", LONGEST_KEY)
        if key in found:
            raise cursor.error(f"metadata key {key!r}", "stands there twice")
        found[key] = cursor.value(cursor.number("I", f"the type of {key!r}"), repr(key))
    return found


def _read_tensors(cursor: Cursor, count: int, alignment: int) -> tuple[TensorEntry, ...]:
    entries = [_read_entry(cursor, i, alignment) for i in range(count)]
    begin = -(-cursor.at // alignment) * alignment
    placed = []
    names: set[str] = set()
    for name, type, shape, offset, nbytes in entries:
        where = f"tensor {name!r}"
        if name in names:
            raise cursor.error(where, "stands there twice")
        names.add(name)
        if begin + offset + nbytes > len(cursor.data):
            raise cursor.error(
                where, f"of {nbytes} bytes at offset {offset} ends at byte {begin + offset + nbytes}, and the file has "
                f"{len(cursor.data)}: it is truncated",
            )  # fmt: skip
        placed.append(TensorEntry(name, type, shape, begin + offset, nbytes))
    end, before = 0, ""
    for entry in sorted((e for e in placed if e.nbytes), key=lambda entry: entry.begin):
        if entry.begin < end:
            raise cursor.error(
                f"tensor {entry.name!r}", f"at offset {entry.begin - begin} overlaps {before!r}, which ends at offset "
                f"{end - begin}",
            )  # fmt: skip
        end, before = entry.begin + entry.nbytes, entry.name
    return tuple(placed)


def _read_entry(cursor: Cursor, index: int, alignment: int) -> tuple[str, TensorType, tuple[int, ...], int, int]:
    name = cursor.text(f"the name of tensor {index}", LONGEST_NAME)
    where = f"tensor {name!r}"
    dims = cursor.number("I", f"n_dims of {where}")
    if dims > MOST_DIMS:
        raise cursor.error(f"n_dims of {where}", f"may be {MOST_DIMS} at most, got {dims}")
    shape = tuple(reversed(cursor.numbers("Q", dims, f"the shape of {where}")))
    number = cursor.number("I", f"the type of {where}")
    if number not in TENSOR_TYPES:
        raise cursor.error(f"the type of {where}", f"is number {number}, which is not known")
    type, size = TENSOR_TYPES[number], 1
    for dim in shape:
        size *= dim
    if size >= 2**63 or any(dim >= 2**63 for dim in shape):
        raise cursor.error(f"the shape of {where}", f"is {list(shape)}: more numbers than 2^63")
    row = shape[-1] if shape else 1
    if row % type.block:
        raise cursor.error(
            f"the shape of {where}", f"is {list(shape)}, whose rows fill no whole blocks of {type.name}, {type.block} "
            "numbers each",
        )  # fmt: skip
    offset = cursor.number("Q", f"the offset of {where}")
    if offset % alignment:
        raise cursor.error(f"the offset of {where}", f"must be a multiple of {alignment}, got {offset}")
    return name, type, shape, offset, size // type.block * type.nbytes
