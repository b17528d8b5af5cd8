"""Records that a user is handed: shown in a notebook, kept in a file. How they look is the report's to say."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from kernelworks.machine.environment import write_whole
from kernelworks.records.json_text import to_document

__all__ = ["Record", "Records", "renderer"]

T = TypeVar("T")


def renderer() -> Any:
    """What draws records: ``fragment``, ``render_page`` and ``text``. It is above them, and they ask the package's
    face."""
    return sys.modules["kernelworks"].pages()


class Record:
    """What a verb returns, or one of several. ``VERSION`` is that of the fields: a document names it (``schema``)."""

    VERSION: ClassVar[int] = 1

    def record(self) -> Any:
        """The plain record that is shown and kept: this one, where it is one."""
        return self

    def _repr_html_(self) -> str:
        """As notebooks show it; ``repr`` and ``str`` stay as they are."""
        return str(renderer().fragment([self.record()]))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """As IPython asks: the page's piece for a notebook, the printed report for a terminal."""
        return {"text/html": self._repr_html_(), "text/plain": str(renderer().text(self.record()))}

    def save(self, path: str | PathLike[str]) -> Path:
        """Writes the record, all of it or nothing: as JSON (``from_json`` reads it) or as one self-contained page, by
        the path's ending. Returns the path. Raises ValueError for another ending, OSError."""
        return _save(path, self.record(), [self.record()])


class Records(list[T]):
    """A list of records of one kind, shown and kept together."""

    def _repr_html_(self) -> str:
        return str(renderer().fragment(self))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": "\n\n".join(str(renderer().text(one)) for one in self)}

    def save(self, path: str | PathLike[str]) -> Path:
        """As ``Record.save``, all of them in one file."""
        return _save(path, self, self)


def _save(path: str | PathLike[str], record: Any, several: Sequence[Any]) -> Path:
    to = Path(path)
    if to.suffix == ".json":
        text = to_document(record)
    elif to.suffix in (".html", ".htm"):
        text = str(renderer().render_page(several))
    else:
        raise ValueError(f"path must end in .json or .html, got {str(path)!r}")
    write_whole(to, text, f".{to.name}.")
    return to
