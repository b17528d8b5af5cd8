"""How far float32 may be off in an expression: a running error analysis, in float64.

A value carries how far its float32 counterpart may be from it. Each operation hands the errors of its operands on, to
first order, and adds its own rounding: 2^-24 of its result, and half of 2^-149 where that is more, and nothing where
float32 holds a sum or product of exact operands. Bounds of elementary functions are those of ``simd/activation.hpp``
and ``tile/activation.py``. Where the sides of a comparison are closer than their errors it may fall either way, and
``where`` then covers both of its branches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF

__all__ = ["FUNCTIONS", "Running", "to_float32"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149  # of float32
EXP, EXP_SLOPE = 4.0, 0.05  # units of 2^-24 that an exponential of d may be off by: the first, and the second times |d|
EXPM1, LOG1P = 6.0, 6.0


def to_float32(number: float) -> float:
    """A number as a kernel takes it."""
    return torch.tensor(float(number), dtype=torch.float32).item()


@dataclass(frozen=True, eq=False)
class Running:
    """A value in float64, and how far a kernel's may be from it."""

    value: Tensor
    error: Tensor

    def _made(self, value: Tensor, error: Tensor) -> Running:
        return Running(value, error + U32 * value.abs() + 0.5 * SMALLEST)

    def _rounded(self, b: Running, value: Tensor, error: Tensor) -> Running:
        """A sum or a product. One of exact operands that float32 holds is rounded to itself."""
        held = (self.error == 0.0) & (b.error == 0.0) & (value.float().double() == value)
        made = self._made(value, error)
        return Running(value, torch.where(held, torch.zeros_like(value), made.error))

    def __add__(self, other: Any) -> Running:
        b = _running(other, self)
        return self._rounded(b, self.value + b.value, self.error + b.error)

    def __sub__(self, other: Any) -> Running:
        return self + -_running(other, self)

    def __mul__(self, other: Any) -> Running:
        b = _running(other, self)
        moved = self.value.abs() * b.error + b.value.abs() * self.error + self.error * b.error
        return self._rounded(b, self.value * b.value, torch.nan_to_num(moved, nan=0.0, posinf=torch.inf))

    def __truediv__(self, other: Any) -> Running:
        b = _running(other, self)
        value = self.value / b.value
        return self._made(value, (self.error + value.abs() * b.error) / (b.value.abs() - b.error).clamp(min=0.0))

    def __radd__(self, other: Any) -> Running:
        return _running(other, self) + self

    def __rsub__(self, other: Any) -> Running:
        return _running(other, self) - self

    def __rmul__(self, other: Any) -> Running:
        return _running(other, self) * self

    def __rtruediv__(self, other: Any) -> Running:
        return _running(other, self) / self

    def __neg__(self) -> Running:
        return Running(-self.value, self.error)

    def __lt__(self, other: Any) -> Comparison:
        return self._compared(_running(other, self), torch.lt)

    def __le__(self, other: Any) -> Comparison:
        return self._compared(_running(other, self), torch.le)

    def __gt__(self, other: Any) -> Comparison:
        return self._compared(_running(other, self), torch.gt)

    def __ge__(self, other: Any) -> Comparison:
        return self._compared(_running(other, self), torch.ge)

    def _compared(self, b: Running, compare: Any) -> Comparison:
        away, error = (self.value - b.value).abs(), self.error + b.error
        return Comparison(compare(self.value, b.value), (error > 0.0) & (away <= error))


@dataclass(frozen=True)
class Comparison:
    """Whether it holds, and where rounding may decide otherwise."""

    holds: Tensor
    unsure: Tensor

    def __and__(self, other: Comparison) -> Comparison:
        return Comparison(self.holds & other.holds, self.unsure | other.unsure)

    def __or__(self, other: Comparison) -> Comparison:
        return Comparison(self.holds | other.holds, self.unsure | other.unsure)


def _running(value: Any, like: Running) -> Running:
    """A constant is rounded once."""
    if isinstance(value, Running):
        return value
    made = torch.full_like(like.value, float(value))
    return Running(made, torch.full_like(made, abs(float(value) - to_float32(value))))


def _where(condition: Comparison, a: Any, b: Any) -> Running:
    like = next((v for v in (a, b) if isinstance(v, Running)), None)
    if like is None:
        like = Running(condition.holds.double(), torch.zeros_like(condition.holds, dtype=torch.float64))
    a, b = _running(a, like), _running(b, like)
    value, error = torch.where(condition.holds, a.value, b.value), torch.where(condition.holds, a.error, b.error)
    either = torch.maximum(a.error, b.error) + (a.value - b.value).abs()
    return Running(value, torch.where(condition.unsure, either, error))


def _abs(x: Running) -> Running:
    return Running(x.value.abs(), x.error)


def _exp(d: Running) -> Running:
    value = torch.exp(d.value.clamp(max=0.0))
    relative = U32 * (EXP + EXP_SLOPE * d.value.abs().clamp(max=105.0)) + d.error.clamp(max=1e4)
    return Running(value, value * relative + SMALLEST)


def _expm1(d: Running) -> Running:
    value = torch.expm1(d.value.clamp(max=0.0))
    moved = (1.0 + value) * d.error.clamp(max=1e4)
    return Running(value, U32 * EXPM1 * value.abs() + moved + SMALLEST)


def _log1p(e: Running) -> Running:
    value = torch.log1p(e.value)
    return Running(value, U32 * LOG1P * value.abs() + e.error / (1.0 + e.value) + SMALLEST)


def _sigmoid(x: Running) -> Running:
    e = _exp(-_abs(x))
    return _where(x < 0.0, e, 1.0) / (1.0 + e)


def _tanh(x: Running) -> Running:
    t = _expm1(-2.0 * _abs(x))
    y = t / (2.0 + t)
    return _where(x < 0.0, y, -y)


FUNCTIONS = {
    "where": _where, "abs": _abs, "exp": _exp, "expm1": _expm1, "log1p": _log1p, "sigmoid": _sigmoid, "tanh": _tanh,
}  # fmt: skip
