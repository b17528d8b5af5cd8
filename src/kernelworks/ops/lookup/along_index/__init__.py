"""Elements along an index: picked, and added."""

from __future__ import annotations

from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array
from kernelworks.ops.lookup.along_index.contract import TABLE

__all__ = ["GATHER", "INDEX_ADD", "INDEX_SELECT", "SCATTER_ADD", "gather", "index_add", "index_select", "scatter_add"]


@overload
def gather(x: Array, dim: int, index: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def gather(
    *, input: Array, dim: int, index: Array, sparse_grad: bool = False, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
def gather(
    x: Any = ABSENT,
    dim: Any = ABSENT,
    index: Any = ABSENT,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """Elements picked along a dimension, one for each index: ``output[..., i, ...] = x[..., index[..., i, ...], ...]``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        dim: the dimension, also counted from the end.
        index: int64 or int32, as many dimensions as x, each in [0, N) with N x's size along dim; in all other
            dimensions no longer than x.
        out: where to write: a contiguous tensor of index's shape and x's dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` of index's shape, bit for bit elements of x.

    Error bound: none, elements are copied. Gradient of an element that n indices name: ``u |sum| + n 2^-24 sum
    |grad|``, added in the order of the index.
    Cost: no arithmetic; reads the index and what it names once and writes output once.
    Raises: IndexError for an index outside [0, N), before anything is written; on a GPU, where nothing waits for the
    answer, it picks NaN and the next call raises. TypeError, ValueError naming the argument; RuntimeError where
    ``kernel`` cannot run.
    Source: torch.gather.
    """
    if torchs:
        return GATHER.torch_signature((x, dim, index), torchs, {}, out, kernel)
    return GATHER.call(x, dim, index, out, kernel)


@overload
def index_select(x: Array, dim: int, index: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def index_select(
    *, input: Array, dim: int, index: Array, out: Array | None = None, kernel: str | None = None
) -> Array: ...
def index_select(
    x: Any = ABSENT,
    dim: Any = ABSENT,
    index: Any = ABSENT,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """Rows picked along a dimension: ``output[..., i, ...] = x[..., index[i], ...]``.

    Args:
        x: any shape and strides but of no dimension, float32, bfloat16 or float16.
        dim: the dimension, also counted from the end.
        index: [M], int64 or int32, each in [0, N) with N x's size along dim.
        out: where to write: a contiguous tensor like the result.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` of x's shape with M along dim, bit for bit rows of x.

    Error bound: none, rows are copied. Gradient of a row that n indices name: ``u |sum| + n 2^-24 sum |grad|``, added
    in the order of the index.
    Cost: no arithmetic; reads the index and what it names once and writes output once.
    Raises: IndexError for an index outside [0, N), before anything is written; on a GPU, where nothing waits for the
    answer, it picks NaN and the next call raises. TypeError, ValueError naming the argument; RuntimeError where
    ``kernel`` cannot run.
    Source: torch.index_select.
    """
    if torchs:
        return INDEX_SELECT.torch_signature((x, dim, index), torchs, {}, out, kernel)
    return INDEX_SELECT.call(x, dim, index, out, kernel)


@overload
def scatter_add(
    x: Array, dim: int, index: Array, src: Array, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def scatter_add(
    *, input: Array, dim: int, index: Array, src: Array, out: Array | None = None, kernel: str | None = None
) -> Array: ...
def scatter_add(
    x: Any = ABSENT, dim: Any = ABSENT, index: Any = ABSENT, src: Any = ABSENT, *, out: Any = None,
    kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """x, with elements added where an index says: ``output[..., index[..., i, ...], ...] += src[..., i, ...]``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        dim: the dimension, also counted from the end.
        index: int64 or int32, as many dimensions as x, each in [0, N) with N x's size along dim; in all other
            dimensions no longer than x.
        src: of index's shape and x's dtype.
        out: where to write: a contiguous tensor like x.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x. What goes to one element is added in the order of the index, in float32: the same bits every
        time.

    Error bound: ``u |output| + n 2^-24 (|x| + sum |src|)`` for an element that n others are added to, nothing for the
    rest.
    Cost: an addition for each element of src; reads x, index and src once and writes output once.
    Raises: IndexError for an index outside [0, N), before anything is written; on a GPU, where nothing waits for the
    answer, its element is left out and the next call raises. TypeError, ValueError naming the argument; RuntimeError
    where ``kernel`` cannot run.
    Source: torch.scatter_add.
    """
    if torchs:
        return SCATTER_ADD.torch_signature((x, dim, index, src), torchs, {}, out, kernel)
    return SCATTER_ADD.call(x, dim, index, src, out, kernel)


@overload
def index_add(
    x: Array, dim: int, index: Array, source: Array, *, alpha: float = 1.0, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def index_add(
    *, input: Array, dim: int, index: Array, source: Array, alpha: float = 1.0, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
def index_add(
    x: Any = ABSENT, dim: Any = ABSENT, index: Any = ABSENT, source: Any = ABSENT, *, alpha: Any = 1.0, out: Any = None,
    kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """x, with rows added where an index says: ``output[..., index[i], ...] += alpha source[..., i, ...]``.

    Args:
        x: any shape and strides but of no dimension, float32, bfloat16 or float16.
        dim: the dimension, also counted from the end.
        index: [M], int64 or int32, each in [0, N) with N x's size along dim.
        source: of x's shape with M along dim, of x's dtype.
        alpha: what the rows are multiplied by.
        out: where to write: a contiguous tensor like x.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x. What goes to one row is added in the order of the index, in float32: the same bits every
        time.

    Error bound: ``u |output| + (n + 2) 2^-24 (|x| + sum |alpha source|)`` for a row that n others are added to (n
    without alpha), nothing for the rest.
    Cost: an addition for each element of source; reads x, index and source once and writes output once.
    Raises: IndexError for an index outside [0, N), before anything is written; on a GPU, where nothing waits for the
    answer, its row is left out and the next call raises. TypeError, ValueError naming the argument; RuntimeError where
    ``kernel`` cannot run.
    Source: torch.index_add.
    """
    if torchs:
        return INDEX_ADD.torch_signature((x, dim, index, source), torchs, {"alpha": alpha}, out, kernel)
    return INDEX_ADD.call(x, dim, index, source, alpha, out, kernel)


GATHER = TABLE.op("gather")
INDEX_SELECT = TABLE.op("index_select")
SCATTER_ADD = TABLE.op("scatter_add")
INDEX_ADD = TABLE.op("index_add")
