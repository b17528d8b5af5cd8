"""What each family of ops is: its word in a model, what it is as a kernel, and how such kernels usually fail."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import NamedTuple

__all__ = ["FamilyReading", "family_readings"]


class FamilyReading(NamedTuple):
    """``model``: where a network has it. ``kernel``: what bounds it. ``failure``: what breaks first."""

    model: str
    kernel: str
    failure: str


@functools.cache
def family_readings() -> dict[str, FamilyReading]:
    """By family, from ``families.toml``."""
    text = Path(__file__).with_name("families.toml").read_text(encoding="utf-8")
    return {name: FamilyReading(**parts) for name, parts in tomllib.loads(text).items()}
