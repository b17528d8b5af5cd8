"""What the modules of a process hold, by name, and what of it is another one later: every function, class, constant and
module that can be reached from those that are loaded.

A module's own mapping is walked, and that of each class that is written in it. Of a function its code and its defaults
count too; of a constant its value; of a class whether a name has come in front of one that it inherits. What libraries
change themselves as they are used is left out: whole numbers and texts with an underscore in front, torch's compiler,
and what that puts in others' places.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterable, Iterator
from ctypes import c_char_p, c_uint64
from pathlib import Path
from struct import pack
from sysconfig import get_config_var
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MethodDescriptorType, ModuleType
from typing import Any

import torch

__all__ = ["Reachable", "changes_since_fork", "mark_all", "marked_modules"]

PLAIN_KINDS = (bool, int, str, bytes)  # whose names with an underscore in front are counters and notes
CONSTANTS = (*PLAIN_KINDS, float, complex, torch.dtype, torch.device, torch.layout)
COMPILER_MODULES = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch._subclasses", "torch.compiler")
FILLED_LATER = ("torch._C._distributed",)  # by torch, with functions in Python
TORCH = str(Path(torch.__file__).parent)
COMPILER_FILES = tuple(f"{TORCH}/{name}" for name in ("_dynamo", "_compile", "_inductor", "_functorch"))
INTERPRETER = "/triton/runtime/interpreter.py"
LEFT_OUT = ("judged_", "__main__", "__mp_main__", __name__, *COMPILER_MODULES, *FILLED_LATER)
HOOKS, REGISTRIES = "hooks", (dict, list, set)  # of which it counts how many members they have
LISTS: dict[str, list[Any]] = {
    "sys.meta_path": sys.meta_path,
    "sys.path_hooks": sys.path_hooks,
    "gc.callbacks": gc.callbacks,
}
# Of functions in C, where the address of their table lies in them: its first word is their name, its second their code.
WORD = 8
TABLES = {BuiltinFunctionType: 2 * WORD, MethodDescriptorType: 5 * WORD, GetSetDescriptorType: 5 * WORD}
IS_KNOWN = sys.implementation.name == "cpython" and sys.maxsize > 2**32 and not get_config_var("Py_GIL_DISABLED")
_memory = (c_uint64 * (1 << 44)).from_address(0)  # this process's, by words: of a page where nothing is no word is read
COMPILER_CONFIGS = ("torch._dynamo.config", "torch._inductor.config")  # what a program has set there
MISSING = object()

Entry = tuple[str, Any, Any, Any]  # name, value, code, defaults


def _loaded_modules() -> dict[str, Any]:
    modules: dict[str, Any] = {**sys.modules}
    return {name: module for name, module in modules.items() if isinstance(module, ModuleType)}


def _inner(value: Any) -> Any:
    """The function in what wraps one."""
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def _defaults(function: FunctionType) -> tuple[Any, ...]:
    """Of a function's arguments: those by place, those by name."""
    named = function.__kwdefaults__
    return function.__defaults__, None if named is None else tuple(named.items())


def _are_other(now: tuple[Any, ...], was: tuple[Any, ...]) -> bool:
    """Whether something is another object than it was."""
    (places, names), (places_were, names_were) = now, was
    if names is None or names_were is None:
        return places is not places_were or names is not names_were
    pairs = zip(names, names_were, strict=False)
    return (
        places is not places_were
        or len(names) != len(names_were)
        or any(a[0] != b[0] or a[1] is not b[1] for a, b in pairs)
    )


class _Address(int):
    """Of the table of a function in C."""


def _function_table(value: Any) -> _Address | None:
    """Where the table of a function or method in C lies; None where nothing is known of it."""
    if (at := TABLES.get(type(value))) is None or not IS_KNOWN:
        return None
    table = _memory[(id(value) + at) // WORD]
    if not table or c_char_p.from_address(table).value != value.__name__.encode():
        return None
    return _Address(table)


def _entry(name: str, value: Any) -> Entry | None:
    """What a value is known by; None where it is nobody's affair."""
    inner = _inner(value)
    if type(inner) is FunctionType:
        return (name, value, inner.__code__, _defaults(inner))
    kind = type(value)
    if kind is dict and value and all(type(key) is torch.dtype for key in value):  # tolerances, say
        return (name, value, tuple(value.items()), None)
    if kind is float:
        return (name, value, pack("d", value), None)  # one that is written over in its place is the same object
    if kind in CONSTANTS:
        counts = kind is int and not name.isupper()
        return None if counts or (kind in PLAIN_KINDS and name.startswith("_")) else (name, value, None, None)
    if isinstance(value, REGISTRIES):
        return (name, value, len(value), None) if HOOKS in name else None
    if kind in TABLES:
        table = _function_table(value)
        return (name, value, table, None if table is None else _memory[table // WORD + 1])
    return (name, value, None, None) if callable(value) or kind in (ModuleType, property) else None


def _entries(mapping: Any) -> list[Entry]:
    found = (_entry(name, value) for name, value in list(mapping.items()))
    return [entry for entry in found if entry is not None]


def _by_library(value: Any, was: Any) -> bool:
    """Whether Triton's interpreter or torch's compiler put it there, or torch itself what calls the one before."""
    inner = _inner(value)
    code = getattr(inner, "__code__", None)
    if code is None or not code.co_filename.startswith(TORCH):
        return code is not None and code.co_filename.endswith(INTERPRETER)
    while inner is not None and inner is not was:
        inner = getattr(inner, "__wrapped__", None) or getattr(inner, "_torchdynamo_orig_callable", None)
    return inner is was or code.co_filename.startswith(COMPILER_FILES)


class Holder:
    """A module or a class, and what it held."""

    def __init__(self, name: str, holder: Any) -> None:
        self.name, self.holder = name, holder
        self.entries = _entries(vars(holder))
        self.count = len(vars(holder)) if isinstance(holder, type) else None
        self.names = frozenset(vars(holder)) if isinstance(holder, type) else frozenset()

    def changes(self) -> Iterator[str]:
        now = vars(self.holder)
        for name, value, code, defaults in self.entries:
            its = now.get(name, MISSING)
            if its is value:
                if code is not None and self._is_other(value, code, defaults):
                    what = "value" if type(code) in (int, tuple, bytes) else "function"
                    yield f"{self.name}.{name} is another {what}"
            elif type(value) in CONSTANTS:
                if type(its) is not type(value) or its != value:
                    yield f"{self.name}.{name} is another value"
            elif its is MISSING:
                yield f"{self.name}.{name} is gone"
            elif not _by_library(its, value):
                yield f"{self.name}.{name} is another function"
        if self.count is not None and len(now) != self.count:
            for name in now.keys() - self.names:
                before = next((vars(base)[name] for base in self.holder.__mro__[1:] if name in vars(base)), MISSING)
                new = now[name]
                if before is MISSING or new is before or not callable(_inner(new)):  # Triton restores what it inherits
                    continue
                if not _by_library(new, _inner(before)):
                    yield f"{self.name}.{name} is another function"

    def _is_other(self, value: Any, code: Any, defaults: Any) -> bool:
        if type(code) is _Address:
            return bool(_memory[code // WORD + 1] != defaults)
        if type(code) is int:
            return len(value) != code
        if type(code) is bytes:
            return pack("d", value) != code
        if type(code) is tuple:
            return tuple(value.items()) != code
        inner = _inner(value)
        return inner.__code__ is not code or _are_other(_defaults(inner), defaults)


def _configured() -> dict[str, dict[str, str]]:
    """What is another value than its own in the configurations of torch's compiler, by name. The compiler sets some for
    a moment and sets them back, and they count as somebody's from then on: so it is their value that tells."""
    found = {}
    for place in COMPILER_CONFIGS:
        config: Any = sys.modules.get(place)
        names = [*getattr(config, "_config", {})] if hasattr(config, "_is_default") else []
        values = {name: repr(getattr(config, name, None)) for name in names if not config._is_default(name)}
        found[place] = {name: said for name, said in values.items() if said != repr(config._config[name].default)}
    return found


class Reachable:
    """As it was when this was made, of all modules but those that ``others`` has."""

    def __init__(self, others: Iterable[str] = ()) -> None:
        left = frozenset(others)
        self.modules = {name: module for name, module in _loaded_modules().items() if name not in left}
        self.holders: list[Holder] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for place, module in self.modules.items():
                if place.startswith(LEFT_OUT):
                    continue
                self.holders.append(Holder(place, module))
                for name, value in list(vars(module).items()):
                    if isinstance(value, type) and value.__module__ == place:
                        self.holders.append(Holder(f"{place}.{name}", value))
        self.lists = {name: tuple(map(id, value)) for name, value in LISTS.items()}
        self.configured = _configured()

    def changes(self) -> list[str]:
        """What is otherwise now, a line each."""
        found = [
            f"the module {place} is another one"
            for place, module in self.modules.items()
            if sys.modules.get(place, module) is not module
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for holder in self.holders:
                found += holder.changes()
        found += [f"{name} holds others" for name, was in self.lists.items() if tuple(map(id, LISTS[name])) != was]
        for place, now in _configured().items():
            was = self.configured[place]
            found += [f"{place}.{name} is another value" for name in {**was, **now} if was.get(name) != now.get(name)]
        return found


_marked: list[Reachable] = []


def mark_all() -> None:
    """Marks what this process has loaded, for those that are forked from it."""
    _marked.append(Reachable())


def marked_modules() -> frozenset[str]:
    return frozenset(name for one in _marked for name in one.modules)


def changes_since_fork(later: Reachable) -> list[str]:
    """What is otherwise than in the process that this one was forked from, and than ``later``, which has what was
    loaded since."""
    return [line for one in (*_marked, later) for line in one.changes()]
