"""Solutions of many small systems from their matrices' Cholesky factors."""

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
from kernelworks.ops.linalg.cholesky_solve.contract import CONTRACT, SOLVE, apply_factor, decline
from kernelworks.ops.linalg.cholesky_solve.mutants import MUTANTS

__all__ = ["OP", "cholesky_solve"]

NANOSECONDS = 0.1  # about what a product of the substitutions takes, and an element on its way to a lane


@overload
def cholesky_solve(
    B: Array, L: Array, upper: bool = False, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def cholesky_solve(
    input: Array, input2: Array, upper: bool = False, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@two_names
def cholesky_solve(
    B: Any = ABSENT, L: Any = ABSENT, upper: Any = False, *rest: Any, out: Any = None, kernel: str | None = None,
    **torchs: Any,
) -> Any:  # fmt: skip
    """Solves A X = B for each matrix A of a batch, given its Cholesky factor: ``X = A^-1 B``.

    ``A = L L^T``, or with ``upper`` ``L^T L``. The other triangle of L is not read.

    Args:
        B: [..., N, K] right-hand sides, float32, any strides.
        L: [..., N, N] factors of B's dtype, any strides. The batches of both broadcast.
        upper: whether L is an upper triangle.
        out: where to write: a contiguous tensor like the result.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        X, [..., N, K]. The gradient of L is torch's, of the whole square: ``-(G X^T + X G^T) L`` with G that of B.

    Error bound: ``u |X| + (1 - W)^-1 W |X|`` with ``W = 2 (N + 1) 2^-24 |A^-1| |L| |L^T|``: the condition is in it.
    Cost: 2 N^2 K flop a matrix; reads B and L once and writes X once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: LAPACK's potrs; torch.cholesky_solve.
    """
    if torchs or rest:
        return TORCH_SIGNATURE((B, L, upper, *rest), torchs, {}, out, kernel)
    return OP.call(B, L, upper, out, kernel)


def _ours(input: Tensor, input2: Tensor, upper: bool = False) -> tuple[Any, ...] | str:
    return input, input2, upper


def _as_batch(x: Tensor) -> Tensor:
    """[batch, rows, columns], contiguous."""
    return x.contiguous().view(-1, *x.shape[-2:]) if x.numel() else x.reshape(0, *x.shape[-2:])


def _forward(lib: Any, B: Tensor, L: Tensor, upper: bool, out: Any = None) -> Tensor:
    made = B.new_empty(B.shape) if out is None else out
    if made.numel():
        kernel, threads = choose_threads(lib.cholesky_solve, NANOSECONDS * L.numel() * (B.shape[-1] + 4))
        kernel(_as_batch(made), _as_batch(B), _as_batch(L), upper, threads)
    return made


def _backward(
    lib: Any, grad: Tensor, B: Tensor, L: Tensor, output: Tensor, upper: bool, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor]:
    to_B, to_L = (B.new_empty(B.shape), L.new_empty(L.shape if needs[1] else 0)) if out is None else out
    if not B.numel():
        return to_B, to_L.zero_()
    kernel, threads = choose_threads(lib.cholesky_solve_backward, NANOSECONDS * L.numel() * (5 * B.shape[-1] + 8))
    given = (_as_batch(grad), _as_batch(output), _as_batch(L), upper, threads)
    kernel(_as_batch(to_B), _as_batch(to_L) if needs[1] else None, *given)
    return to_B, to_L


def _composite(B: Tensor, L: Tensor, upper: bool) -> Tensor:
    return SOLVE(B, L, upper)


def _torch(B: Tensor, L: Tensor, upper: bool, out: Any = None) -> Any:
    made = SOLVE(B, L, upper)  # whose columns torch puts one behind the other
    return into(made, made.new_empty(made.shape) if out is None else out)


def _torch_backward(
    grad: Tensor, B: Tensor, L: Tensor, output: Tensor, upper: bool, needs: list[bool], out: Any = None,
    compute: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """Differentiable again, and of any batches. With ``compute`` in that precision, the output made anew."""
    dtype = compute or grad.dtype
    g = SOLVE(grad.to(dtype), L.to(dtype), upper)
    to_L = L.new_empty(0)
    if needs[1]:
        S = g @ output.to(dtype).mT
        to_L = -apply_factor(S + S.mT, L.to(dtype), upper).sum_to_size(L.shape).to(L.dtype)
    return into((g.sum_to_size(B.shape).to(B.dtype), to_L), out)


def _fake(B: Tensor, L: Tensor, upper: bool) -> Tensor:
    return B.new_empty((*torch.broadcast_shapes(B.shape[:-2], L.shape[:-2]), *B.shape[-2:]))


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
    forward=Pass("cholesky_solve(Tensor B, Tensor L, bool upper, str? op_kernel=None) -> Tensor", _fake),
    backward=Pass(
        "cholesky_solve_backward(Tensor grad_output, Tensor B, Tensor L, Tensor output, bool upper, bool[] needs, "
        "str? op_kernel=None) -> (Tensor, Tensor)",
        lambda grad, B, L, output, upper, needs: (B.new_empty(B.shape), L.new_empty(L.shape if needs[1] else 0)),
        returns=("B", "L"),
        reads={"B": ("grad_output", "L"), "L": ("grad_output", "L", "output")},
    ),
    composite=_composite,
    mutants=MUTANTS,
    passthrough=Passthrough(
        "function(B, L, upper)", ("B", "L"), ("upper.__class__ is bool",), {"function": SOLVE},
    ),
)  # fmt: skip
TORCH_SIGNATURE = TorchSignature(OP, torch.cholesky_solve, _ours, {"input": "B", "input2": "L"})
