"""Where a program holds a function, so that another can be put in its place: names in modules, attributes of classes
and of the program's own objects, and what functions have closed over.

Who has fetched it into a local variable or a list keeps it: no name says where that is.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType, ModuleType
from typing import Any, NamedTuple

__all__ = ["LOCAL", "Place", "at_path", "of_program", "places", "with_code"]

LOCAL = "<locals>"
OURS = ("kernelworks", "torch")  # their objects hold a function for reasons of their own


class Place(NamedTuple):
    """One place that holds a function: ``get()`` says what is there now, ``put`` puts another there."""

    get: Callable[[], Any]
    put: Callable[[Any], None]
    name: str = ""  # as the program writes it, if it has one


def places(fn: FunctionType) -> tuple[Place, ...]:
    """All of them."""
    return (*_in_modules(fn), *_in_class(fn), *_elsewhere(fn))


def _in_modules(fn: FunctionType) -> Iterator[Place]:
    spaces = {id(vars(module)): vars(module) for module in list(sys.modules.values()) if hasattr(module, "__dict__")}
    spaces[id(fn.__globals__)] = fn.__globals__
    for space in spaces.values():
        for name, value in list(space.items()):
            if value is fn:
                yield _entry(space, name)


def _entry(space: dict[str, Any], name: str) -> Place:
    return Place(lambda: space.get(name), lambda other: space.__setitem__(name, other), name)


def _in_class(fn: FunctionType) -> Iterator[Place]:
    """The class that a method was written in, found by its qualified name."""
    owner, _, name = fn.__qualname__.rpartition(".")
    cls = at_path(fn.__globals__, owner) if owner and LOCAL not in owner else None
    if not isinstance(cls, type):
        return
    held = cls.__dict__.get(name)
    wrap = type(held) if isinstance(held, (staticmethod, classmethod)) else None
    if getattr(held, "__func__", held) is not fn:
        return

    def get() -> Any:
        now = cls.__dict__.get(name)
        return now.__func__ if isinstance(now, (staticmethod, classmethod)) else now

    def put(other: Any) -> None:
        setattr(cls, name, held if other is fn else other if wrap is None else wrap(other))

    yield Place(get, put, fn.__qualname__)


def _elsewhere(fn: FunctionType) -> Iterator[Place]:
    """What other functions have closed over, and attributes of the program's objects."""
    for holder in gc.get_referrers(fn):
        if isinstance(holder, CellType):
            if not _of_library(holder):
                yield _cell(holder)
            continue
        owners = gc.get_referrers(holder) if type(holder) is dict else [holder]
        for owner in owners:
            if not of_program(owner):
                continue
            space = vars(owner)
            for name, value in list(space.items()):
                if value is fn and (space is holder or owner is holder):
                    yield _entry(space, name)


def of_program(owner: Any) -> bool:
    """Whether something is an object of the program's own with attributes, no class, module or function."""
    kind = type(owner)
    if isinstance(owner, (type, ModuleType, FunctionType)) or not isinstance(getattr(owner, "__dict__", None), dict):
        return False
    top = str(kind.__module__).partition(".")[0]
    return top not in OURS and top not in sys.stdlib_module_names


def _of_library(cell: CellType) -> bool:
    """Whether a function of torch's or of ours has closed over it: a compiled one holds what it was made of."""
    closures = [each for each in gc.get_referrers(cell) if type(each) is tuple]
    owners = [each for closure in closures for each in gc.get_referrers(closure) if isinstance(each, FunctionType)]
    return not owners or any(str(each.__globals__.get("__name__")).partition(".")[0] in OURS for each in owners)


def _cell(cell: CellType) -> Place:
    def get() -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return None

    def put(other: Any) -> None:
        cell.cell_contents = other

    return Place(get, put)


def with_code(code: Any) -> list[FunctionType]:
    """The functions that are alive by now with this very code."""
    return [each for each in gc.get_referrers(code) if isinstance(each, FunctionType) and each.__code__ is code]


def at_path(space: Mapping[str, Any], path: str) -> Any:
    """What a dotted path leads to from a module's names: a function, a class, or a method as it was written. One that
    was made in another function (``make.<locals>.step``) is looked for by that name; None if there is none, or
    several."""
    if LOCAL in path:
        made = [
            each
            for each in gc.get_objects()
            if type(each) is FunctionType and each.__qualname__ == path and each.__globals__ is space
        ]
        return made[0] if len(made) == 1 else None
    first, *rest = path.split(".")
    found = space.get(first)
    for name in rest:
        found = inspect.getattr_static(found, name, None)
    return found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
