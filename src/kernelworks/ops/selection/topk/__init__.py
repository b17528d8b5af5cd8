"""The largest or smallest elements along a dimension, and their indices."""

from __future__ import annotations

from typing import Any, overload

from torch import Tensor

from kernelworks.dispatch.signature import ABSENT, Array, two_names
from kernelworks.ops.selection.topk.contract import CONTRACT, TEMPLATE

__all__ = ["OP", "topk"]


@overload
def topk(
    x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *,
    out: tuple[Array, Array] | None = None, kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def topk(
    input: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *,
    out: tuple[Array, Array] | None = None, kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@two_names
def topk(
    x: Any = ABSENT, k: Any = ABSENT, dim: Any = -1, largest: Any = True, sorted: Any = True, *rest: Any,
    out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The k largest elements along one dimension, and where they stood.

    ``values`` are the k largest elements of each line, or with ``largest=False`` the smallest, ``indices`` their places
    in it. A NaN is above all numbers.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        k: how many, from 0 to the size of the dimension.
        dim: the dimension, also counted from the end.
        largest: whether the largest come, falling; else the smallest, rising.
        sorted: whether they have to come in this order.
        out: where to write: a contiguous tensor of x's dtype and a contiguous int64 tensor, like the results.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``(values, indices)``, as ``torch.return_types.topk``: of x's shape, but for k elements along ``dim``. Of equal
        elements any may be named, none twice; as ``torch.topk`` has it. Kernels of ours name the first.

    Error bound: none, values are the elements themselves.
    Cost: a comparison an element; reads x once and writes the results once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.topk.
    """
    if torchs or rest:
        return TORCH_SIGNATURE((x, k, dim, largest, sorted, *rest), torchs, {}, out, kernel)
    return OP.call(x, k, dim, largest, sorted, out, kernel)


def _ours(
    input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Any, ...] | str:  # fmt: skip
    return input, k, dim, largest, sorted


OP = TEMPLATE.op(CONTRACT)
TORCH_SIGNATURE = TEMPLATE.torch_signature(OP, _ours)
