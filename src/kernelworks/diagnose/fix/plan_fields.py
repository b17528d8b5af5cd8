"""Checks the fields of a plan before any of it is put in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernelworks.diagnose.optimization import KINDS_OF_SITE, Optimization
from kernelworks.diagnose.optimizations.accepted_options import (
    Accepts,
    Takes,
    a_string,
    a_whole_number,
    one_of,
    short_repr,
)

__all__ = ["VERSION", "check", "check_candidates"]

VERSION = 2  # of the fields below: 1 had `offers`, each with a `remedy`
Fault = tuple[str, str, Any]  # a field, what is accepted, what came

a_mapping = Accepts("a mapping", lambda value: type(value) is dict)
a_share = Accepts("a number or null", lambda value: value is None or type(value) in (int, float))
names = Accepts("a list of strings", lambda value: _listed(value) and all(isinstance(each, str) for each in value))
candidates = Accepts("a list of candidates", lambda value: _listed(value))

PLAN = {
    "kernelworks_plan": Accepts(str(VERSION), lambda value: type(value) is int and value == VERSION),
    "program": a_string, "kind": a_string, "torch": a_string, "saves": a_share, "roots": names,
    "candidates": candidates,
}  # fmt: skip
CANDIDATE = {
    "optimization": a_string, "site": a_mapping, "says": a_string, "code": a_string, "changes": a_string,
    "options": a_mapping,
}  # fmt: skip
SITE = {
    "kind": one_of(*KINDS_OF_SITE), "root": a_string, "number": a_whole_number(0), "path": a_string, "type": a_string,
}  # fmt: skip
REQUIRED_FIELDS = {
    "module": ("root", "type"),
    "function": ("root", "path"),
    "optimizer": ("type",),
}  # of a place, by its kind


def _listed(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def check(plan: Mapping[str, Any]) -> None:
    """Raises ValueError, which names the first field that a fix would not write."""
    for field, accepted, came in _faults(plan):
        raise ValueError(f"plan.{field} must be {accepted}, got {short_repr(came)}")


def check_candidates(plan: Mapping[str, Any], known: Sequence[Optimization]) -> None:
    """Checks what depends on the optimizations that are ``known``. Raises ValueError."""
    by_name = {optimization.name: optimization for optimization in known}
    for number, candidate in enumerate(plan["candidates"]):
        name = candidate["optimization"]
        if name not in by_name:
            field = f"plan.candidates[{number}].optimization"
            text = f"{field} names {short_repr(name)}, which this version of kernelworks lacks"
            raise ValueError(f"{text}: it has {', '.join(map(repr, by_name))}")
        takes = getattr(by_name[name], "takes", None)
        if isinstance(takes, Takes):
            for field, accepted, came in takes.faults(candidate["site"]["kind"], candidate["options"]):
                raise ValueError(
                    f"plan.candidates[{number}].{field} must be {accepted} for {name!r}, got {short_repr(came)}"
                )


def _faults(plan: Mapping[str, Any]) -> Iterator[Fault]:
    yield from _of(plan, PLAN, needed=("kernelworks_plan", "candidates"))
    for number, candidate in enumerate(plan["candidates"]):
        where = f"candidates[{number}]"
        if type(candidate) is not dict:
            yield where, "a mapping", candidate
            return
        yield from _of(candidate, CANDIDATE, f"{where}.", needed=tuple(CANDIDATE))
        site = candidate["site"]
        yield from _of(site, SITE, f"{where}.site.", needed=("kind",))
        for name in REQUIRED_FIELDS.get(site["kind"], ()):
            if not site.get(name):
                yield f"{where}.site.{name}", f"a name, if kind is {site['kind']!r}", site.get(name)
        for name in candidate["options"]:
            if not isinstance(name, str):
                yield f"{where}.options", "a mapping from names", name


def _of(
    value: Mapping[str, Any], fields: Mapping[str, Accepts], where: str = "", *, needed: Sequence[str]
) -> Iterator[Fault]:
    for name in needed:
        if name not in value:
            yield f"{where}{name}", fields[name].what, None
    for name, item in value.items():
        if name not in fields:
            yield where.rstrip(".") or "fields", f"a mapping of {', '.join(map(repr, fields))}", name
        elif not fields[name].holds(item):
            yield f"{where}{name}", fields[name].what, item
