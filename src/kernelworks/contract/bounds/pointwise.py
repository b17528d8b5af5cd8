"""Ops whose every element follows from the elements in its place: what they carry on, and what they add.

What is carried on is measured at the float64 values: the function at both ends of each operand's error. So steps
(``sign``, ``floor``), kinks and poles are counted as they are there, without a derivative of any op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import rounding
from kernelworks.contract.bounds.call import Call, Result, inner, unit, words
from kernelworks.contract.bounds.error import Error, sum_errors

__all__ = ["DECISIONS", "EXACT", "OWN", "TINY", "pointwise", "rounding_error"]

Own = Callable[[Tensor, list[Any]], Tensor]

# A result so small may be flushed to zero, or is rounded to a subnormal.
TINY = {torch.float32: 2.0**-126, torch.bfloat16: 2.0**-126, torch.float16: 2.0**-24, torch.float64: 2.0**-1022}


# They choose or sign what is there, and round nothing.
EXACT = words(
    """neg abs relu hardtanh clamp clamp_min clamp_max maximum minimum fmax fmin where threshold sign sgn floor ceil
    trunc round masked_fill nan_to_num positive copysign heaviside logical_not bitwise_not threshold_backward
    hardtanh_backward relu_ signbit"""
)

DECISIONS = words(
    """eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor isnan isinf isfinite
    isposinf isneginf floor_divide __and__ __or__ __xor__ isclose"""
)


def _times(roundings: float) -> Own:
    return lambda y, x: roundings * y.abs()


def _with(relative: float, absolute: float) -> Own:
    return lambda y, x: relative * y.abs() + absolute


# By how many unit roundoffs an honest kernel's result may be off: absolute, from the result and the operands. Those are
# the errors of what kernels are written with: libraries of 2 to 4 units in the last place, the quick functions of GPUs
# where they compute in float32, and the formulas that people write where a language has no such function.
OWN: dict[str, Own] = {
    "add": _times(1), "sub": _times(1), "rsub": _times(1), "mul": _times(1),
    "div": _times(4), "reciprocal": _times(4),  # a quick reciprocal, and a product with it
    "sqrt": _times(4), "rsqrt": _times(6), "square": _times(1), "hypot": _times(6),
    "addcmul": _times(3), "addcdiv": _times(6), "lerp": lambda y, x: 2 * y.abs() + 2 * x[0].abs(),
    "fmod": _times(2), "remainder": _times(2),
    # e^x as 2^(x log2 e): the product is rounded, and that counts by its size
    "exp": lambda y, x: y * (4 + 2.5 * x[0].abs()), "exp2": lambda y, x: y * (4 + x[0].abs()),
    "expm1": lambda y, x: 4 * y.abs() + (4 + 2.5 * x[0].abs()) * (y + 1),  # as e^x - 1
    "log": _with(4, 6), "log2": _with(4, 8), "log10": _with(4, 4), "log1p": _with(4, 6),  # as log(1 + x)
    "sigmoid": lambda y, x: y * (8 + 2.5 * x[0].abs() * (1 - y)),
    "tanh": _with(4, 6),  # from e^2x
    "erf": _with(4, 16), "erfc": _with(4, 16),  # rational approximations in float32
    "sin": _with(4, 6), "cos": _with(4, 6), "tan": _with(12, 6),
    "sinh": lambda y, x: (6 + 2.5 * x[0].abs()) * (y.abs() + 1), "cosh": lambda y, x: (6 + 2.5 * x[0].abs()) * y,
    "asin": _with(4, 6), "acos": _with(4, 8), "atan": _with(4, 6), "atan2": _with(4, 8), "asinh": _with(6, 6),
    "acosh": _with(6, 6), "atanh": _with(6, 6),
    "sigmoid_backward": _times(5), "tanh_backward": lambda y, x: 4 * y.abs() + 2 * x[0].abs(),
}  # fmt: skip
UNKNOWN = 16.0  # unit roundoffs of the operands and of the result, for a pointwise op that is not in the table


def _power(y: Tensor, x: list[Any]) -> Tensor:
    """x^p as e^(p log x), but for the small whole powers that are products."""
    power = x[1] if len(x) > 1 else 2.0
    if isinstance(power, (int, float)) and power == int(power) and abs(power) <= 4:
        return (abs(power) + (4 if power < 0 else 0)) * y.abs()
    if isinstance(power, (int, float)) and abs(power) == 0.5:
        return 6 * y.abs()
    logarithm = y.abs().clamp(min=2.0**-149).log().abs()
    return y.abs() * (8 + 8 * logarithm)


OWN["pow"] = _power


def pointwise(call: Call, outputs: Sequence[Tensor]) -> list[Result]:
    (native,) = outputs
    value = call.run()
    if not native.dtype.is_floating_point:
        return [Result(None, None, _decided(call, value))]
    parts = [part for i, error in call.errors.items() if (part := _carried(call, i, error, value)) is not None]
    parts += [_flipped(call, i, mask, value) for i, mask in call.unsure.items()]
    parts += own(call, value, native.dtype)
    return [Result(value, sum_errors(parts) if parts else None)]


def _decided(call: Call, value: Tensor) -> Tensor | None:
    """Where a truth value or whole number is another one within the operands' errors."""
    unsure: Tensor | None = None
    for i, error in call.errors.items():
        x = call.leaves[i]
        for end in (x - error.bound, x + error.bound):
            turned = call.run({i: end}) != value
            unsure = turned if unsure is None else unsure | turned
    for mask in call.unsure.values():
        wide = mask.expand(value.shape)
        unsure = wide if unsure is None else unsure | wide
    return unsure


def _carried(call: Call, place: int, error: Error, value: Tensor) -> Error | None:
    """How far the result moves with one operand's error."""
    x = call.leaves[place]
    if x.numel() < value.numel():
        error = error.alike()  # one element of it serves many of the result
    pole = call.name in ("div", "reciprocal", "rsqrt", "log") and place == call.floats[-1]

    def moved(off: Tensor) -> Tensor:
        if not bool(off.any()):
            return torch.zeros_like(value)
        up, down = ((call.run({place: end}) - value).abs() for end in (x + off, x - off))
        most = torch.fmax(up, down)  # the other end where one leaves the domain
        if pole:
            most = torch.where((x.abs() <= off).expand(most.shape) & value.isfinite(), torch.inf, most)
        return torch.where(value.isfinite(), most, torch.zeros_like(most))

    return error.map_parts(moved)


def _flipped(call: Call, place: int, mask: Tensor, value: Tensor) -> Error:
    """How far it moves where a truth value or a whole number hangs on rounding."""
    given = call.leaves[place]
    other = given ^ mask if given.dtype is torch.bool else given + mask
    off = (call.run({place: other}) - value).abs()
    return Error(off, off, torch.zeros_like(off), {"a comparison that rounding decides": 1.0})


def own(call: Call, value: Tensor, dtype: torch.dtype) -> list[Error]:
    """What the op itself adds: its function's error in float32 or wider, the rounding of its result, and that of the
    numbers among its arguments."""
    parts: list[Error] = []
    if call.name not in EXACT and not _shifts(call):
        table = OWN.get(call.name)
        operands = [leaf for leaf in call.leaves if isinstance(leaf, (Tensor, int, float))]
        count = UNKNOWN * value.abs() if table is None else table(value, operands)
        parts.append(rounding_error(value, dtype, call.label(), count))
    for i, leaf in enumerate(call.given):
        if isinstance(leaf, float) and leaf in call.scalars():
            off = (call.run({i: leaf * (1 + inner(dtype))}) - value).abs()
            parts.append(Error(off, off, torch.zeros_like(off), {call.label(): 1.0}))
    if call.name not in EXACT and call.name not in OWN:
        for i in call.floats:
            off = UNKNOWN * inner(dtype) * call.leaves[i].abs()
            moved = _carried(call, i, Error(off, off, torch.zeros_like(off), {call.label(): 1.0}), value)
            parts += [moved] if moved is not None else []
    return parts


def _shifts(call: Call) -> bool:
    """Whether it only changes the exponent: a product with a power of two, or with one."""
    if call.name not in ("mul", "div"):
        return False
    factor = call.given[1] if len(call.given) == 2 else None
    return isinstance(factor, (int, float)) and factor != 0 and abs(math.frexp(factor)[0]) == 0.5


def rounding_error(value: Tensor, dtype: torch.dtype, label: str, count: Tensor | None = None) -> Error:
    """One rounding of ``value``, or ``count`` unit roundoffs of a computation in float32 and then a rounding to a
    narrower dtype. Where an approximated function errs the same way everywhere, what sums its results up adds more than
    that by itself."""
    size = value.abs()
    tiny = TINY.get(dtype, 2.0**-126)
    u = inner(dtype)
    total = size if count is None else count.nan_to_num(nan=0.0).clamp(min=0)  # 0 times an infinite operand
    worst = u * total + tiny
    common = torch.full_like(size, tiny)
    spread = u * total / math.sqrt(3.0)
    if unit(dtype) > u:
        last = rounding(value, dtype) if dtype in (torch.bfloat16, torch.float16) else unit(dtype) * size
        worst, spread = worst + last, torch.hypot(spread, last / math.sqrt(3.0))
    finite = value.isfinite()
    zero = torch.zeros_like(size)
    return Error(
        torch.where(finite, worst, zero), torch.where(finite, common, zero), torch.where(finite, spread, zero),
        {label: 1.0},
    )  # fmt: skip
