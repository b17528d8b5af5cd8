"""A value and how far a right kernel's may be off from it: the same expression gives both.

``Inexact(value, error)`` holds two float64 tensors: what is exact, and the largest distance of what a kernel that
computes in float32 has there. Sums, products, ``sigmoid`` and ``tanh`` of such are such, with one rounding of float32
more for each operation. So a function that is written with operators and methods of tensors, called with ``Inexact``,
gives its own error analysis.

A function's error from its argument's is rigorous, not of the first order: ``|d log sigmoid'| <= 1`` and
``|d log tanh'| <= 2``, so an argument that is off by e moves them by at most ``sigmoid'(x) (e^e - 1)`` and
``tanh'(x) (e^2e - 1) / 2``, and by no more than what is left of their range at ``|x| - e``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF

__all__ = ["Inexact"]

U32 = UNIT_ROUNDOFF[torch.float32]
LARGEST_FLUSHED_NUMBER = 2.0**-126  # what an exponential may give as 0
LEAST_ROUNDING = 2.0**-149  # a rounding among the subnormals


class Inexact:
    """See above."""

    def __init__(self, value: Tensor, error: Tensor | None = None) -> None:
        self.value = value
        self.error = torch.zeros_like(value) if error is None else error

    def _rounded(self, value: Tensor, error: Tensor) -> Inexact:
        return Inexact(value, error + U32 * (value.abs() + error) + LEAST_ROUNDING)

    def __add__(self, other: Inexact) -> Inexact:
        return self._rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Inexact) -> Inexact:
        return self._rounded(self.value - other.value, self.error + other.error)

    def __rsub__(self, other: float) -> Inexact:
        return self._rounded(other - self.value, self.error)

    def __mul__(self, other: Inexact) -> Inexact:
        a, b = self.value.abs(), other.value.abs()
        return self._rounded(self.value * other.value, a * other.error + b * self.error + self.error * other.error)

    def sigmoid(self) -> Inexact:
        """e = e^-|x| is off by 3 roundings and those of its argument, which |x| scales; then ``1 / (1 + e)``."""
        y = self.value.sigmoid()
        other = (-self.value).sigmoid()
        tail = (self.error - self.value.abs()).sigmoid()
        moved = _moved(self.value, y * other * torch.expm1(self.error), tail)
        own = U32 * y * ((3.0 + self.value.abs().clamp_max(104.0)) * other + 3.0) + LARGEST_FLUSHED_NUMBER
        return Inexact(y, moved + own)

    def tanh(self) -> Inexact:
        """``-t / (2 + t)`` with ``t = e^-2|x| - 1``: t is off by 4 roundings around 0 and by one where it nears -1,
        where that counts twice; two more follow."""
        y = self.value.tanh()
        slope = 1.0 / self.value.cosh().square()
        tail = 2.0 * (2.0 * (self.error - self.value.abs())).sigmoid()
        moved = _moved(self.value, slope * torch.expm1(2.0 * self.error) / 2.0, tail)
        return Inexact(y, moved + U32 * (4.0 + 4.0 * slope) * y.abs() + LEAST_ROUNDING)


def _moved(x: Tensor, by: Tensor, tail: Tensor) -> Tensor:
    """At most what is left of the range where the argument may be; 0 where it is infinite, and what it gives exact."""
    return torch.where(x.isinf(), 0.0, torch.fmin(by, tail))
