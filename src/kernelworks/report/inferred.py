"""Figures of a machine that follow from others, since what was measured contradicted those: marked, and said why."""

from __future__ import annotations

from kernelworks.records import Ceilings, GpuCeilings

__all__ = ["marked", "notes"]

MARK = "*"
HEAD = f"{MARK} not as it was measured, which contradicted other figures, but what follows from those:"


def marked(record: Ceilings | GpuCeilings, name: str, text: str) -> str:
    """A figure as it is shown."""
    return f"{text}{MARK}" if name in record.inferred else text


def notes(record: Ceilings | GpuCeilings) -> list[str]:
    """What is said below the figures; nothing where all are as measured."""
    said = [f"{name}: {why}" for name, why in record.inferred.items()]
    return [HEAD, *said] if said else []
