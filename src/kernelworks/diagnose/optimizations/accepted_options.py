"""What a plan may say of an optimization: its kinds of places and its options. A plan is checked against it before
anything is put in place."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Accepts", "Takes", "a_list", "a_string", "a_whole_number", "groups_of", "one_of", "short_repr"]


class Accepts(NamedTuple):
    """``holds`` says whether a value is accepted, ``what`` names the accepted values in words."""

    what: str
    holds: Callable[[Any], bool]


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


a_string = Accepts("a string", _is_string)


def a_whole_number(least: int) -> Accepts:
    return Accepts(f"a whole number from {least} on", lambda value: type(value) is int and value >= least)


def one_of(*names: str, more: Callable[[], Iterable[str]] = tuple) -> Accepts:
    """``more`` is called only if the value is none of the others."""
    said = f"one of {', '.join(map(repr, names))}"
    return Accepts(said, lambda value: _is_string(value) and (value in names or value in more()))


def a_list(what: str, each: Callable[[Any], bool]) -> Accepts:
    return Accepts(
        f"a list of {what}", lambda value: isinstance(value, (list, tuple)) and bool(value) and all(map(each, value))
    )


def groups_of(least: int, most: int | None = None) -> Accepts:
    """Paths of modules in groups."""

    def group(value: Any) -> bool:
        fits = isinstance(value, (list, tuple)) and len(value) >= least and (most is None or len(value) <= most)
        return fits and all(map(_is_string, value))

    return a_list(f"lists of {least}{' or more' if most is None else ''} paths of modules", group)


@dataclass(frozen=True)
class Takes:
    """``sites``: kinds of places. ``options``: by name. Of each group in ``needs`` a plan must give one."""

    sites: tuple[str, ...]
    options: Mapping[str, Accepts] = field(default_factory=dict)
    needs: tuple[tuple[str, ...], ...] = ()

    def faults(self, site: str, options: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
        """Invalid fields: which one, what is accepted, and what came."""
        if site not in self.sites:
            yield "site.kind", f"one of {', '.join(map(repr, self.sites))}", site
        for name, value in options.items():
            accepts = self.options.get(name)
            if accepts is None:
                known = f"one of {', '.join(map(repr, self.options))}" if self.options else "none"
                yield "options", known, name
            elif not accepts.holds(value):
                yield f"options.{name}", accepts.what, value
        for names in self.needs:
            if not any(name in options for name in names):
                yield f"options.{names[0]}", self.options[names[0]].what, None


def short_repr(value: Any) -> str:
    """A value in a message: short, however deep or long it is."""
    return "nothing" if value is None else reprlib.repr(value)
