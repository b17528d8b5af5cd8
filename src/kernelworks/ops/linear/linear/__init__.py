"""The affine map of the last dimension, matrix-vector and matrix-matrix, in torch's weight layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

from kernelworks.build.kernels import cuda_kernel, triton_kernel
from kernelworks.dispatch.signature import ABSENT, Array
from kernelworks.ops.linear.linear.contract import CONTRACT, TEMPLATE
from kernelworks.ops.linear.linear.sm90 import guard as sm90_guard
from kernelworks.ops.linear.linear.sm90_middle import guard as middle_guard

__all__ = ["OP", "linear"]


@overload
def linear(
    x: Array, weight: Array, bias: Array | None = None, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def linear(
    *, input: Array, weight: Array, bias: Array | None = None, out: Array | None = None, kernel: str | None = None
) -> Array: ...
def linear(
    x: Any = ABSENT,
    weight: Any = ABSENT,
    bias: Any = None,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """Affine map of the last dimension: ``output = x @ weight.T + bias``.

    Args:
        x: [..., K], float32, bfloat16 or float16, any strides.
        weight: [N, K] of x's dtype, as torch.nn.Linear stores it. It is read where it lies, row-major or transposed;
            no copy of it is kept.
        bias: [N] of x's dtype, or None for zeros.
        out: where to write: a contiguous [..., N] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., N].

    Error bound: |output - exact| <= u |output| + n 2^-24 / (1 - n 2^-24) (|x| @ |weight|.T + |bias|), u the unit
    roundoff of the dtype and n = min(K, K/8 + 384) + 10; products are exact, sums are kept in float32.
    Cost: 2 M N K flop for M rows of x; with few rows the weight's N K elements are read once, and that is the time.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.linear; Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1.
    """
    if torchs:
        return TORCH_SIGNATURE((x, weight, bias), torchs, {}, out, kernel)
    return OP.call(x, weight, bias, out, kernel)


PACKAGE = Path(__file__).parent
MIDDLE = cuda_kernel(PACKAGE, source="sm90_middle.cu", name="sm90_middle", guard=middle_guard)
HOPPER = cuda_kernel(PACKAGE, guard=sm90_guard, passes=("forward", "backward"))
OP = TEMPLATE.op(CONTRACT, ahead=[MIDDLE, HOPPER, triton_kernel(PACKAGE)])
TORCH_SIGNATURE = TEMPLATE.torch_signature(OP)
