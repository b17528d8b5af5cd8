"""How far float32 may be off in an expression: a running error analysis, in float64.

A value carries how far its float32 counterpart may be from it. Each operation hands the errors of its operands on, to
first order, and adds its own rounding: 2^-24 of its result, and half of 2^-149 where that is more, and nothing where
float32 holds a sum or product of exact operands. Bounds of elementary functions are those of ``simd/activation.hpp``
and ``tile/activation.py``, and of ``simd/fused_functions.hpp``. Where the sides of a comparison
are closer than their errors it may fall either way, and ``where`` then covers both of its branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF

__all__ = [
    "FUNCTIONS", "Comparison", "Running", "add_up", "ceil", "equal", "error_function", "exponential",
    "exponential_less_one", "floor", "is_true", "larger", "largest", "logarithm", "logarithm_one_more", "nearest",
    "normal_distribution", "smaller", "square_root", "to_bfloat16", "to_float16", "to_float32", "unequal",
]  # fmt: skip

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST, LARGEST = 2.0**-149, 2.0**127  # of float32
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
        rounding = torch.where(value.isfinite(), U32 * value.abs(), torch.zeros_like(value))
        return Running(value, error + rounding + 0.5 * SMALLEST)

    def _rounded(self, b: Running, value: Tensor, error: Tensor) -> Running:
        """A sum or a product. One of exact operands that float32 holds is rounded to itself."""
        return self._held(value, error, (self.error == 0.0) & (b.error == 0.0) & (value.float().double() == value))

    def _held(self, value: Tensor, error: Tensor, held: Tensor) -> Running:
        made = self._made(value, error)
        return Running(value, torch.where(held, torch.zeros_like(value), made.error))

    def __add__(self, other: Any) -> Running:
        b = _running(other, self)
        return self._rounded(b, self.value + b.value, self.error + b.error)

    def __sub__(self, other: Any) -> Running:
        return self + -_running(other, self)

    def __mul__(self, other: Any) -> Running:
        b = _running(other, self)
        moved = _times(self.value, b.error) + _times(b.value, self.error) + _times(self.error, b.error)
        value = self.value * b.value
        exact = (self.error == 0.0) & (b.error == 0.0) & (value.float().double() == value)
        return self._held(value, moved, exact | _is_nothing_times(self, b) | _is_nothing_times(b, self))

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


def _times(size: Tensor, error: Tensor) -> Tensor:
    """What an error comes to, times this: nothing where there is none, and no end where it has none."""
    made = size.abs() * error
    made = torch.where((error == 0.0) | size.isnan(), torch.zeros_like(made), made)
    return torch.where(made.isnan(), torch.full_like(made, torch.inf), made)


def _is_nothing_times(a: Running, b: Running) -> Tensor:
    """Where 0 itself is multiplied by what float32 holds as a number: the product is 0, however far that is off."""
    return (a.value == 0.0) & (a.error == 0.0) & (b.value.abs() + b.error < LARGEST)


@dataclass(frozen=True)
class Comparison:
    """Whether it holds, and where rounding may decide otherwise."""

    holds: Tensor
    unsure: Tensor

    def __and__(self, other: Comparison) -> Comparison:
        return Comparison(self.holds & other.holds, self.unsure | other.unsure)

    def __or__(self, other: Comparison) -> Comparison:
        return Comparison(self.holds | other.holds, self.unsure | other.unsure)

    def __xor__(self, other: Comparison) -> Comparison:
        return Comparison(self.holds ^ other.holds, self.unsure | other.unsure)

    def __invert__(self) -> Comparison:
        return Comparison(~self.holds, self.unsure)


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


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "where": _where, "abs": _abs, "exp": _exp, "expm1": _expm1, "log1p": _log1p, "sigmoid": _sigmoid, "tanh": _tanh,
}  # fmt: skip


# ---------------------------------------------------------------- of any argument


def _rising(
    function: Callable[[Tensor], Tensor],
    x: Running,
    units: float,
    absolute: float = SMALLEST,
    lowest: float = -math.inf,
) -> Running:
    """A function that never falls: at both ends of what ``x`` may be, and ``units`` of 2^-24 of its own. Below
    ``lowest`` it has no value."""
    value = function(x.value)
    beyond = x.value - x.error < lowest
    up = function(x.value + x.error) - value
    down = value - function((x.value - x.error).clamp(min=lowest) if lowest > -math.inf else x.value - x.error)
    moved = torch.fmax(up, down)
    moved = torch.where((x.error == 0.0) | moved.isnan(), torch.zeros_like(value), moved)
    moved = torch.where(beyond & (x.error > 0.0), torch.full_like(value, math.inf), moved)
    own = torch.where(value.isfinite(), U32 * units * value.abs(), torch.zeros_like(value))
    return Running(value, moved + own + absolute)


def exponential(x: Running) -> Running:
    return _rising(torch.exp, x, 4.0)


def exponential_less_one(x: Running) -> Running:
    return _rising(torch.expm1, x, 8.0)


def logarithm(x: Running) -> Running:
    return _rising(torch.log, x, 4.0, lowest=0.0)


def logarithm_one_more(x: Running) -> Running:
    return _rising(torch.log1p, x, 8.0, lowest=-1.0)


def square_root(x: Running) -> Running:
    return _rising(torch.sqrt, x, 1.0, lowest=0.0)


def error_function(x: Running) -> Running:
    return _rising(torch.erf, x, 10.0)


def normal_distribution(x: Running) -> Running:
    """``simd/normal.hpp`` derives it: 16 units of the distribution, and 2.5 x^2 of the tail."""
    made = _rising(lambda t: 0.5 * torch.special.erfc(-t / math.sqrt(2.0)), x, 16.0)
    square = x.value.square().clamp(max=400.0)
    tail = 0.5 * torch.special.erfc(x.value.abs() / math.sqrt(2.0))
    return Running(made.value, made.error + torch.nan_to_num(U32 * 2.5 * square * tail))


def _step(function: Callable[[Tensor], Tensor]) -> Callable[[Running], Running]:
    """Of a function whose values float32 holds."""

    def analysis(x: Running) -> Running:
        return _rising(function, x, 0.0, 0.0)

    return analysis


def _rounding_to(dtype: torch.dtype) -> Callable[[Running], Running]:
    return _step(lambda t: t.to(torch.float32).to(dtype).double())


floor, ceil, nearest = _step(torch.floor), _step(torch.ceil), _step(torch.round)
to_bfloat16, to_float16 = _rounding_to(torch.bfloat16), _rounding_to(torch.float16)


def larger(a: Any, b: Any) -> Running:
    return _chosen(torch.maximum, a, b)


def smaller(a: Any, b: Any) -> Running:
    return _chosen(torch.minimum, a, b)


def _chosen(choose: Callable[[Tensor, Tensor], Tensor], a: Running, b: Running) -> Running:
    """One of the two, which rounding may decide where they are close: off by no more than the worse of both."""
    value = choose(a.value, b.value)
    near = (a.value - b.value).abs() <= a.error + b.error
    first = value == a.value
    error = torch.where(near, torch.maximum(a.error, b.error), torch.where(first, a.error, b.error))
    return Running(value, error)


def equal(a: Running, b: Running) -> Comparison:
    return a._compared(b, torch.eq)


def unequal(a: Running, b: Running) -> Comparison:
    return a._compared(b, torch.ne)


def is_true(a: Running) -> Comparison:
    return a._compared(Running(torch.zeros_like(a.value), torch.zeros_like(a.value)), torch.ne)


# Of a sum over a row: what is added up in float32 before it goes to float64 (``simd/fused.hpp``).
CHAIN = 112.0


def add_up(x: Running) -> Running:
    """The sum over the last dimension, which stays with one element."""
    value, size = x.value.sum(-1, keepdim=True), x.value.abs().sum(-1, keepdim=True)
    own = torch.where(value.isfinite(), U32 * CHAIN * size, torch.zeros_like(value))
    return Running(value, x.error.sum(-1, keepdim=True) + own + SMALLEST)


def largest(x: Running) -> Running:
    """The largest of the last dimension, which stays with one element: off by no more than any of them."""
    return Running(x.value.amax(-1, keepdim=True), x.error.amax(-1, keepdim=True))
