"""The choice among the rows of an op: a pure function of the rows, the certificates, the timings and the machine.

``eligible`` says which ways there are to run a request with rows of ours that may be chosen, ``choose`` which of them
is, or torch's own function. Neither compiles or loads anything. A **way** is a row's name; for training it names a row
for the forward and one for the backward, ``"avx512+avx2"``, or one row that makes the gradients with its forward.

Two policies (``KERNELWORKS_CHOOSE``): ``timed`` takes the way that a timing says is quicker than torch, and torch's own
function without one; ``listed`` the first proved row of the list, for tests, proofs and development.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Protocol

import torch

from kernelworks.build import BuildError
from kernelworks.contract import Contract, Request, Row
from kernelworks.dispatch import certificates, tuning_records
from kernelworks.dispatch.tuning_records import Timing
from kernelworks.machine import environment, place_of

__all__ = ["OR_TORCH", "Broken", "Choice", "Rows", "Ways", "broke", "choose", "eligible", "known", "listed", "mended"]

Ways = Mapping[str, tuple[Row, ...]]
Trying = Set[tuple[str, str]]
NONE: Trying = frozenset()

# Behind a way that a timing named, not a user: where its row declines after all (gradients that lie as none was
# expected to), torch's row runs in its place.
OR_TORCH = " or torch"

LISTED, ASKED = "list order", "asked for by name"
SLOWER = "proved here, and no timing says that it is the quickest"


class Rows(Protocol):
    """What a choice asks of an op."""

    name: str
    contract: Contract
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row: ...

    def backward_of(self, training: Request) -> Request: ...


@dataclass(frozen=True)
class Choice:
    """The row taken and, for every row above it, why it was not.

    ``native``: torch's own function runs, as a user would have called it, and its own autograd; ``row`` is then the
    ``torch`` row. For a training request ``backward`` is the row of the gradients; None where ``row`` makes them with
    its forward, where the function is torch's, or where they are settled when they are asked for (list order).
    """

    row: Row
    declined: tuple[tuple[str, str], ...]
    because: str  # the timing in words, "list order", or "asked for by name"
    native: bool = False
    backward: Row | None = None
    together: bool = False  # the row makes the gradients with its forward
    timing: Timing | None = None  # what decided, where one did

    @property
    def way(self) -> str:
        return self.row.name if self.backward is None else f"{self.row.name}+{self.backward.name}"

    @property
    def asked(self) -> str | None:
        """The ``row`` that has a call made as a timing chose, forward and backward; None where none did."""
        return None if self.native or self.timing is None else f"{self.way}{OR_TORCH}"


class Broken(str):
    """A reason of the machine's, not of the request's: a row that could not be built or loaded. ``about`` names what is
    at fault."""

    about: str

    def __new__(cls, error: BuildError) -> Broken:
        made = super().__new__(cls, error)
        made.about = error.about
        return made


_broken: dict[tuple[str, str], Broken] = {}  # (op, row) -> what loading it said


def broke(op: Rows, row: Row, error: BuildError) -> None:
    """Notes that a row cannot be loaded, so that it is not chosen again before ``mended``."""
    _broken[op.name, row.name] = Broken(error)


def mended(op: Rows) -> None:
    """Forgets what could not be loaded of an op: it is tried again."""
    for row in op.rows:
        _broken.pop((op.name, row.name), None)


# ---------------------------------------------------------------- what may be chosen


def _declines(
    op: Rows, row: Row, request: Request, *, certified: bool, kind: str | None = None, trying: Trying = NONE
) -> str | None:
    """Why this row does not serve this request, or None. Builds nothing."""
    if request.pass_ not in row.passes:
        return f"has no {request.pass_}"
    if certified and row.source is not None and any(spec.numel == 0 for spec in request.alone):
        return "a tensor has no elements: that is torch's own to answer"
    reason = row.guard(request)
    if reason:
        return reason
    if (op.name, row.name) in _broken:
        return _broken[op.name, row.name]
    if certified and row.target == "scalar":  # never quicker than what the user has today
        return "plain code, for reading and checking; runs when asked for by name"
    if (op.name, row.name) in trying:
        return None
    try:
        return certificates.invalid(op.name, row, kind) if certified else None
    except BuildError as error:
        return Broken(error)


def _serving(
    op: Rows, request: Request, kind: str | None, declined: dict[str, str], trying: Trying = NONE
) -> list[Row]:
    """The rows of ours that may serve one pass, best listed first; the reasons of the others go into ``declined``."""
    found = []
    for row in op.rows:
        if row.source is not None:
            reason = _declines(op, row, request, certified=True, kind=kind, trying=trying)
            if not reason:
                found.append(row)
            else:
                declined.setdefault(row.name, reason)
    return found


def eligible(op: Rows, request: Request, kind: str | None = None, trying: Trying = NONE) -> tuple[Ways, dict[str, str]]:
    """The ways to run a request with proved rows of ours, best listed first, and why each other row has no part in one.

    ``kind`` is the kind of machine, by default this one. ``trying``: rows, as (op, row), that count as proved though no
    certificate says so; for whoever tries them out before it is worth proving them.
    """
    declined: dict[str, str] = {}
    if request.pass_ != "training":
        return {row.name: (row,) for row in _serving(op, request, kind, declined, trying)}, declined
    ways: dict[str, tuple[Row, ...]] = {row.name: (row,) for row in _serving(op, request, kind, {}, trying)}
    forward = _serving(op, dataclasses.replace(request, pass_="forward"), kind, declined, trying)
    backward = _serving(op, op.backward_of(request), kind, declined, trying) if forward else []
    ways |= {f"{ahead.name}+{back.name}": (ahead, back) for ahead in forward for back in backward}
    used = {row.name for rows in ways.values() for row in rows}
    return ways, {name: reason for name, reason in declined.items() if name not in used}


def known(op: Rows, dtype: torch.dtype, device: str, sizes: Mapping[str, int], kind: str | None = None) -> list[Timing]:
    """The timings of this machine by which calls of an op in a dtype, on a type of device, are chosen for, where no
    more is known of the calls than some ``sizes``; noisy ones too, which decide nothing."""
    proved = {r.name: r for r in op.rows if r.source is not None and certificates.invalid(op.name, r, kind) is None}
    try:
        return tuning_records.alike(op.name, proved, dtype, place_of(device, kind), sizes)
    except (RuntimeError, BuildError):
        return []


# ---------------------------------------------------------------- the choice


def choose(op: Rows, request: Request, row: str | None = None, kind: str | None = None) -> Choice:
    """What runs a request, with the reason why each row before it does not. Nothing is compiled or loaded.

    With ``row`` given (a way), that or an exception: ValueError where there is no such row, RuntimeError where it
    cannot run. A row asked for by name needs no certificate. ``kind`` is the kind of machine, by default this one.
    """
    if row is not None:
        return _asked(op, request, row)
    if environment.choosing() == "listed":
        return listed(op, request, kind)
    torch_row = op.row("torch")
    if request.pass_ == "backward":  # one that a training choice made is asked for by name
        return Choice(torch_row, (), "the gradients of a call that torch's own function did not run")
    if not tuning_records.sized(request):
        return Choice(torch_row, (), "sizes are not known before the call: torch runs", native=True)
    ways, declined = eligible(op, request, kind)
    try:
        place = place_of(request.device, kind)
        found = tuning_records.verdict(op.name, op.contract, request, ways, place)
    except (RuntimeError, BuildError) as error:  # a GPU's request where there is none; a compiler that went away
        found = tuning_records.Verdict("", str(error))
    taken = ways.get(found.way, ())
    reasons = {row.name: SLOWER for rows in ways.values() for row in rows} | declined
    above = [r for r in op.rows if r.source is not None and (not taken or r in op.rows[: op.rows.index(taken[0])])]
    reasons_above = tuple((r.name, reasons[r.name]) for r in above if r.name in reasons)
    if not taken:
        return Choice(torch_row, reasons_above, found.because, native=True, timing=found.timing)
    together = request.pass_ == "training" and len(taken) == 1
    backward = taken[1] if len(taken) > 1 else None
    return Choice(taken[0], reasons_above, found.because, backward=backward, together=together, timing=found.timing)


def listed(op: Rows, request: Request, kind: str | None = None) -> Choice:
    """The first row of the list that may be chosen, ``torch``'s and ``reference``'s among them.

    Raises RuntimeError where none does.
    """
    if request.pass_ == "training":
        for row in _serving(op, request, kind, {}):
            return Choice(row, (), LISTED, together=True)
        request = dataclasses.replace(request, pass_="forward")
    declined: list[tuple[str, str]] = []
    for row in op.rows:
        reason = _declines(op, row, request, certified=True, kind=kind)
        if not reason:
            return Choice(row, tuple(declined), LISTED)
        declined.append((row.name, reason))
    reasons = "; ".join(f"{name}: {reason}" for name, reason in declined)
    raise RuntimeError(f"no row of {op.name} can run: {reasons}")


def _asked(op: Rows, request: Request, way: str) -> Choice:
    names = way.removesuffix(OR_TORCH).split("+")
    rows = [op.row(name) for name in names] if len(names) <= 2 else [op.row(way)]
    ahead, back = rows[0], rows[-1]
    if request.pass_ == "training":
        if len(rows) == 1 and _declines(op, ahead, request, certified=False) is None:
            return Choice(ahead, (), ASKED, together=True)
        return Choice(ahead, (), ASKED, backward=back if "backward" in back.passes else None)
    wanted, timed = back if request.pass_ == "backward" else ahead, way.endswith(OR_TORCH)
    reason = _declines(op, wanted, request, certified=timed)  # a compiled program may ask long after it was settled
    if reason is None:
        return Choice(wanted, (), ASKED)
    if timed:
        return Choice(op.row("torch"), ((wanted.name, reason),), f"{wanted.name} declined: {reason}")
    raise RuntimeError(f"row {way!r} of {op.name} cannot run: {reason}")
