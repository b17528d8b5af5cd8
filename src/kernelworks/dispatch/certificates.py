"""The record that a row was proved: read, write and check. A row without a valid one is not chosen.

A certificate speaks for one op and row, one hash of the source, one toolchain and one kind of machine: the CPU's for
rows that run there, the GPU's for the others. Those for the machines we have ship with the package
(``certified/KIND.json``); ``kernelworks prove`` writes more into the cache, one file a row through a rename, so races
and kills leave whole files.

A row whose instructions give the same result on every maker's CPU (``Row.differs``) is proved once for its
instruction set: on another kind of CPU the same source, compiled by the same toolchain, wants no more than a
confirmation, a certificate that says where the whole proof was made (``proved_on``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernelworks.build.launch_code import FORMAT
from kernelworks.contract import Row
from kernelworks.machine import environment, kind_of, machine
from kernelworks.records.json_text import built, in_lines, read_json

__all__ = [
    "Certificate",
    "current",
    "elsewhere",
    "find",
    "invalid",
    "shipped_kinds",
    "shipped_path",
    "write",
    "write_shipped",
]

SHIPPED = Path(__file__).resolve().parent / "certified"


@dataclass(frozen=True)
class Certificate:
    op: str
    row: str
    source_hash: str
    toolchain: str
    kind: str
    cases: int
    worst: float  # the largest error as a share of the bound
    mutants_rejected: int
    date: str
    proved_on: str = ""  # of a confirmation: the kind of machine on which all cases were tried
    format: int = FORMAT  # of the hash; records that do not say it are of 1
    carried_from: str = ""  # of one that was proved under another hash: that hash, and why the row is the same
    worst_by_dtype: dict[str, dict[str, float]] = field(default_factory=dict)  # and by output; none of exact ones


def shipped_path(kind: str) -> Path:
    return SHIPPED / f"{kind}.json"


def _cached_path(kind: str, op: str, row: str) -> Path:
    return environment.cache_dir("certificates") / kind / f"{op}.{row}.json"


@functools.cache
def _shipped(kind: str) -> dict[tuple[str, str], Certificate]:
    try:
        found = [_read(record) for record in read_json(shipped_path(kind))]
        return {(c.op, c.row): c for c in found}
    except (OSError, ValueError, TypeError):
        return {}


def _cached(kind: str, op: str, row: str) -> Certificate | str:
    """The certificate in the cache, or why it cannot be read; "" if there is none."""
    path = _cached_path(kind, op, row)
    try:
        return _read(read_json(path))
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return f"its certificate cannot be read ({path}: {error})"


def _read(record: Any) -> Certificate:
    """A record as it was written; one that names no format is of the first. Raises ValueError if it is none."""
    return built(Certificate, {"format": 1, **record} if isinstance(record, dict) else record)


def find(op: str, row: str, kind: str | None = None) -> list[Certificate]:
    """The certificates for a row on this kind of machine (or another), whether or not they still hold."""
    kind = kind or machine().kind
    found = (_cached(kind, op, row), _shipped(kind).get((op, row)))
    return [c for c in found if isinstance(c, Certificate)]


def elsewhere(op: str, row: Row) -> Certificate | None:
    """A certificate of another kind of CPU that a confirmation here would carry over, or None.

    It is of this architecture, for this source and this toolchain, and the row's results do not depend on the maker.
    """
    if row.source is None or row.device != "cpu" or row.differs():
        return None
    here = machine()
    for kind in shipped_kinds():
        if kind == here.kind or not kind.startswith(f"{here.architecture}-"):
            continue
        held = _shipped(kind).get((op, row.name))
        if held and _within(held) and not held.proved_on and current(held, row) and held.toolchain == row.toolchain():
            return held
    return None


def shipped_kinds() -> list[str]:
    """The kinds of machine whose certificates ship with the package; those of GPUs begin with ``sm_``."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def invalid(op: str, row: Row, kind: str | None = None) -> str | None:
    """None where the row may be chosen here, else the reason: never proved, or proved for another source or toolchain.

    The reason is about this machine (or another ``kind``), this source as it lies on disk and this compiler.
    """
    if row.source is None:
        return None
    if kind is None:
        try:
            kind = kind_of(row.device)
        except RuntimeError as error:  # a GPU's row where there is none, as when its kernels are interpreted
            return str(error)
    found = find(op, row.name, kind)
    candidates = [c for c in found if _within(c)]
    if found and not candidates:
        worst = found[0].worst
        return f"its certificate says an error of {worst} times the bound; run `kernelworks prove {op}.{row.name}`"
    if not candidates:
        kept, held = _cached(kind, op, row.name), elsewhere(op, row)
        if isinstance(kept, str) and kept:
            return f"{kept}; run `kernelworks prove {op}.{row.name}`"
        if held is not None:
            return f"proved on {held.kind}, not confirmed here yet; run `kernelworks prove {op}.{row.name} --missing`"
        return f"not proved on this kind of machine ({kind}); run `kernelworks prove {op}.{row.name}`"
    same_source = [c for c in candidates if current(c, row)]
    if not same_source:
        return f"stale certificate: {_changed(candidates)}; run `kernelworks prove {op}.{row.name}`"
    toolchain = row.toolchain()
    if not any(c.toolchain == toolchain for c in same_source):
        return f"proved with {same_source[0].toolchain}, not with {toolchain}; run `kernelworks prove {op}.{row.name}`"
    return None


def current(certificate: Certificate, row: Row) -> bool:
    """Whether it speaks for a row as it is: its device code, and the code that launches that."""
    return certificate.format == FORMAT and certificate.source_hash == row.hash()


def _changed(held: list[Certificate]) -> str:
    """Why none of a row's certificates speaks for it."""
    if any(c.format == FORMAT for c in held):
        return "the source changed since it was proved"
    of = max(c.format for c in held)
    if of < FORMAT:
        return f"its hash is of format {of}, which left out the code that launches a row"
    return f"its hash is of format {of}, which this version does not know"


def _within(certificate: Certificate) -> bool:
    """Whether its worst error is one that the contract allows; a NaN is not."""
    return certificate.worst <= 1


def _replace(path: Path, text: str) -> None:
    environment.write_whole(path, text, prefix=f".{path.name}-")


def write(certificate: Certificate) -> Path:
    """Keeps a certificate in the user's cache. Raises OSError where the folder cannot be written."""
    path = _cached_path(certificate.kind, certificate.op, certificate.row)
    _replace(path, in_lines(asdict(certificate)) + "\n")
    return path


def write_shipped(certificates: Iterable[Certificate], kind: str) -> Path:
    """Writes the file that ships with the package for one kind of machine, rows in a fixed order."""
    records = [asdict(c) for c in sorted(certificates, key=lambda c: (c.op, c.row))]
    _replace(shipped_path(kind), in_lines(records) + "\n")
    return shipped_path(kind)
