"""Solutions of many small linear systems."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.linalg.solve.contract import (
    CONTRACT,
    SINGULAR_ERROR,
    SOLVE,
    as_columns,
    decline,
    is_vector,
    result_shape,
)
from kernelworks.ops.linalg.solve.mutants import MUTANTS

__all__ = ["OP", "as_batch", "raise_if_singular", "solve"]

NANOSECONDS = 0.1  # about what a product of the elimination takes, and an element on its way to a lane


@overload
def solve(A: Array, B: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def solve(A: Array, B: Array, *, left: bool, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def solve(
    A: Any = ABSENT, B: Any = ABSENT, *rest: Any, out: Any = None, kernel: str | None = None, **torchs: Any
) -> Any:
    """Solves A X = B for each matrix A of a batch: ``X = A^-1 B``.

    Args:
        A: [..., N, N], float32, any strides.
        B: [..., N, K] right-hand sides of A's dtype, or [..., N], one for each matrix: torch's rule, by which B of one
            dimension, or of A's shape without its last dimension, is vectors. The batches of both broadcast.
        out: where to write: a contiguous tensor like the result.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        X, of B's shape with the batch of both.

    Error bound: ``u |X| + (1 - W)^-1 W |X|`` with ``W = 3 (N + 1) 2^-24 |A^-1| S``, S the magnitudes of the factors,
    ``|L| |U|``, of pivots within columns or within rows: the condition is in it.
    Cost: 2 N^3 / 3 + 2 N^2 K flop a matrix; reads A and B once and writes X once.
    Raises: torch.linalg.LinAlgError for a matrix with a pivot of 0; on a GPU a call waits for that answer, unless it is
    captured in a CUDA graph: then X is inf or NaN. TypeError, ValueError naming the argument; RuntimeError where
    ``kernel`` cannot run.
    Source: LAPACK's gesv; torch.linalg.solve, whose ``left=False`` is ``solve(A.mT, B.mT).mT`` and left to torch.
    """
    if torchs or rest:
        return TORCH_SIGNATURE((A, B, *rest), torchs, {}, out, kernel)
    return OP.call(A, B, out, kernel)


def _ours(A: Tensor, B: Tensor, *, left: bool = True) -> tuple[Any, ...] | str:
    return (A, B) if left else "left=False multiplies from the other side"


def as_batch(x: Tensor) -> Tensor:
    """[batch, rows, columns], contiguous."""
    return x.contiguous().view(-1, *x.shape[-2:]) if x.numel() else x.reshape(0, *x.shape[-2:])


def raise_if_singular(singular: Tensor) -> None:
    """Raises as torch does of the first system that has no solution. Waits for a GPU, but for a call that is captured:
    its replays cannot raise, and their answers hold inf or NaN."""
    if singular.is_meta or (singular.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    if bool(singular.any()):
        first = int(singular.nonzero()[0])
        raise SINGULAR_ERROR(f"solve: (Batch element {first}): The solver failed because the input matrix is singular.")


def _forward(lib: Any, A: Tensor, B: Tensor, out: Any = None) -> Tensor:
    made = B.new_empty(B.shape) if out is None else out
    if made.numel():
        sides = as_batch(as_columns(A, B))
        singular = torch.empty(len(sides), dtype=torch.int32)
        kernel, threads = choose_threads(lib.solve, NANOSECONDS * A.numel() * (A.shape[-1] + sides.shape[-1] + 4))
        kernel(as_batch(as_columns(A, made)), as_batch(A), sides, singular, threads)
        raise_if_singular(singular)
    return made


def _backward(
    lib: Any, grad: Tensor, A: Tensor, B: Tensor, output: Tensor, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor]:
    to_A, to_B = (A.new_empty(A.shape if needs[0] else 0), B.new_empty(B.shape)) if out is None else out
    if not B.numel():
        return to_A.zero_(), to_B
    flow = as_batch(as_columns(A, grad))
    work = NANOSECONDS * A.numel() * (A.shape[-1] + 2 * flow.shape[-1] + 8)
    kernel, threads = choose_threads(lib.solve_backward, work)
    given = (flow, as_batch(A), as_batch(as_columns(A, output)), threads)
    kernel(as_batch(to_A) if needs[0] else None, as_batch(as_columns(A, to_B)), *given)
    return to_A, to_B


def _composite(A: Tensor, B: Tensor) -> Tensor:
    return SOLVE(A, B)


def _torch(A: Tensor, B: Tensor, out: Any = None) -> Any:
    made = SOLVE(A, B)  # whose columns torch puts one behind the other
    return into(made, made.new_empty(made.shape) if out is None else out)


def _torch_backward(
    grad: Tensor, A: Tensor, B: Tensor, output: Tensor, needs: list[bool], out: Any = None,
    compute: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """Differentiable again, and of any batches. With ``compute`` in that precision."""
    dtype, vector = compute or grad.dtype, is_vector(A, B)
    flow = grad.to(dtype).unsqueeze(-1) if vector else grad.to(dtype)
    g = SOLVE(A.to(dtype).mT, flow)
    to_A = A.new_empty(0)
    if needs[0]:
        x = output.to(dtype).unsqueeze(-1) if vector else output.to(dtype)
        to_A = -(g @ x.mT).sum_to_size(A.shape).to(A.dtype)
    return into((to_A, (g.squeeze(-1) if vector else g).sum_to_size(B.shape).to(B.dtype)), out)


OP = Op(
    CONTRACT,
    [
        triton_kernel(Path(__file__).parent, guard=decline, launches=2),
        *cpp_kernels(Path(__file__).parent, forward=_forward, backward=_backward, guard=decline),
        python_kernel("torch", _torch, _torch_backward),
        python_kernel(
            "reference", in_float64(CONTRACT.reference, CONTRACT.results_in_order),
            functools.partial(_torch_backward, compute=torch.float64),
        ),
    ],
    op_package=__file__,
    forward=Pass(
        "solve(Tensor A, Tensor B, str? op_kernel=None) -> Tensor", lambda A, B: B.new_empty(result_shape(A, B))
    ),
    backward=Pass(
        "solve_backward(Tensor grad_output, Tensor A, Tensor B, Tensor output, bool[] needs, "
        "str? op_kernel=None) -> (Tensor, Tensor)",
        lambda grad, A, B, output, needs: (A.new_empty(A.shape if needs[0] else 0), B.new_empty(B.shape)),
        returns=("A", "B"),
        reads={"A": ("grad_output", "A", "output"), "B": ("grad_output", "A")},
    ),
    composite=_composite,
    mutants=MUTANTS,
    passthrough=Passthrough("function(A, B)", ("A", "B"), (), {"function": SOLVE}),
)  # fmt: skip
TORCH_SIGNATURE = TorchSignature(OP, SOLVE, _ours, {}, operator="linalg_solve")
