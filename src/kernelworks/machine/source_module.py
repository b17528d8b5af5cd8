"""Modules of files that somebody is writing: a judge's, a learner's. Each is compiled from the text that is there.

Python's own import keeps bytecode beside a file, and takes it for the file's by its size and the second in which it was
written: of a file that is written anew within that second, with another number of as many digits, it runs the old text.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

__all__ = ["execute_file"]


class _TextLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def execute_file(name: str, path: Path, *, is_imported: bool = False) -> ModuleType:
    """The module of this name that a file defines; one that ``is_imported`` is in ``sys.modules``, as pickles and
    dataclasses ask for. Raises what the file raises."""
    spec = importlib.util.spec_from_file_location(name, path, loader=_TextLoader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if is_imported:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
