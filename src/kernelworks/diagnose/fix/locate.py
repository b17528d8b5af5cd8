"""Finds the statement of a program's own source that names a live object: a model, an optimizer.

An object is looked for by who holds it: a global name, an attribute of an object of the program's own, a variable that
a function has closed over. If nobody holds it so, it is looked for by its class: the one statement that makes such an
object, or that calls the one function that returns one.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

from torch import nn

from kernelworks.diagnose.fix.source_edit import DEFS, NoPlace, Source
from kernelworks.diagnose.sites.holders import of_program

__all__ = ["Place", "place_of"]

Place = tuple[Source, ast.stmt, str]  # a file, a statement in it, and the name that it gives


def place_of(sources: Sequence[Source], thing: Any) -> Place:
    """Where it gets its name. Raises NoPlace, with the reason, if that is nowhere or in several places."""
    kind = type(thing).__name__
    found: list[Place] = []
    for look in (_of_modules, _of_objects, _of_closures):
        found = found or _each_once(look(sources, thing))
    for name in (kind, *_factories(sources, kind)):
        found = found or _made_by(sources, name)
    making = [place for place in found if place[0].makes(place[1], kind)]
    found = making if len(found) > 1 and making else found
    if not found:
        raise NoPlace(f"no line of the program gives a name to its {kind}")
    if len(found) > 1:
        lines = ", ".join(f"{source.path.name}:{statement.lineno}" for source, statement, _ in found)
        raise NoPlace(f"several lines give a name to a {kind}: {lines}")
    return found[0]


def _made_by(sources: Sequence[Source], name: str) -> list[Place]:
    """The statements that name what a class or a function makes. Raises NoPlace if others make one too."""
    calls = [(source, call) for source in sources for call in source.calls(name)]
    found = [(source, statement, held) for source in sources for statement, held in source.constructions_of(name)]
    if len(calls) > max(1, len(found)):
        lines = ", ".join(f"{source.path.name}:{call.lineno}" for source, call in calls)
        raise NoPlace(f"several lines make a {name}: {lines}")
    return found


def _each_once(places: Iterator[Place]) -> list[Place]:
    found = {id(statement): (source, statement, name) for source, statement, name in places}
    return list(found.values())


def _of_modules(sources: Sequence[Source], thing: Any) -> Iterator[Place]:
    """By a global name, or by its place in a list or dictionary that has one."""
    for source in sources:
        for name, place in source.names_of(thing):
            for statement in source.assignments_to(name)[-1:]:
                yield source, statement, name + place


def _of_objects(sources: Sequence[Source], thing: Any) -> Iterator[Place]:
    """By an attribute that the class of its object sets."""
    for owner, name in _attributes(thing):
        for kind in type(owner).__mro__:
            for source in sources:
                if source.is_of(kind.__module__):
                    for statement in source.assignments_to(f"self.{name}", within=kind.__name__):
                        yield source, statement, f"self.{name}"


def _attributes(thing: Any) -> Iterator[tuple[Any, str]]:
    """The objects of the program that hold it, with the name of the attribute."""
    if isinstance(thing, nn.Module):  # a module may be held by one that is never called itself
        for owner in [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]:
            yield from ((owner, name) for name, part in vars(owner).get("_modules", {}).items() if part is thing)
    for holder in gc.get_referrers(thing):
        for owner in gc.get_referrers(holder) if type(holder) is dict else [holder]:
            if of_program(owner):
                yield from ((owner, name) for name, value in list(vars(owner).items()) if value is thing)


def _of_closures(sources: Sequence[Source], thing: Any) -> Iterator[Place]:
    """By a variable of a function that an inner function has closed over."""
    cells = [each for each in gc.get_referrers(thing) if isinstance(each, CellType)]
    for cell in cells:
        for closure in (each for each in gc.get_referrers(cell) if type(each) is tuple):
            for fn in (each for each in gc.get_referrers(closure) if isinstance(each, FunctionType)):
                name = dict(zip(map(id, closure), fn.__code__.co_freevars, strict=False)).get(id(cell), "")
                for source in sources:
                    node = source.function(fn.__code__) if _is_file(source, fn) else None
                    for statement in source.assignments_to(name, around=node) if node is not None else ():
                        yield source, statement, name


def _is_file(source: Source, fn: FunctionType) -> bool:
    return Path(fn.__code__.co_filename).resolve() == source.path


def _factories(sources: Sequence[Source], kind: str) -> list[str]:
    """The one function of the program that makes and returns an object of a class, if it is but one."""
    found = [
        node.name
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(each, ast.Return) and source.makes(each, kind) for each in _own(node))
    ]
    return found if len(found) == 1 else []


def _own(node: ast.FunctionDef) -> Iterator[ast.AST]:
    """What a function does itself, not those that it defines."""
    queue: list[ast.AST] = list(node.body)
    while queue:
        each = queue.pop()
        yield each
        if not isinstance(each, DEFS):
            queue += ast.iter_child_nodes(each)
