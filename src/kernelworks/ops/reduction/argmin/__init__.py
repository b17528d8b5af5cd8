"""The index of the smallest element along a dimension."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

from kernelworks.build.kernels import triton_kernel
from kernelworks.contract.reduced_dims import declines_rows
from kernelworks.dispatch.signature import ABSENT, Array, two_names
from kernelworks.ops.reduction.argmin.contract import CONTRACT, TEMPLATE

__all__ = ["OP", "argmin"]


@overload
def argmin(
    x: Array, dim: int | None = None, *, keepdim: bool = False, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def argmin(
    input: Array, dim: int | None = None, keepdim: bool = False, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@two_names
def argmin(
    x: Any = ABSENT, dim: Any = None, *rest: Any, keepdim: Any = False, out: Any = None, kernel: str | None = None,
    **torchs: Any,
) -> Any:  # fmt: skip
    """The index of the smallest element along one dimension, or among all.

    ``output = the smallest i with x_i = min x``. A NaN is above all numbers: where there are some, the first of them.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: the dimension, also counted from the end; None for all elements, which are then counted in order.
        keepdim: whether the output keeps the dimension, with one element.
        out: where to write: a contiguous int64 tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, int64, bit for bit torch's. Nothing to differentiate.

    Error bound: none, it is exact.
    Cost: a comparison an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument, also for a line without elements; RuntimeError where ``kernel``
    cannot run.
    Source: torch.argmin.
    """
    if torchs or rest:
        return TORCH_SIGNATURE((x, dim, *rest), torchs, {"keepdim": keepdim}, out, kernel)
    return OP.call(x, dim, keepdim, out, kernel)


COLUMNS = triton_kernel(
    Path(__file__).parent, guard=declines_rows, passes=("forward",), name="triton_columns", module="triton_columns",
    launches=2,
)  # fmt: skip
OP = TEMPLATE.op(CONTRACT, ahead=[COLUMNS])
TORCH_SIGNATURE = TEMPLATE.torch_signature(OP)
