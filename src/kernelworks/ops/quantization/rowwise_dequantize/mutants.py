"""Known-wrong versions of rowwise_dequantize. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.quantization.rowwise_dequantize.contract import DTYPES, EIGHT

__all__ = ["MUTANTS"]


def _decoded(
    codes_of: Callable[[Tensor], Tensor] = Tensor.float, scale_of: Callable[[Tensor], Tensor] = lambda s: s,
    after: Callable[[Tensor], Tensor] = lambda y: y,
) -> Callable[..., Tensor]:  # fmt: skip
    def run(codes: Tensor, scale: Tensor, dtype: str) -> Tensor:
        return after(codes_of(codes) * scale_of(scale).unsqueeze(-1)).to(DTYPES[dtype])

    return run


def _unsigned(codes: Tensor) -> Tensor:
    return codes.float().abs() if codes.dtype == EIGHT else codes.view(torch.uint8).float()


def _no_ends(codes: Tensor) -> Tensor:
    wide = codes.float()
    return torch.where(wide.abs() < 2.0**-6, 0.0, wide) if codes.dtype == EIGHT else wide.clamp_min(-127)


def _other_format(codes: Tensor) -> Tensor:
    return codes.view(torch.int8 if codes.dtype == EIGHT else EIGHT).float()


def _stale(y: Tensor) -> Tensor:
    y = y.clone()
    y[..., -1:] = 0.0
    return y


MUTANTS = (
    Mutant("codes without signs", _decoded(_unsigned), "codes are taken for numbers from 0 on"),
    Mutant("least codes lost", _decoded(_no_ends), "-128 is -127; float8's subnormals are 0"),
    Mutant("the other format", _decoded(_other_format), "int8 is read as float8, float8 as int8"),
    Mutant("scale in bfloat16", _decoded(scale_of=lambda s: s.bfloat16().float()), "the scale is rounded"),
    Mutant("one scale", _decoded(scale_of=lambda s: s.reshape(-1)[:1].expand(s.shape) if s.numel() else s), "no rows"),
    Mutant("scale one aside", _decoded(scale_of=lambda s: s.roll(1, -1) if s.dim() else s), "a neighbour's scale"),
    Mutant("subnormals are 0", _decoded(scale_of=lambda s: torch.where(s < 2.0**-126, 0.0, s)), "small scales are 0"),
    Mutant("rounded twice", _decoded(after=lambda y: y.half().float()), "the numbers go through float16"),
    Mutant("NaN swallowed", _decoded(after=lambda y: y.nan_to_num(0.0)), "NaN becomes 0"),
    Mutant("stale end", _decoded(after=_stale), "the last number is never written"),
    Mutant("one aside", _decoded(after=lambda y: y.roll(1, -1)), "numbers are written one aside"),
    Mutant("zeros", _decoded(after=torch.zeros_like), "nothing is written"),
)
