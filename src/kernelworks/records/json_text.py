"""Records as JSON and back. A file has a line for each field, and for each record of a list: it shows as many changed
lines as records changed."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import stat
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

__all__ = [
    "MOST_BYTES",
    "build_record",
    "format_lines",
    "from_json",
    "json_messages",
    "parse_json",
    "read_json",
    "read_regular",
    "to_document",
    "to_json",
]  # fmt: skip

T = TypeVar("T")

MOST_BYTES = 64 << 20  # of a file that is kept: the largest that we write has 1 MB


def format_lines(value: Any) -> str:
    """The text of plain values: dictionaries, lists, numbers, strings."""
    if not isinstance(value, dict):
        return _items(value, "\n")
    fields = (f"\n {json.dumps(name)}: {_items(held, chr(10) + ' ')}" for name, held in value.items())
    return "{" + ",".join(fields) + "\n}"


def _items(value: Any, at: str) -> str:
    if isinstance(value, (list, tuple)) and any(isinstance(item, (dict, list)) for item in value):
        return "[" + ",".join(f"{at} {json.dumps(item)}" for item in value) + f"{at}]"
    return json.dumps(value)


def parse_json(text: str | bytes) -> Any:
    """What a text of JSON holds. Raises ValueError for any text that is none, one that is nested too deep too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def json_messages(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects that a process of ours writes, one a line. What else it printed, a library's words or a number,
    is passed over."""
    for line in lines:
        try:
            message = parse_json(line)
        except ValueError:
            continue
        if isinstance(message, dict):
            yield message


def read_regular(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file. Raises OSError, also for what is no regular file (a pipe would wait for ever, a
    device has no end) and for one of more than ``most`` bytes."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no regular file")
        if found.st_size > most:
            raise OSError(f"{path} has {found.st_size} bytes, at most {most} are read")
        whole = file.read(most + 1)
    if len(whole) > most:  # it grows while it is read
        raise OSError(f"{path} has more than {most} bytes")
    return whole


def read_json(path: Path) -> Any:
    """What a file that was kept holds. Raises OSError as ``read_regular``, and ValueError where that is no JSON."""
    return parse_json(read_regular(path).decode())


# ---------------------------------------------------------------- records


def to_json(record: Any, *, line: bool = False) -> str:
    """A record (or a list of them) as JSON text: all on one ``line``, or as a file holds it (``layout``)."""
    whole = json.dumps(record, default=_fields)
    return whole if line else format_lines(json.loads(whole))


def to_document(record: Any) -> str:
    """The text of a file that a user is handed: a record, or each of a list, says of which kind and version it is
    (``schema``). What is no record of a version is as ``to_json`` has it."""
    several = isinstance(record, (list, tuple))
    plain = [_with_schema(one, json.loads(to_json(one))) for one in (record if several else (record,))]
    return format_lines(plain if several else plain[0]) + "\n"


def _with_schema(record: Any, plain: Any) -> Any:
    version = getattr(type(record), "VERSION", 0)
    return {"schema": f"{type(record).__name__}/{version}", **plain} if version and isinstance(plain, dict) else plain


def _fields(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"not JSON: {type(value).__name__}")


def from_json(cls: type[T], text: str) -> T:
    """The record of class ``cls`` in ``text``. Raises ValueError where a field is missing or of the wrong shape."""
    return build_record(cls, parse_json(text))


def build_record(cls: type[T], value: Any, *, lenient: bool = False) -> T:
    """The record of class ``cls`` of plain values; a ``schema`` that a document names is passed over, with ``lenient``
    every field that the class does not have. Raises ValueError as ``from_json``."""
    if isinstance(value, dict) and "schema" in value:
        value = {name: item for name, item in value.items() if name != "schema"}
    try:
        return typing.cast(T, _build(cls, value, lenient=lenient))
    except RecursionError:
        raise ValueError(f"not a {cls.__name__}: nested too deep") from None


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _build(kind: Any, value: Any, *, lenient: bool = False) -> Any:
    build = functools.partial(_build, lenient=lenient)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        try:
            known = {name: item for name, item in value.items() if name in hints or not lenient}
            return kind(**{name: build(hints[name], item) for name, item in known.items()})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a {kind.__name__}: {error}") from error
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"not a list: {str(value)[:40]!r}")
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(build(k, item) for k, item in zip(kinds, value, strict=True))
    if origin in (typing.Union, types.UnionType):
        return None if value is None else build(_alternative(inner, value), value)
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"not an object: {str(value)[:40]!r}")
        return {name: build(inner[1], item) for name, item in value.items()}
    if kind in LEAVES and type(value) not in LEAVES[kind]:
        raise ValueError(f"not a {kind.__name__}: {str(value)[:40]!r}")
    return value


LEAVES: dict[Any, tuple[type, ...]] = {float: (float, int), int: (int,), str: (str,), bool: (bool,)}


def _alternative(kinds: tuple[Any, ...], value: Any) -> Any:
    """Which kind of a union ``value`` is: of several records the one that has its fields."""
    real = [k for k in kinds if k is not type(None)]
    if isinstance(value, dict):
        for kind in real:
            if dataclasses.is_dataclass(kind) and value.keys() <= {f.name for f in dataclasses.fields(kind)}:
                return kind
        return max(real, key=lambda kind: len(value.keys() & set(getattr(kind, "__dataclass_fields__", ()))))
    return real[0]
