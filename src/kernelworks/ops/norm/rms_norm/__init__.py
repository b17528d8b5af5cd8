"""Root mean square layer normalisation, with the residual addition fused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import triton_kernel
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, is_last_dimension
from kernelworks.ops.norm.rms_norm.contract import AT_ONCE, CONTRACT, TEMPLATE
from kernelworks.ops.norm.rms_norm.mutants import MUTANTS
from kernelworks.templates.norm import fits_registers, is_long

__all__ = ["OP", "rms_norm"]


@overload
def rms_norm(
    x: Array,
    weight: Array | None,
    *,
    eps: float,
    residual: None = None,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def rms_norm(
    x: Array,
    weight: Array | None,
    *,
    eps: float,
    residual: Array,
    out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]: ...
@overload
def rms_norm(
    input: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    eps: float | None = None,
    *,
    residual: None = None,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def rms_norm(
    input: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    eps: float | None = None,
    *,
    residual: Array,
    out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]: ...
def rms_norm(
    x: Any = ABSENT,
    weight: Any = ABSENT,
    /,
    *rest: Any,
    eps: Any = ABSENT,
    residual: Any = None,
    out: Any = None,
    kernel: str | None = None,
    **named: Any,
) -> Any:
    """Root mean square normalisation of the last dimension.

    ``output = s / sqrt(mean(s^2, -1) + eps) * weight`` with ``s = x + residual`` (``s = x`` without a residual).

    Args:
        x: [..., N], float32, bfloat16 or float16, any strides.
        weight: [N] of x's dtype, or None for ones.
        eps: added to the mean of squares. No default: frameworks disagree.
        residual: [..., N] like x. With it the sum is returned too, for the next residual.
        out: where to write: a contiguous tensor like x, or a pair of them where there is a residual.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., N]; with a residual ``(output, s)``.

    Error bound: |output - exact| <= u |output| + (N/64 + 12) 2^-24 |output|, u the unit roundoff of the dtype; sums are
    kept in float32 (float64 where the squares leave its range).
    Cost: 4 N flop a row; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    if named or rest:
        if eps is not ABSENT:
            named["eps"] = eps
        if residual is not None:
            named["residual"] = residual
        return TORCH_SIGNATURE.call_ambiguous((x, weight, *rest), named, out, kernel)
    return OP.call(x, weight, eps, residual, out, kernel)


PACKAGE = Path(__file__).parent
OP = TEMPLATE.op(
    CONTRACT,
    ahead=[
        triton_kernel(PACKAGE, guard=fits_registers, launches=2),
        triton_kernel(PACKAGE, guard=is_long, name="triton_split", module="triton_split", launches=3),
    ],
    mutants=MUTANTS,
    at_once=AT_ONCE,
)
OP.pattern = "norm"


def _own(x: Tensor, weight: Tensor | None, *, eps: float, residual: Tensor | None = None) -> tuple[Any, ...]:
    return x, weight, eps, residual


def _ours(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> tuple[Any, ...] | str:
    if not is_last_dimension(normalized_shape, input):
        return "normalized_shape must be the last dimension alone"
    if eps is None:  # torch takes the input's own
        if input.dtype is not torch.float32:
            return "eps must be given, but for float32"
        eps = torch.finfo(torch.float32).eps
    return input, weight, eps, None


TORCH_SIGNATURE = TorchSignature(OP, F.rms_norm, _ours, {"input": "x"}, own=_own)
