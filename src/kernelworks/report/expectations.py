"""What the model of time says of calls beside what they took, as lines of Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kernelworks.report import quantity

__all__ = ["NEAR_SHARE", "summary", "table", "unseen_calls"]

NEAR_SHARE = 0.10  # of the measured time: within that the model holds


class Line(Protocol):
    """A call of ours: microseconds, and ``off``, the share of the measured time that the model says too much."""

    @property
    def case(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    @property
    def bound_us(self) -> float: ...
    @property
    def expected_us(self) -> float: ...
    @property
    def measured_us(self) -> float: ...
    @property
    def bound_by(self) -> str: ...
    @property
    def off(self) -> float: ...


def summary(lines: Sequence[Line]) -> str:
    """How near the model came, in a sentence; what the bound alone says beside it."""
    if not lines:
        return "No kernel of ours is on record."
    near = sum(abs(line.off) <= NEAR_SHARE for line in lines)
    middle, bounds = (
        statistics.median(abs(line.off) for line in lines),
        statistics.median(1 - line.bound_us / line.measured_us for line in lines),
    )
    return (
        f"Of {len(lines)} cases of our kernels {near} were predicted within {quantity.percent(NEAR_SHARE)}; "
        f"the model is off by "
        f"{quantity.percent(middle)} in the median, the bound by {quantity.percent(bounds)}."
    )


def table(lines: Sequence[Line]) -> list[str]:
    head = [
        "| case | kernel | bound, us | predicted, us | took, us | off by | bound by |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    rows = []
    for line in lines:
        figures = (quantity.figures(us) for us in (line.bound_us, line.expected_us, line.measured_us))
        off = f"{100 * line.off:+.0f}%"
        rows.append(
            f"| {line.case} | {line.kernel} | {' | '.join(figures)} "
            f"| {off if abs(line.off) <= NEAR_SHARE else f'**{off}**'} "
            f"| {line.bound_by} |"
        )
    return [summary(lines), "", *head, *rows] if lines else [summary(lines)]


def unseen_calls(found: Mapping[str, Any] | None, name: str) -> list[str]:
    """How near the predictions came that were written down before anybody had timed the calls; nothing without a
    record."""
    if found is None:
        return []
    off = [abs(row["predicted_us"] / row["us"] - 1) for row in found["rows"]]
    near, middle = sum(o <= NEAR_SHARE for o in off), quantity.percent(statistics.median(off))
    return [
        f"Of {len(off)} other calls, each predicted before anybody had timed it, {near} were within "
        f"{quantity.percent(NEAR_SHARE)}; the model as it was then was off by {middle} in the median "
        f"([{name}]({{up}}benchmarks/results/{name})).",
        "",
    ]
