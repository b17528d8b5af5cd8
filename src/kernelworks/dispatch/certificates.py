"""Certificates: the records that kernels were verified. A kernel without a valid certificate is not chosen.

A certificate speaks for one op and kernel, one hash of the source, one toolchain and one kind of machine (of the CPU or
of the GPU that runs the kernel). Certificates for the project's machines ship with the package
(``certified/KIND.json``). ``kernelworks verify`` writes more into the cache. Each kernel has a file of its own, written
through a rename, so that concurrent or killed processes leave whole files.

Most kernels give the same result on every maker's CPU (``Kernel.differs``). Such a kernel is verified once for its
instruction set. On another kind of CPU the same source, compiled by the same toolchain, only needs a confirmation: a
certificate that says where the whole verification was made (``verified_on``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernelworks.build.launch_code import FORMAT
from kernelworks.contract import Kernel
from kernelworks.machine import environment, kind_of, machine
from kernelworks.records.json_text import build_record, format_lines, read_json

__all__ = [
    "Certificate",
    "find_certificates",
    "invalid_reason",
    "is_current",
    "shipped_certificates",
    "shipped_kinds",
    "shipped_path",
    "transferable_certificate",
    "write",
    "write_shipped",
]

SHIPPED_DIR = Path(__file__).resolve().parent / "certified"


@dataclass(frozen=True)
class Certificate:
    op: str
    kernel: str
    source_hash: str
    toolchain: str
    kind: str
    cases: int
    worst: float  # the largest error as a share of the bound
    mutants_rejected: int
    date: str
    verified_on: str = ""  # of a confirmation: the kind of machine on which all cases were tried
    format: int = FORMAT  # of the hash; records that do not say it are of 1
    carried_from: str = ""  # of one that was verified under another hash: that hash, and why the kernel is the same
    worst_by_dtype: dict[str, dict[str, float]] = field(default_factory=dict)  # and by output; none of exact ones


def shipped_path(kind: str) -> Path:
    return SHIPPED_DIR / f"{kind}.json"


def _cached_path(kind: str, op: str, kernel: str) -> Path:
    return environment.cache_dir("certificates") / kind / f"{op}.{kernel}.json"


@functools.cache
def _shipped(kind: str) -> dict[tuple[str, str], Certificate]:
    try:
        found = [_read(record) for record in read_json(shipped_path(kind))]
        return {(c.op, c.kernel): c for c in found}
    except (OSError, ValueError, TypeError):
        return {}


def _cached(kind: str, op: str, kernel: str) -> Certificate | str:
    """The certificate in the cache, or why it cannot be read; "" if there is none."""
    path = _cached_path(kind, op, kernel)
    try:
        return _read(read_json(path))
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return f"its certificate cannot be read ({path}: {error})"


def _read(record: Any) -> Certificate:
    """A record as it was written; one that names no format is of the first. Raises ValueError if it is none."""
    return build_record(Certificate, {"format": 1, **record} if isinstance(record, dict) else record)


def find_certificates(op: str, kernel: str, kind: str | None = None) -> list[Certificate]:
    """The certificates for a kernel on this kind of machine (or another), whether or not they still hold."""
    kind = kind or machine().kind
    found = (_cached(kind, op, kernel), _shipped(kind).get((op, kernel)))
    return [c for c in found if isinstance(c, Certificate)]


def transferable_certificate(op: str, kernel: Kernel) -> Certificate | None:
    """A certificate of another kind of CPU that a confirmation here would carry over, or None.

    It is of this architecture, for this source and this toolchain, and the kernel's results do not depend on the maker.
    """
    if kernel.source is None or kernel.device != "cpu" or kernel.differs():
        return None
    here = machine()
    for kind in shipped_kinds():
        if kind == here.kind or not kind.startswith(f"{here.architecture}-"):
            continue
        held = _shipped(kind).get((op, kernel.name))
        if (
            held
            and _within(held)
            and not held.verified_on
            and is_current(held, kernel)
            and held.toolchain == kernel.toolchain()
        ):
            return held
    return None


def shipped_kinds() -> list[str]:
    """The kinds of machine whose certificates ship with the package; those of GPUs begin with ``sm_``."""
    return sorted(path.stem for path in SHIPPED_DIR.glob("*.json"))


def shipped_certificates(kind: str) -> list[Certificate]:
    """The certificates of a kind of machine that ship with the package, whether or not they still hold."""
    return list(_shipped(kind).values())


def invalid_reason(op: str, kernel: Kernel, kind: str | None = None) -> str | None:
    """None where the kernel may be chosen here, else the reason: never verified, or verified for another source or
    toolchain.

    The reason is about this machine (or another ``kind``), this source as it lies on disk and this compiler.
    """
    if kernel.source is None:
        return None
    if kind is None:
        try:
            kind = kind_of(kernel.device)
        except RuntimeError as error:  # a GPU's kernel where there is none, as when its kernels are interpreted
            return str(error)
    found = find_certificates(op, kernel.name, kind)
    candidates = [c for c in found if _within(c)]
    if found and not candidates:
        worst = found[0].worst
        return f"its certificate says an error of {worst} times the bound; run `kernelworks verify {op}.{kernel.name}`"
    if not candidates:
        kept, held = _cached(kind, op, kernel.name), transferable_certificate(op, kernel)
        if isinstance(kept, str) and kept:
            return f"{kept}; run `kernelworks verify {op}.{kernel.name}`"
        if held is not None:
            where = f"verified on {held.kind}, not confirmed here yet"
            return f"{where}; run `kernelworks verify {op}.{kernel.name} --missing`"
        return f"not verified on this kind of machine ({kind}); run `kernelworks verify {op}.{kernel.name}`"
    same_source = [c for c in candidates if is_current(c, kernel)]
    if not same_source:
        return f"stale certificate: {_changed(candidates)}; run `kernelworks verify {op}.{kernel.name}`"
    toolchain = kernel.toolchain()
    if not any(c.toolchain == toolchain for c in same_source):
        before = same_source[0].toolchain
        return f"verified with {before}, not with {toolchain}; run `kernelworks verify {op}.{kernel.name}`"
    return None


def is_current(certificate: Certificate, kernel: Kernel) -> bool:
    """Whether it speaks for a kernel as it is: its device code, and the code that launches that."""
    return certificate.format == FORMAT and certificate.source_hash == kernel.hash()


def _changed(held: list[Certificate]) -> str:
    """Why none of a kernel's certificates speaks for it."""
    if any(c.format == FORMAT for c in held):
        return "the source changed since it was verified"
    of = max(c.format for c in held)
    if of < FORMAT:
        return f"its hash is of format {of}, which left out the code that launches a kernel"
    return f"its hash is of format {of}, which this version does not know"


def _within(certificate: Certificate) -> bool:
    """Whether its worst error is one that the contract allows; a NaN is not."""
    return certificate.worst <= 1


def _replace(path: Path, text: str) -> None:
    environment.write_whole(path, text, prefix=f".{path.name}-")


def write(certificate: Certificate) -> Path:
    """Keeps a certificate in the user's cache. Raises OSError where the folder cannot be written."""
    path = _cached_path(certificate.kind, certificate.op, certificate.kernel)
    _replace(path, format_lines(asdict(certificate)) + "\n")
    return path


def write_shipped(certificates: Iterable[Certificate], kind: str) -> Path:
    """Writes the file that ships with the package for one kind of machine, kernels in a fixed order."""
    records = [asdict(c) for c in sorted(certificates, key=lambda c: (c.op, c.kernel))]
    _replace(shipped_path(kind), format_lines(records) + "\n")
    return shipped_path(kind)
