"""The choice among the rows of an op, by the rows, the certificates, the tuning table and the machine alone."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kernelworks import certificates
from kernelworks.build import BuildError
from kernelworks.contract import Contract, Request, Row
from kernelworks.machine import kind_of

__all__ = ["Broken", "Choice", "Rows", "choose", "eligible", "foreseen", "order", "preferences", "unusable"]


class Rows(Protocol):
    """What a choice asks of an op."""

    name: str
    contract: Contract
    rows: tuple[Row, ...]
    room: Path

    def row(self, name: str) -> Row: ...


@dataclass(frozen=True)
class Choice:
    """The row taken and, for every row above it, why it was not."""

    row: Row
    declined: tuple[tuple[str, str], ...]
    because: str  # "list order", "tuning: ...", or "asked for by name"


class Broken(str):
    """A reason of the machine's, not of the request's: a row that could not be built or loaded. ``about`` names what is
    at fault."""

    about: str

    def __new__(cls, error: BuildError) -> Broken:
        made = super().__new__(cls, error)
        made.about = error.about
        return made


@functools.cache
def _tuning(path: Path) -> tuple[Mapping[str, Any], ...]:
    try:
        return tuple(tomllib.loads(path.read_text(encoding="utf-8")).get("prefer", ()))
    except FileNotFoundError:
        return ()


def preferences(op: Rows) -> tuple[Mapping[str, Any], ...]:
    """The entries of an op's tuning table that put rows in another order, as written."""
    return _tuning(op.room / "tuning.toml")


def _matches(entry: Mapping[str, Any], request: Request, dims: Mapping[str, int], kind: str | None) -> bool:
    if entry.get("pass", "forward") != request.pass_:
        return False
    if "machine" in entry:
        if kind is None and request.device == "meta":
            return False
        if entry["machine"] != (kind or kind_of(request.device)):
            return False
    have = {**dims, "threads": request.threads}
    for name, wanted in entry["when"].items():
        if name == "dtype":
            if str(request.dtype).removeprefix("torch.") not in wanted:
                return False
        elif name not in have or not wanted[0] <= have[name] <= wanted[1]:
            return False
    return True


def order(op: Rows, request: Request, kind: str | None = None) -> tuple[Sequence[Row], str]:
    """The rows in the order they are tried: what the tuning table prefers first, else as listed."""
    entries = _tuning(op.room / "tuning.toml")
    if entries:
        dims = op.contract.dims(request)
        for entry in entries:
            if _matches(entry, request, dims, kind):
                first = [op.row(name) for name in entry["rows"]]
                return [*first, *(r for r in op.rows if r not in first)], f"tuning: {entry['evidence']}"
    return op.rows, "list order"


def _declines(op: Rows, row: Row, request: Request, *, certified: bool, kind: str | None = None) -> str | None:
    """Why this row does not serve this request, or None. Builds nothing."""
    if request.pass_ not in row.passes:
        return f"has no {request.pass_}"
    reason = row.guard(request)
    if reason:
        return reason
    if certified and row.target == "scalar":  # never quicker than what the user has today
        return "plain code, for reading and checking; runs when asked for by name"
    return certificates.invalid(op.name, row, kind) if certified else None


def unusable(op: Rows, row: Row, request: Request, *, certified: bool) -> str | None:
    """Why this row cannot serve this request, or None. Builds the row's library where that is the last question."""
    try:
        reason = _declines(op, row, request, certified=certified)
        if reason:
            return reason
        row.load(request.pass_)
    except BuildError as error:
        return Broken(error)
    return None


def eligible(op: Rows, request: Request, kind: str | None = None) -> Row:
    """The row that ``choose`` takes where its build does not fail, asked without building anything.

    ``kind`` is the kind of machine, by default this one. Raises RuntimeError where no row serves the request.
    """
    return foreseen(op, request, kind).row


def foreseen(op: Rows, request: Request, kind: str | None = None) -> Choice:
    """``eligible``, with the reason why each row before it declined."""
    declined: list[tuple[str, str]] = []
    rows, because = order(op, request, kind)
    for candidate in rows:
        reason = _declines(op, candidate, request, certified=True, kind=kind)
        if reason is None:
            return Choice(candidate, tuple(declined), because)
        declined.append((candidate.name, reason))
    raise RuntimeError(f"no row of {op.name} serves the request")


def choose(op: Rows, request: Request, row: str | None = None) -> Choice:
    """The row for a request, with the reason why each row before it declined.

    With ``row`` given, that row or an exception: ValueError where there is no such row, RuntimeError where it cannot
    run. A row asked for by name needs no certificate.
    """
    if row is not None:
        wanted = op.row(row)
        reason = unusable(op, wanted, request, certified=False)
        if reason:
            raise RuntimeError(f"row {row!r} of {op.name} cannot run: {reason}")
        return Choice(wanted, (), "asked for by name")
    declined: list[tuple[str, str]] = []
    rows, because = order(op, request)
    for candidate in rows:
        reason = unusable(op, candidate, request, certified=True)
        if reason is None:
            return Choice(candidate, tuple(declined), because)
        declined.append((candidate.name, reason))
    reasons = "; ".join(f"{name}: {reason}" for name, reason in declined)
    raise RuntimeError(f"no row of {op.name} can run: {reasons}")
