"""What comes out of a search, as a record: on which machine, what it brought, and an error in a line."""

from __future__ import annotations

from typing import Any

from kernelworks.machine import place_of
from kernelworks.records.fix import Fix

__all__ = ["fix_record", "in_a_line", "place"]


def fix_record(was: float, now: float, **fields: Any) -> Fix:
    """The record of a fix; by default of one that was not applied."""
    applied: dict[str, Any] = {
        "replaced": (), "left": (), "predicted_gain_s": 0.0, "error_before": 0.0, "error_after": 0.0, "agrees": True,
        "rounds": 0, "against": "",
    }  # fmt: skip
    return Fix(before_s=was, after_s=now, gain_s=was - now, **applied | fields)


def place(device: str) -> str:
    """The kind of machine that outcomes are kept of."""
    try:
        return place_of(device)
    except RuntimeError:  # a GPU that is played by records
        return device


def in_a_line(error: Exception) -> str:
    """An error in a line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}{f': {text[0][:300]}' if text else ''}"
