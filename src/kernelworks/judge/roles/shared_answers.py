"""Which of a call's answers lie in one memory: a caller who writes to one of them changes the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelworks.judge.inputs.cases import Case
from kernelworks.judge.roles.layout import contiguous_strides, span

__all__ = ["shared_answers"]


def shared_answers(cases: Sequence[Case], at: Sequence[Any]) -> tuple[str, str]:
    """Of answers at these addresses two that are one memory, and two of which one lies in the other's, "" where none
    are; but for what the reference has in one memory, too."""
    doubled = within = ""
    for case, one in zip(cases, at, strict=True):
        ranges = []
        for (address, plain), (shape, dtype), strides in zip(one, case.outputs, case.strides, strict=True):
            spot = (int(address), shape, contiguous_strides(shape) if plain else strides, dtype)
            ranges.append((spot[0], spot[0] + span(spot), plain))
        for b, (low, high, plain) in enumerate(ranges):
            for a, (its_low, its_high, its_plain) in enumerate(ranges[:b]):
                if (a, b) in case.shared or max(low, its_low) >= min(high, its_high):
                    continue
                names = f"{case.names[a]} and {case.names[b]}"
                if (low, high) == (its_low, its_high):
                    doubled = (
                        f"{names} are one memory, where the reference has two: who writes to one changes the other"
                    )
                elif plain and its_plain:
                    within = f"{names} lie in one memory, where the reference has two"
    return doubled, within
