"""Known-wrong versions of dequantize. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.contract.packed_formats import dequantize_blocks
from kernelworks.ops.quantization.dequantize.contract import DTYPES
from kernelworks.templates.packed_blocks import WRONG_DECODERS

__all__ = ["MUTANTS"]


def _decoded(wrong: Callable[[Tensor, str], Tensor]) -> Callable[..., Tensor]:
    return lambda packed, format, dtype: wrong(packed, format).to(DTYPES[dtype])


def _after(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda packed, format, dtype: change(dequantize_blocks(packed, format)).to(DTYPES[dtype])


def _through_half(x: Tensor) -> Tensor:
    return x.half().bfloat16().float()


def _stale(x: Tensor) -> Any:
    x = x.clone()
    x[..., -1:] = 0.0
    return x


MUTANTS = (
    *(Mutant(name, _decoded(wrong), why) for name, (wrong, why) in WRONG_DECODERS.items()),
    Mutant("rounded twice", _after(_through_half), "the numbers are rounded to 16 bits on the way"),
    Mutant("NaN swallowed", _after(lambda x: x.nan_to_num(0.0)), "NaN becomes 0"),
    Mutant("stale end", _after(_stale), "the last number is never written"),
    Mutant("one aside", _after(lambda x: x.roll(1, -1)), "numbers are written one aside"),
    Mutant("zeros", _after(torch.zeros_like), "nothing is written"),
)
