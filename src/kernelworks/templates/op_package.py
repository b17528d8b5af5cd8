"""The op package of a template's op: its folder, which gives the op its name, or a table of several."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from kernelworks.build.written_source import WrittenSource
from kernelworks.dispatch.op import Op

__all__ = ["OpPackage", "OpTable", "SharedPackage", "WrittenTable"]


@dataclass(frozen=True, kw_only=True)
class OpPackage:
    """``op_package`` is a file of the op's folder (``__file__``); both are looked up once, for calls ask for them."""

    op_package: str

    @functools.cached_property
    def folder(self) -> Path:
        return Path(self.op_package).resolve().parent

    @functools.cached_property
    def name(self) -> str:
        return self.folder.name


class SharedPackage(Protocol):
    """A template's entry: its op has a name of its own."""

    @property
    def name(self) -> str: ...

    def op(self) -> Op: ...


Entry = TypeVar("Entry", bound=SharedPackage)


@dataclass(frozen=True)
class OpTable(Generic[Entry]):
    """The entries of an op package, by the names of their ops."""

    entries: Mapping[str, Entry]

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> OpTable[Entry]:
        return cls({entry.name: entry for entry in entries})

    def op(self, name: str) -> Op:
        """The op of an entry."""
        return self.entries[name].op()


class NamedEntry(Protocol):
    """An entry of a table: its op has this name."""

    @property
    def name(self) -> str: ...


WrittenEntry = TypeVar("WrittenEntry", bound=NamedEntry)


@dataclass(frozen=True)
class WrittenTable(abc.ABC, Generic[WrittenEntry]):
    """An op package of many ops, by their entries, of which its C++ is formed when it is built. ``op_package`` is
    its ``__file__``, ``HEADER`` what the source begins with."""

    HEADER: ClassVar[str]

    op_package: str
    entries: Mapping[str, WrittenEntry]

    @classmethod
    def of(cls, op_package: str, entries: Sequence[WrittenEntry]) -> Self:
        return cls(op_package, {entry.name: entry for entry in entries})

    @functools.cached_property
    def folder(self) -> Path:
        return Path(self.op_package).resolve().parent

    @functools.cached_property
    def source(self) -> WrittenSource:
        """The C++ of all entries."""
        return WrittenSource(f"{self.folder.parent.name}.{self.folder.name}", self.HEADER, self.texts)

    def texts(self) -> Iterator[str]:
        return map(self.text_of, self.entries.values())

    @abc.abstractmethod
    def text_of(self, entry: WrittenEntry) -> str:
        """An entry's C++."""
