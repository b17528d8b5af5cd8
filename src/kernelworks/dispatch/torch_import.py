"""What waits for torch to be imported. The command line answers ``--help`` without torch, which takes two seconds.

If torch is imported after the package, it is found as ever, and its loader calls back at the end of the module. The
finder that arranges it goes away with that. Nothing of torch's is patched.

If a module of the package is the first to import torch, that module and those above it are half made at that moment.
The call then waits for ``call_pending``, at the end of the module that it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["call_pending", "call_when_imported"]

TORCH, PACKAGE = "torch", "kernelworks."

_pending: list[Callable[[], None]] = []


def call_when_imported(call: Callable[[], None]) -> None:
    """Calls at once if torch is imported, else at the end of its import."""
    if TORCH in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(call))


def call_pending() -> None:
    """Calls what torch's import came too early for."""
    while _pending:
        _pending.pop()()


def _is_half_made() -> bool:
    """Whether a module of the package is being imported."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(PACKAGE)]
    return any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in modules)


class _Finder(MetaPathFinder):
    """Finds torch as the other finders do, and adds the call to its loader."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TORCH:
            return None
        for finder in list(sys.meta_path):
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                self._extend(spec.loader)
                return spec
        return None

    def _extend(self, loader: Any) -> None:
        """A spec that somebody only looked for is not loaded, so the finder stays until one is."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            vars(loader).pop("exec_module", None)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                if _is_half_made():
                    _pending.append(self._call)
                else:
                    self._call()

        loader.exec_module = exec_module
