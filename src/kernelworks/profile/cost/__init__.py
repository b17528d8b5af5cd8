"""What a call cannot do without: arithmetic, elementary functions, each byte in and out once.

Counted from a call's arguments alone, by the formulas of this folder and by our ops' contracts: nothing here knows how
long anything took, nor judges it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOTHING", "Work"]


@dataclass(frozen=True)
class Work:
    """The least that a call must do. ``function`` names the elementary function. ``dtype`` decides the unit: a
    product's own dtype, float32 for all else, since dot-product units do nothing else."""

    flop: float = 0.0
    transcendental: float = 0.0
    read: float = 0.0  # bytes
    written: float = 0.0
    dtype: str = "float32"
    function: str = "exp"

    def __add__(self, other: Work) -> Work:
        busier = self if (self.flop, self.transcendental) >= (other.flop, other.transcendental) else other
        return Work(
            self.flop + other.flop,
            self.transcendental + other.transcendental,
            self.read + other.read,
            self.written + other.written,
            busier.dtype,
            (self if self.transcendental >= other.transcendental else other).function,
        )


NOTHING = Work()
