"""Layer normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cuda_kernel, triton_kernel, with_forward_of
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, is_last_dimension
from kernelworks.ops.norm.layer_norm import sm90_backward
from kernelworks.ops.norm.layer_norm.contract import AT_ONCE, CONTRACT, TEMPLATE
from kernelworks.ops.norm.layer_norm.mutants import MUTANTS
from kernelworks.templates.norm import fits_registers, is_long

__all__ = ["OP", "layer_norm"]


@overload
def layer_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    eps: float,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def layer_norm(
    input: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
def layer_norm(
    x: Any = ABSENT,
    weight: Any = ABSENT,
    bias: Any = ABSENT,
    /,
    *rest: Any,
    eps: Any = ABSENT,
    out: Any = None,
    kernel: str | None = None,
    **named: Any,
) -> Any:
    """Layer normalisation of the last dimension.

    ``output = z * weight + bias`` with ``z = (x - mean(x, -1)) / sqrt(mean((x - mean)^2, -1) + eps)``.

    Args:
        x: [..., N], float32, bfloat16 or float16, any strides.
        weight: [N] of x's dtype, or None for ones.
        bias: [N] of x's dtype, or None for zeros.
        eps: added to the variance (the biased one, divided by N). No default: frameworks disagree.
        out: where to write: a contiguous tensor like x.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., N].

    Error bound: |output - exact| <= u |output| + 2^-24 (|output| + (min(N, 4096)/32 + 12) (|z| + 1) |weight|), u the
    unit roundoff of the dtype; a large mean does not enter it.
    Cost: 8 N flop a row; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
    """
    if named or rest:
        if eps is not ABSENT:
            named["eps"] = eps
        return TORCH_SIGNATURE.call_ambiguous((x, weight, bias, *rest), named, out, kernel)
    return OP.call(x, weight, bias, eps, out, kernel)


PACKAGE = Path(__file__).parent
TRITON = triton_kernel(PACKAGE, guard=fits_registers, launches=2)
HOPPER = cuda_kernel(
    PACKAGE, source="sm90_backward.cu", name="sm90_backward", guard=sm90_backward.guard, passes=("backward",)
)
SPLIT_KERNEL = triton_kernel(PACKAGE, guard=is_long, name="triton_split", module="triton_split", launches=3)

OP = TEMPLATE.op(
    CONTRACT, ahead=[with_forward_of(TRITON, HOPPER), TRITON, SPLIT_KERNEL], mutants=MUTANTS, at_once=AT_ONCE
)
OP.pattern = "norm"


def _own(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> tuple[Any, ...]:
    return x, weight, bias, eps


def _ours(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Any, ...] | str:  # fmt: skip
    if not is_last_dimension(normalized_shape, input):
        return "normalized_shape must be the last dimension alone"
    return input, weight, bias, eps


TORCH_SIGNATURE = TorchSignature(OP, F.layer_norm, _ours, {"input": "x"}, own=_own)
