"""The op package of a template's op: its folder, which gives the op its name, or a table of several."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from kernelworks.dispatch.op import Op

__all__ = ["OpPackage", "OpTable", "SharedPackage"]


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
