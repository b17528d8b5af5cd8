"""Linear layers whose weight lies in a packed format."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.contract import describe
from kernelworks.contract.packed_formats import FORMATS, dequantize_blocks, quantize_blocks
from kernelworks.nn.group_weights import bytes_of_awq, bytes_of_gptq
from kernelworks.ops.quantization.quantized_linear import quantized_linear

__all__ = ["QuantizedLinear"]


class QuantizedLinear(nn.Module):
    """``torch.nn.Linear`` with a weight in a packed format, by ``kernelworks.quantized_linear``.

    The bytes are the parameter ``weight``: they have no gradient, optimizers leave them alone, ``state_dict`` holds
    them, and nothing is derived from them that could outlive a change. Whoever writes other bytes gets another map with
    the next call. Gradients flow into the input and the bias.

    Args:
        in_features, out_features, bias: as for ``torch.nn.Linear``; in_features fills whole blocks of the format.
        format: one of ``quantized_linear``'s.
        activations: ``"float32"``, or ``"int8"`` to allow kernels that round the input to 8 bits by blocks.
        device, dtype: of the bias, and where the bytes lie. A new module's weight is zeros: ``from_linear`` or
            ``load_state_dict`` gives it another.
    """

    bias: nn.Parameter | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, format: str = "Q8_0",
        activations: str = "float32", device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if format not in FORMATS:
            raise ValueError(f"format must be {' or '.join(map(repr, FORMATS))}, got {format!r}")
        if activations not in ("float32", "int8"):
            raise ValueError(f"activations must be 'float32' or 'int8', got {activations!r}")
        found = FORMATS[format]
        if in_features % found.block:
            raise ValueError(
                f"in_features must be a multiple of {found.block}, the block of {format}; got {in_features}"
            )
        self.in_features, self.out_features = in_features, out_features
        self.format, self.activations = format, activations
        shape = (out_features, found.packed_size(in_features))
        self.weight = nn.Parameter(torch.zeros(shape, dtype=torch.uint8, device=device), requires_grad=False)
        made = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", made)

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, *, format: str = "Q8_0", activations: str = "float32"
    ) -> QuantizedLinear:  # fmt: skip
        """A layer with the weight of another, rounded to the format, and a copy of its bias."""
        weight = linear.weight.detach()
        bias: nn.Parameter | None = linear.bias
        made = cls(
            linear.in_features, linear.out_features, bias is not None, format=format, activations=activations,
            device=weight.device, dtype=weight.dtype,
        )  # fmt: skip
        made.weight.data.copy_(quantize_blocks(weight, format))
        if bias is not None and made.bias is not None:
            made.bias.data.copy_(bias.detach())
            made.bias.requires_grad_(bias.requires_grad)
        return made.train(linear.training)

    @classmethod
    def from_packed(
        cls, weight: Tensor, format: str, bias: Tensor | None = None, *, activations: str = "float32"
    ) -> QuantizedLinear:  # fmt: skip
        """A layer of bytes that are there, [out_features, bytes of in_features], which it shares, as it does ``bias``.

        Raises: TypeError, ValueError if they are no contiguous matrix of uint8 with whole blocks of the format.
        """
        if format not in FORMATS:
            raise ValueError(f"format must be {' or '.join(map(repr, FORMATS))}, got {format!r}")
        found = FORMATS[format]
        if weight.dtype != torch.uint8:
            raise TypeError(f"weight must have dtype uint8, got {describe(weight)}")
        if weight.dim() != 2 or weight.shape[1] % found.nbytes or not weight.is_contiguous():
            raise ValueError(
                f"weight must be contiguous, [out_features, bytes], with whole blocks of {format}, {found.nbytes} "
                f"bytes each; got {describe(weight)}"
            )
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(f"bias must have shape [{weight.shape[0]}], got {describe(bias)}")
        size = found.unpacked_size(weight.shape[1])
        made = cls(size, 0, bias is not None, format=format, activations=activations)
        made.out_features = weight.shape[0]
        made.weight = nn.Parameter(weight.detach(), requires_grad=False)
        if bias is not None:
            made.bias = nn.Parameter(bias.detach())
        return made

    @classmethod
    def from_awq(
        cls, qweight: Tensor, qzeros: Tensor, scales: Tensor, bias: Tensor | None = None, *,
        activations: str = "float32",
    ) -> QuantizedLinear:  # fmt: skip
        """A layer of the tensors of an AWQ checkpoint with groups of 128, in ``UINT4_128``: the same numbers.

        ``qweight`` int32 [in, out / 8], ``qzeros`` int32 [in / 128, out / 8], ``scales`` float16 [in / 128, out].
        Raises: ValueError if they are not.
        """
        return cls.from_packed(bytes_of_awq(qweight, qzeros, scales), "UINT4_128", bias, activations=activations)

    @classmethod
    def from_gptq(
        cls, qweight: Tensor, qzeros: Tensor, scales: Tensor, bias: Tensor | None = None, *,
        g_idx: Tensor | None = None, zeros_less_one: bool = True, activations: str = "float32",
    ) -> QuantizedLinear:  # fmt: skip
        """A layer of the tensors of a GPTQ checkpoint of 4 bits with groups of 128, in ``UINT4_128``: the same numbers.

        ``qweight`` int32 [in / 8, out], ``qzeros`` int32 [in / 128, out / 8], ``scales`` float16 [in / 128, out].
        ``zeros_less_one``: zero points are stored less 1, as in the format ``gptq``; not so in ``gptq_v2``. Raises:
        ValueError if they are not, or if ``g_idx`` puts columns in another order.
        """
        packed = bytes_of_gptq(qweight, qzeros, scales, g_idx, zeros_less_one=zeros_less_one)
        return cls.from_packed(packed, "UINT4_128", bias, activations=activations)

    def dequantized_weight(self) -> Tensor:
        """The weight that the bytes stand for, [out_features, in_features] in float32."""
        return dequantize_blocks(self.weight.detach(), self.format)

    def forward(self, input: Tensor) -> Tensor:
        bias: Tensor | None = self.bias
        if bias is not None and bias.dtype != input.dtype:  # under autocast the input's dtype is another
            bias = bias.to(input.dtype)
        output: Tensor = quantized_linear(
            input, self.weight, bias, format=self.format, activations=self.activations
        )  # fmt: skip
        return output

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"format={self.format!r}, activations={self.activations!r}"
        )
