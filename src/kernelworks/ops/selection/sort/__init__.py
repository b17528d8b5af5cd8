"""The elements along a dimension in order, and their indices."""

from __future__ import annotations

from typing import Any, overload

from torch import Tensor

from kernelworks.dispatch.signature import ABSENT, Array, two_names
from kernelworks.ops.selection.sort.contract import CONTRACT, TEMPLATE
from kernelworks.ops.selection.sort.mutants import MUTANTS

__all__ = ["OP", "sort"]


@overload
def sort(
    x: Array, dim: int = -1, descending: bool = False, *, stable: bool = False, out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def sort(
    input: Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None,
    out: tuple[Array, Array] | None = None, kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@two_names
def sort(
    x: Any = ABSENT, dim: Any = -1, descending: Any = False, *rest: Any, stable: Any = False, out: Any = None,
    kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The elements along one dimension in order, and where they stood.

    ``values`` are the elements of each line, rising, or with ``descending=True`` falling, ``indices`` their places in
    it. A NaN is above all numbers.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: the dimension, also counted from the end.
        descending: whether the largest come first.
        stable: whether equal elements have to stay in their order; kernels of ours leave them there anyway.
        out: where to write: a contiguous tensor of x's dtype and a contiguous int64 tensor, like the results.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``(values, indices)``, of x's shape, as ``torch.return_types.sort``.

    Error bound: none, values are the elements themselves.
    Cost: a comparison an element; reads x once and writes the results once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.sort.
    """
    if torchs or rest:
        return TORCH_SIGNATURE((x, dim, descending, *rest), torchs, {"stable": stable}, out, kernel)
    return OP.call(x, dim, descending, stable, out, kernel)


def _ours(
    input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Any, ...] | str:  # fmt: skip
    return input, dim, descending, False if stable is None else stable


OP = TEMPLATE.op(CONTRACT, mutants=MUTANTS)
TORCH_SIGNATURE = TEMPLATE.torch_signature(OP, _ours)
