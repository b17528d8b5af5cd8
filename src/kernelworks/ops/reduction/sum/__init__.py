"""The sum along a dimension."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

import torch

from kernelworks.build.kernels import triton_kernel
from kernelworks.contract.reduced_dims import declines_rows
from kernelworks.dispatch.signature import ABSENT, Array, two_names
from kernelworks.ops.reduction.sum.contract import CONTRACT, TEMPLATE

__all__ = ["OP", "sum"]


@overload
def sum(
    x: Array, dim: int | None = None, *, keepdim: bool = False, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def sum(
    input: Array, dim: int | tuple[int, ...] | list[int] | None = None, keepdim: bool = False, *,
    dtype: torch.dtype | None = None, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@two_names
def sum(
    x: Any = ABSENT, dim: Any = None, *rest: Any, keepdim: Any = False, out: Any = None, kernel: str | None = None,
    **torchs: Any,
) -> Any:  # fmt: skip
    """The sum of the elements along one dimension, or of all.

    ``output = sum over dim of x``, in float32 and float64 whatever the dtype, rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: the dimension, also counted from the end; None for all elements.
        keepdim: whether the output keeps the dimension, with one element.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's dtype; 0 where there is nothing to add.

    Error bound: |output - exact| <= u |output| + 2^-24 (min(N, 80) + 1) sum |x| + 2^-149 with N elements a line, u the
    dtype's unit roundoff, while sum |x| is finite in float32. The same bits for any number of threads. The gradient is
    exact: a view of what flows in.
    Cost: 1 flop an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Higham 1993, SIAM Journal on Scientific Computing 14(4).
    """
    if torchs or rest or isinstance(dim, (tuple, list)):
        return TORCH_SIGNATURE((x, dim, *rest), torchs, {"keepdim": keepdim}, out, kernel)
    return OP.call(x, dim, keepdim, out, kernel)


COLUMNS = triton_kernel(
    Path(__file__).parent, guard=declines_rows, passes=("forward",), name="triton_columns", module="triton_columns",
    launches=2,
)  # fmt: skip
OP = TEMPLATE.op(CONTRACT, ahead=[COLUMNS])
TORCH_SIGNATURE = TEMPLATE.torch_signature(OP)
