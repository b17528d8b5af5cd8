"""Known-wrong versions of quantized_linear. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import INT8_BY_BLOCK, Mutant
from kernelworks.contract.packed_formats import dequantize_blocks, quantize_blocks
from kernelworks.templates.packed_blocks import WRONG_DECODERS

__all__ = ["MUTANTS"]

Decoder = Callable[[Tensor, str], Tensor]


def _product(
    decoded: Decoder = dequantize_blocks, *, before: Callable[[Tensor], Tensor] = lambda x: x,
    after: Callable[[Tensor], Tensor] = lambda y: y, times: float = 1.0,
) -> Callable[..., Tensor]:  # fmt: skip
    def run(x: Tensor, weight: Tensor, bias: Tensor | None, format: str, activations: str) -> Tensor:
        y = before(x).double() @ decoded(weight, format).double().T
        return after(y if bias is None else y + bias.double() * times).to(x.dtype)

    return run


def _to_8_bits(x: Tensor) -> Tensor:
    """Through the blocks of Q8_0, which only kernels may do whose caller allows it."""
    return dequantize_blocks(quantize_blocks(x, "Q8_0"), "Q8_0") if x.numel() else x


def _bfloat16_weights(weight: Tensor, format: str) -> Tensor:
    return dequantize_blocks(weight, format).bfloat16()


def _shifted(y: Tensor) -> Tensor:
    return y.roll(1, 0) if y.dim() > 1 else y


def _stale(y: Tensor) -> Tensor:
    y = y.clone()
    y[..., -1:] = 0.0
    return y


# What a call that allows activations of 8 bits allows too.
NARROW_MUTANTS = (
    ("x in 8 bits", _product(before=_to_8_bits), "x is rounded to 8 bits where nobody allowed it"),
    ("x in bfloat16", _product(before=torch.Tensor.bfloat16), "x is rounded to bfloat16 first"),
    ("weight in bfloat16", _product(_bfloat16_weights), "decoded weights are rounded to bfloat16"),
)
MUTANTS = (
    *(Mutant(name, _product(wrong), why) for name, (wrong, why) in WRONG_DECODERS.items()),
    *(Mutant(name, run, why, right_within=INT8_BY_BLOCK) for name, run, why in NARROW_MUTANTS),
    Mutant("missing bias", _product(times=0.0), "the bias is not added"),
    Mutant("bias twice", _product(times=2.0), "the bias is added by two threads"),
    Mutant("stale column", _product(after=_stale), "the last column is never written"),
    Mutant("shifted rows", _product(after=_shifted), "rows are written one too low"),
    Mutant("NaN swallowed", _product(after=lambda y: y.nan_to_num(0.0)), "NaN becomes 0"),
    Mutant("zeros", _product(after=torch.zeros_like), "nothing is written"),
)
