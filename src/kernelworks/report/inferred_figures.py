"""Figures of a machine that follow from others, since what was measured contradicted those: marked, and said why."""

from __future__ import annotations

from kernelworks.records import GpuPeaks, Peaks

__all__ = ["inference_notes", "mark_inferred"]

MARK = "*"
HEAD = f"{MARK} not as it was measured, which contradicted other figures, but what follows from those:"


def mark_inferred(record: Peaks | GpuPeaks, name: str, text: str) -> str:
    """A figure as it is shown."""
    return f"{text}{MARK}" if name in record.inferred else text


def inference_notes(record: Peaks | GpuPeaks) -> list[str]:
    """What is said below the figures; nothing where all are as measured."""
    said = [f"{name}: {why}" for name, why in record.inferred.items()]
    return [HEAD, *said] if said else []
