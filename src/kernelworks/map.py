"""The kernel map of this machine: every op and row with its certificate, and its speed where one was measured.

Speeds come from benches that ran on this kind of machine: those kept by ``kernelworks bench`` in the cache folder.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from kernelworks import certificates, environment
from kernelworks.arguments import ops_named
from kernelworks.bench import OURS, read, save
from kernelworks.dispatch import Op
from kernelworks.machine import machine
from kernelworks.records import BenchResult, MapOp, MapRow

__all__ = ["keep_benches", "kept_benches", "kernel_map"]

PACKAGE = Path(__file__).resolve().parent


def _bench_path(op: str) -> Path:
    return environment.cache_dir("bench") / machine().kind / f"{op}.json"


def keep_benches(results: Sequence[BenchResult]) -> None:
    """Keeps results for later maps, one file an op, the newest run only. Raises OSError."""
    for op in dict.fromkeys(r.op for r in results):
        save([r for r in results if r.op == op], _bench_path(op))


def kept_benches(op: str) -> list[BenchResult]:
    """The results that were kept for an op on this kind of machine; none where there are none or they do not read."""
    try:
        return read(_bench_path(op))
    except (OSError, ValueError):
        return []


def kernel_map(op: str | None = None) -> list[MapOp]:
    """All ops, or one. Builds nothing and measures nothing. Raises ValueError where there is no such op."""
    return [_op(found) for found in ops_named(op)]


def _op(op: Op) -> MapOp:
    benches = [r for r in kept_benches(op.name) if not r.gate]
    contract = op.contract
    return MapOp(
        op=op.name,
        family=contract.family,
        formula=contract.formula,
        source=contract.source,
        rows=tuple(_row(op, row.name, benches) for row in op.rows),
        room=op.room.relative_to(PACKAGE).as_posix() if op.room.is_relative_to(PACKAGE) else str(op.room),
    )


def _row(op: Op, name: str, benches: Iterable[BenchResult]) -> MapRow:
    row = op.row(name)
    reason = certificates.invalid(op.name, row) or ""
    certificate, worst = "", None
    if row.source is not None and not reason:
        held = next(c for c in certificates.find(op.name, name) if c.source_hash == row.hash())
        certificate, worst = held.date, held.worst
    shares, ratios, best = [], [], Counter[str]()
    for result in benches:
        mine = next((a for a in result.arms if a.name == name or (a.name == OURS and result.chosen == name)), None)
        others = [a for a in result.arms if a.name != OURS and a.name not in {r.name for r in op.rows}]
        if mine is None or mine.median_us <= 0:
            continue
        shares.append(result.bound_us / mine.median_us)
        if others:
            fastest = min(others, key=lambda a: a.median_us)
            ratios.append(fastest.median_us / mine.median_us)
            best[fastest.name] += 1
    return MapRow(
        name=name, target=row.target, certificate=certificate, reason=reason, worst=worst,
        share_of_bound=statistics.median(shares) if shares else None,
        ratio=statistics.median(ratios) if ratios else None,
        baseline=best.most_common(1)[0][0] if best else "",
    )  # fmt: skip
