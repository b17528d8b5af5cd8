"""Known-wrong versions of rowwise_linear."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.quantization.rowwise_linear.contract import EIGHT

__all__ = ["MUTANTS"]


def _product(
    decoded: Callable[[Tensor], Tensor] = Tensor.double, *, before: Callable[[Tensor], Tensor] = lambda x: x,
    scaled: Callable[[Tensor], Tensor] = lambda s: s, after: Callable[[Tensor], Tensor] = lambda y: y,
    times: float = 1.0,
) -> Callable[..., Tensor]:  # fmt: skip
    def run(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        y = (before(x).double() @ decoded(weight).double().T) * scaled(scale.double())
        return after(y if bias is None else y + bias.double() * times).to(x.dtype)

    return run


def _unsigned(weight: Tensor) -> Tensor:
    return weight.view(torch.uint8) if weight.dtype == torch.int8 else weight.double().abs()


def _no_subnormals(weight: Tensor) -> Tensor:
    wide = weight.double()
    return torch.where(wide.abs() < 2.0**-6, 0.0, wide) if weight.dtype == EIGHT else wide.clamp_min(-127)


def _stale(y: Tensor) -> Tensor:
    y = y.clone()
    y[..., -1:] = 0.0
    return y


MUTANTS = (
    Mutant("codes without signs", _product(_unsigned), "codes are taken for numbers from 0 on"),
    Mutant("least codes lost", _product(_no_subnormals), "-128 is -127; float8's subnormals are 0"),
    Mutant("no scale", _product(scaled=torch.ones_like), "the scale is not there"),
    Mutant("scale one aside", _product(scaled=lambda s: s.roll(1)), "each row has its neighbour's scale"),
    Mutant("one scale", _product(scaled=lambda s: s[:1].expand_as(s)), "every row has the first row's scale"),
    Mutant("bias scaled", lambda x, w, s, b: _product(times=1.0)(x, w, s, None if b is None else b * s.to(b.dtype)),
           "the bias is added before the scale"),
    Mutant("x in 8 bits", _product(before=lambda x: (x.double() * 127).round() / 127), "x is rounded"),
    Mutant("x in bfloat16", _product(before=lambda x: (x.double() + 2.0**-10 * x.double())), "x is off by 2^-10"),
    Mutant("missing bias", _product(times=0.0), "the bias is not added"),
    Mutant("stale column", _product(after=_stale), "the last column is never written"),
    Mutant("shifted rows", _product(after=lambda y: y.roll(1, 0) if y.dim() > 1 else y), "rows are one too low"),
    Mutant("NaN swallowed", _product(after=lambda y: y.nan_to_num(0.0)), "NaN becomes 0"),
    Mutant("zeros", _product(after=torch.zeros_like), "nothing is written"),
)  # fmt: skip
