"""Schedule rewriting: a problem's graph as loop nests of our own (``derive``), moves on them (``moves``), C++ that a
judge takes (``candidate``), and a search that evolves them (``evolution``). docs/reference/search.md."""

from __future__ import annotations

from kernelworks.search.schedule.evolution import ScheduleRewriting

__all__ = ["ScheduleRewriting"]
