"""A sparse matrix in compressed rows (CSR) times a dense matrix or a vector."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.tensors import MEMORY, tensor_kind
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import ABSENT, Array
from kernelworks.ops.linalg.csr_matmul.contract import ARGUMENTS, CONTRACT, reference, row_of_each
from kernelworks.ops.linalg.csr_matmul.mutants import MUTANTS

__all__ = ["OP", "as_matrix", "check_entries", "csr_matmul", "empty_gradients"]

NANOSECONDS = 0.2  # about what a product takes one thread


@overload
def csr_matmul(
    crow_indices: Array, col_indices: Array, values: Array, dense: Array, *, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def csr_matmul(
    crow_indices: Tensor, col_indices: Tensor, *, out: Tensor | None = None, kernel: str | None = None
) -> Tensor: ...
def csr_matmul(
    crow_indices: Any, col_indices: Any, values: Any = ABSENT, dense: Any = ABSENT, *, out: Any = None,
    kernel: str | None = None,
) -> Any:  # fmt: skip
    """A sparse matrix in compressed rows times a dense matrix or a vector.

    ``output[r] = sum_i values[i] dense[col_indices[i]]`` over the entries i from ``crow_indices[r]`` to before
    ``crow_indices[r + 1]``. ``csr_matmul(A, dense)`` takes a ``torch.sparse_csr`` tensor A in the place of the first
    three; its gradient is a ``torch.sparse_csr`` tensor of A's entries.

    Args:
        crow_indices: [M + 1], int64 or int32: where each row begins, and where the last ends; they rise from 0 to N.
        col_indices: [N] of crow_indices' dtype, each in [0, K), in any order. Entries of one place add up.
        values: [N], float32, bfloat16 or float16.
        dense: [K, D], or a vector [K], of values' dtype, any strides.
        out: where to write: a contiguous tensor like the result.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [M, D], or [M] of a vector, of values' dtype; zeros for a row without entries.

    Error bound: ``u |output| + n 2^-24 sum |terms|`` for a row of n entries, u the dtype's unit roundoff. A value's
    gradient the same with D, a row's of dense with the entries of its column. Sums are kept in float32, in an order
    that follows from the indices alone: the same bits for any number of threads.
    Cost: 2 N D flop; reads the entries, and the rows of dense that they name once, and writes output once.
    Raises: IndexError for a column outside [0, K) and for rows that do not rise from 0 to N, before anything is
    written; on a GPU, where no call waits for that answer, by the next call. TypeError, ValueError naming the argument;
    RuntimeError where ``kernel`` cannot run.
    Source: Tinney and Walker 1967, Proc. IEEE 55(11); torch.sparse.mm of torch.sparse_csr_tensor.
    """
    if isinstance(crow_indices, Tensor) and crow_indices.layout is torch.sparse_csr:
        return _of_sparse(crow_indices, col_indices, values, dense, out, kernel)
    return OP.call(crow_indices, col_indices, values, dense, out, kernel)


def _of_sparse(matrix: Tensor, dense: Any, third: Any, fourth: Any, out: Any, kernel: str | None) -> Any:
    if third is not ABSENT or fourth is not ABSENT:
        raise TypeError("csr_matmul takes a torch.sparse_csr tensor and dense alone; got more arguments")
    if matrix.dim() != 2 or matrix.dense_dim():
        raise ValueError(f"a torch.sparse_csr tensor must have shape [M, K]; got {list(matrix.shape)}")
    columns = matrix.shape[1]
    if not isinstance(dense, Tensor) or dense.dim() not in (1, 2) or dense.shape[0] != columns:
        got = list(dense.shape) if isinstance(dense, Tensor) else type(dense).__name__
        raise ValueError(f"dense must be a tensor of shape [{columns}, D] or [{columns}], as the matrix is; got {got}")
    return OP.call(matrix.crow_indices(), matrix.col_indices(), matrix.values(), dense, out, kernel)


# ---------------------------------------------------------------- what holds on every device


def as_matrix(x: Tensor) -> Tensor:
    """[rows, D] with rows that are lines of memory; a vector has one column."""
    x = x.unsqueeze(1) if x.dim() == 1 else x
    return x if x.shape[1] <= 1 or x.stride(1) == 1 else x.contiguous()


def check_entries(crow: Tensor, columns: Tensor, K: int) -> None:
    """Raises IndexError unless rows rise from 0 to all entries, and all columns are rows of dense."""
    if crow.is_meta:
        return
    n = columns.numel()
    wrong = (crow[0] != 0) | (crow[-1] != n) | (crow[1:] < crow[:-1]).any()
    if n:
        low, high = columns.aminmax()
        if not bool(wrong | (low < 0) | (high >= K)):
            return
    elif not bool(wrong):
        return
    if bool(wrong):
        raise IndexError(f"crow_indices must rise from 0 to {n}, the entries; got {crow.tolist()[:8]}")
    position = int(((columns < 0) | (columns >= K)).nonzero()[0])
    raise IndexError(
        f"col_indices must be in [0, {K}), dense's rows; got {int(columns[position])} at position {position}"
    )


def empty_gradients(values: Tensor, dense: Tensor, needs: list[bool]) -> tuple[Tensor, Tensor]:
    return values.new_empty(values.shape if needs[0] else 0), dense.new_empty(dense.shape if needs[1] else 0)


# ---------------------------------------------------------------- launches


def _product(lib: Any, out: Tensor, crow: Tensor, columns: Tensor, values: Tensor, dense: Tensor) -> None:
    work = NANOSECONDS * (columns.numel() + crow.numel()) * out.shape[1]
    run, threads = choose_threads(lib.csr_matmul, work)
    run(out, crow, columns, values, dense, threads)


def _forward(lib: Any, crow: Tensor, columns: Tensor, values: Tensor, dense: Tensor, out: Any = None) -> Tensor:
    check_entries(crow, columns, dense.shape[0])
    made = dense.new_empty((crow.numel() - 1, *dense.shape[1:])) if out is None else out
    _product(lib, as_matrix(made), crow.contiguous(), columns.contiguous(), values.contiguous(), as_matrix(dense))
    return made


def _backward(
    lib: Any, grad: Tensor, crow: Tensor, columns: Tensor, values: Tensor, dense: Tensor, needs: list[bool],
    out: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    to_values, to_dense = empty_gradients(values, dense, needs) if out is None else out
    flow, crow, columns = as_matrix(grad), crow.contiguous(), columns.contiguous()
    flow = flow.contiguous()
    N, K = columns.numel(), dense.shape[0]
    if needs[0]:
        run, threads = choose_threads(lib.csr_matmul_grad_values, NANOSECONDS * (N + crow.numel()) * flow.shape[1])
        run(to_values, flow, crow, columns, as_matrix(dense), threads)
    if needs[1]:
        starts, rows = crow.new_empty(K + 1, dtype=torch.int64), crow.new_empty(N, dtype=torch.int64)
        moved = values.new_empty(N)
        lib.csr_turn(starts, rows, moved, crow, columns, values.contiguous())
        _product(lib, as_matrix(to_dense), starts, rows, moved, flow)
    return to_values, to_dense


# ---------------------------------------------------------------- torch's own functions


def _composite(crow_indices: Tensor, col_indices: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    return reference(crow_indices, col_indices, values, dense)[0]


def _native(crow_indices: Tensor, col_indices: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """The composite, and the look at entries that torch's indexing does not take: it counts negative columns from the
    end, and rows that do not rise to the end leave entries out."""
    if dense.device.type == "cpu" and tensor_kind(crow_indices) == tensor_kind(col_indices) == MEMORY:
        check_entries(crow_indices, col_indices, dense.shape[0])
    return _composite(crow_indices, col_indices, values, dense)


def _torch(crow: Tensor, columns: Tensor, values: Tensor, dense: Tensor, out: Any = None) -> Any:
    """In float32, where torch has no product of 16 bits."""
    check_entries(crow, columns, dense.shape[0])
    if not columns.numel() or not dense.numel():
        return into(dense.new_zeros(crow.numel() - 1, *dense.shape[1:]), out)
    size = (crow.numel() - 1, dense.shape[0])
    matrix = torch.sparse_csr_tensor(crow, columns, values.float(), size, check_invariants=False)
    return into((matrix @ dense.float()).to(dense.dtype), out)


def _torch_backward(
    grad: Tensor, crow: Tensor, columns: Tensor, values: Tensor, dense: Tensor, needs: list[bool], out: Any = None,
    compute: torch.dtype = torch.float32,
) -> Any:  # fmt: skip
    """Of functions that are differentiable again."""
    named, flow = columns.long(), grad.to(compute)[row_of_each(crow, values.numel())]
    to_values, to_dense = values.new_empty(0), dense.new_empty(0)
    if needs[0]:
        products = flow * dense.to(compute)[named]
        to_values = (products if dense.dim() == 1 else products.sum(1)).to(values.dtype)
    if needs[1]:
        factor = values.to(compute)
        terms = flow * (factor if dense.dim() == 1 else factor.unsqueeze(1))
        to_dense = flow.new_zeros(dense.shape).index_add(0, named, terms).to(dense.dtype)
    return into((to_values, to_dense), out)


def _reference(*args: Any, out: Any = None) -> Any:
    check_entries(args[0], args[1], args[3].shape[0])
    return in_float64(reference, CONTRACT.results_in_order)(*args, out=out)


PACKAGE = Path(__file__).parent
OP = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE),
        *cpp_kernels(PACKAGE, forward=_forward, backward=_backward),
        python_kernel("torch", _torch, _torch_backward),
        python_kernel("reference", _reference, functools.partial(_torch_backward, compute=torch.float64)),
    ],
    op_package=__file__,
    forward=Pass(
        f"csr_matmul({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
        lambda crow, columns, values, dense: dense.new_empty((crow.shape[0] - 1, *dense.shape[1:])),
    ),
    backward=Pass(
        f"csr_matmul_backward(Tensor grad_output, {schema_of(ARGUMENTS)}, bool[] needs, "
        "str? op_kernel=None) -> (Tensor, Tensor)",
        lambda grad, crow, columns, values, dense, needs: empty_gradients(values, dense, needs),
        returns=("values", "dense"),
    ),
    composite=_composite,
    native=_native,
    mutants=MUTANTS,
)  # fmt: skip
