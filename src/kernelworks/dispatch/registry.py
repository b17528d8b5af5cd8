"""The op packages by name. The names are known at once; an op package is loaded when it is first asked for."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

__all__ = ["OPERATORS", "OP_PACKAGES", "FunctionPackage", "OpPackageMap", "load_op_package"]

T = TypeVar("T")

# The module of each op package by the name of its op, in the order of the families. `kernelworks.ops` fills it.
OP_PACKAGES: dict[str, str] = {}
# By the name of an op that torch has a function for: the aten operator that this calls, or what that would be called.
OPERATORS: dict[str, str] = {}


def load_op_package(op_package: str) -> types.ModuleType:
    """The module of an op package; loads it if it is not loaded yet.

    It is loaded in a thread of its own: whoever asks for it first may do so under modes, transforms and tracers, which
    are of a thread, and the tensors that an op package makes are none of theirs. No op package imports what is above
    it, so none waits for a module that the asking thread is about to import.
    """
    if op_package not in sys.modules:
        failed: list[BaseException] = []

        def load() -> None:
            try:
                importlib.import_module(op_package)
            except BaseException as error:
                failed.append(error)

        with _uncollected():
            thread = threading.Thread(target=load, name=op_package)
            thread.start()
            thread.join()
        if failed:
            raise failed[0]
    return importlib.import_module(op_package)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """What loading makes stays: a pass over all of torch's objects in the midst of it finds nothing, and takes longer
    than the rest."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class OpPackageMap(Mapping[str, T]):
    """One object for each op package, by name.

    The names are known without loading anything. Access to an object loads its op package. Objects that are made
    outside the op packages come behind those.
    """

    def __init__(self) -> None:
        self._made: dict[str, T] = {}

    def add(self, name: str, made: T) -> None:
        """Called by what an op package makes, when it is made."""
        self._made[name] = made

    def __getitem__(self, name: str) -> T:
        made = self._made.get(name)
        if made is None:
            load_op_package(OP_PACKAGES[name])
            made = self._made[name]
        return made

    def __iter__(self) -> Iterator[str]:
        yield from OP_PACKAGES
        yield from [name for name in self._made if name not in OP_PACKAGES]

    def __len__(self) -> int:
        return len(OP_PACKAGES.keys() | self._made.keys())

    def __contains__(self, name: object) -> bool:
        return name in OP_PACKAGES or name in self._made


class FunctionPackage(types.ModuleType):
    """A package whose folders have the names of functions: it shows the functions.

    Importing ``kernelworks.bench`` makes ``bench`` an attribute of the package. ``kernelworks.bench`` is the function,
    whichever module was imported first; ``from kernelworks.bench import ...`` reaches the folder. (Reading attributes
    is Python's own: an op that is called as ``kernelworks.gelu`` is found as quickly as in any module.)
    """

    hidden: frozenset[str]  # the names whose folders are not shown

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType) and name in self.hidden:
            return
        super().__setattr__(name, value)
