"""Eigenvalues and eigenvectors of many small symmetric matrices."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import Array
from kernelworks.ops.linalg.eigh.contract import CONTRACT, EIGH, FAILURE, decline, matrix_gradient
from kernelworks.ops.linalg.eigh.mutants import MUTANTS

__all__ = ["OP", "as_batch", "eigh", "raise_if_failed"]

NANOSECONDS = 1.5  # about what an element takes for each row of its matrix


def eigh(
    A: Array, *, out: tuple[Array, Array] | None = None, kernel: str | None = None
) -> tuple[Array, Array]:  # fmt: skip
    """The eigenvalues and eigenvectors of each symmetric matrix of a batch: ``A V = V diag(w)``.

    Args:
        A: [..., N, N], float32, any strides. Its lower triangle is read: of the upper one give ``A.mT``.
        out: where to write: contiguous tensors like the results.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``(eigenvalues, eigenvectors)`` as ``torch.return_types.linalg_eigh``: w [..., N], rising, and V [..., N, N],
        whose columns are vectors of length 1 at right angles. Their signs, and which vectors of the space of equal
        eigenvalues they are, is left open; the gradient, torch's, is that of the vectors that were returned.

    Error bound: with r = (4 + log2 M) (M - 1) stages of rotations, M the next power of two of N (r = 1 of N = 2) and
        u = 2^-24: ``|w - exact| <= (22.2 r + 1) u |A|``, ``|V^T V - 1| <= 16.2 r u sqrt(N)``, ``|A V - V diag(w)|``
        within the sum of the two, the latter times |A|; all in the Frobenius norm.
    Cost: 9 N^3 flop a matrix, what a reduction to three diagonals takes; reads half of A and writes w and V once.
    Raises: torch.linalg.LinAlgError for a matrix that holds NaN or infinity (torch's own function, where that notices
        it); on a GPU a call waits for that answer, as torch's does, unless it is captured in a CUDA graph. TypeError,
        ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Golub and Van Loan, Matrix Computations, 8.5; torch.linalg.eigh.
    """
    output: tuple[Array, Array] = OP.call(A, out, kernel)
    return output


def as_batch(x: Tensor) -> Tensor:
    """[batch, N, N], contiguous."""
    return x.contiguous().view(-1, *x.shape[-2:])


def raise_if_failed(failed: Tensor) -> None:
    """Raises as torch does of the first matrix that has no answer. Waits for a GPU, but for a call that is captured:
    its replays cannot raise."""
    if failed.is_meta or (failed.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    if bool(failed.any()):
        first = int(failed.nonzero()[0])
        raise FAILURE(f"eigh: (Batch element {first}): it did not converge: the matrix holds NaN or infinity.")


def _forward(lib: Any, A: Tensor, out: Any = None) -> tuple[Tensor, Tensor]:
    w, V = _fake(A) if out is None else out
    if A.numel():
        failed = torch.empty(A.shape[:-2].numel(), dtype=torch.int32)
        kernel, threads = choose_threads(lib.eigh, NANOSECONDS * A.numel() * A.shape[-1])
        kernel(w.view(-1, A.shape[-1]), as_batch(V), as_batch(A), failed, threads)
        raise_if_failed(failed)
    return w, V


def _torch(A: Tensor, out: Any = None) -> Any:
    w, V = EIGH(A)
    return into((w, V.contiguous()), out)


def _torch_backward(
    to_w: Tensor, to_V: Tensor, A: Tensor, w: Tensor, V: Tensor, out: Any = None, compute: torch.dtype | None = None
) -> Any:
    """Differentiable again. With ``compute`` in that precision."""
    given = (t.to(compute or t.dtype) for t in (w, V, to_w, to_V))
    return into(matrix_gradient(*given).to(A.dtype), out)


def _fake(A: Tensor) -> tuple[Tensor, Tensor]:
    return A.new_empty(A.shape[:-1]), A.new_empty(A.shape)


OP = Op(
    CONTRACT,
    [
        triton_kernel(Path(__file__).parent, guard=decline, passes=("forward",), launches=1),
        *cpp_kernels(Path(__file__).parent, forward=_forward, guard=decline),
        python_kernel("torch", _torch, _torch_backward),
        python_kernel(
            "reference", in_float64(CONTRACT.reference, CONTRACT.results_in_order),
            functools.partial(_torch_backward, compute=torch.float64),
        ),
    ],
    op_package=__file__,
    forward=Pass("eigh(Tensor A, str? op_kernel=None) -> (Tensor, Tensor)", _fake),
    backward=Pass(
        "eigh_backward(Tensor grad_eigenvalues, Tensor grad_eigenvectors, Tensor A, Tensor eigenvalues, "
        "Tensor eigenvectors, str? op_kernel=None) -> Tensor",
        lambda to_w, to_V, A, w, V: A.new_empty(A.shape),
        returns=("A",),
        reads={"A": ("grad_eigenvalues", "grad_eigenvectors", "eigenvalues", "eigenvectors")},
    ),
    composite=EIGH,
    mutants=MUTANTS,
    result_type=torch.return_types.linalg_eigh,  # type: ignore[attr-defined]  # torch makes it when it is imported
    passthrough=Passthrough("function(A)", ("A",), (), {"function": EIGH}),
)  # fmt: skip
