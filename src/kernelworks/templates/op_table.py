"""Ops that share an op package: siblings that one template makes, each by an entry of a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kernelworks.dispatch.op import Op

__all__ = ["OpTable", "SharedPackage"]


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
