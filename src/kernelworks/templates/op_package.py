"""The op package of a template's op: its folder, which gives the op its name."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OpPackage"]


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
