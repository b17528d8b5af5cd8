"""The matrix of a kernel function over all pairs of points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.similarity.kernel_matrix.contract import ARGUMENTS, CONTRACT, FUNCTIONS, composite, native
from kernelworks.ops.similarity.kernel_matrix.mutants import MUTANTS
from kernelworks.templates.pairwise import length_scale_of
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["OP", "kernel_matrix"]

FUNCTION_NAMES = tuple(FUNCTIONS)
RETURNS = ("x", "y", "length_scale")


def kernel_matrix(
    x: Array,
    y: Array,
    length_scale: Array | float,
    metric: str = "rbf",
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array:
    """The matrix K of a kernel function over all pairs of points: ``output[i, j] = k(|x_i - y_j| / length_scale)``.

    With z the Euclidean distance in length scales k is ``exp(-z^2 / 2)`` for ``"rbf"``, ``exp(-z)`` for ``"matern12"``,
    ``(1 + w) exp(-w)`` with ``w = sqrt(3) z`` for ``"matern32"``, and ``(1 + w + w^2 / 3) exp(-w)`` with
    ``w = sqrt(5) z`` for ``"matern52"``. Where K is only multiplied with something, ``kernel_matmul`` and its like
    need not store it.

    Args:
        x: [N, D] points, float32, bfloat16 or float16, any strides. All is computed in float32.
        y: [M, D] points of x's dtype; may be x itself.
        length_scale: a positive number, taken as float32 (an integer too), or a tensor of one element, float32 or of
            x's dtype, whose gradient may be asked for.
        metric: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``.
        out: where to write: a contiguous [N, M] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [N, M] of x's dtype. The gradient of a pair of equal points is 0.

    Error bound: ``u k`` and that of k in the sums over pairs: for rbf ``((D + 8) z^2 / 2 + 4) 2^-24 k``. Distances are
    sums of squared differences: points may be far from the origin and close together.
    Cost: 3 D + 1 flop and one exponential a pair; reads x and y and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Rasmussen and Williams 2006, equations 4.9, 4.17 and 4.18.
    """
    output: Array = OP.call(x, y, length_scale_of(length_scale, x), metric, out, kernel)
    return output


def _plain(t: Tensor) -> Tensor:
    """What C++ takes: contiguous float32."""
    return t.to(torch.float32).contiguous()


def _nanoseconds(x: Tensor, y: Tensor) -> float:
    """About what one thread needs for all pairs."""
    return x.shape[0] * y.shape[0] * (0.5 + 0.1 * x.shape[1])


def _forward(lib: Any, x: Tensor, y: Tensor, length_scale: Tensor, metric: str, out: Any = None) -> Tensor:
    made = x.new_empty(x.shape[0], y.shape[0]) if out is None else out
    if made.numel():
        run, threads = choose_threads(lib.kernel_matrix, _nanoseconds(x, y))
        run(made, _plain(x), _plain(y), _plain(length_scale), FUNCTION_NAMES.index(metric), threads)
    return made


def _slopes(
    lib: Any, grad: Tensor | None, stretch: Tensor | None, a: Tensor, b: Tensor, flows: Tensor, length_scale: Tensor,
    which: int,
) -> None:  # fmt: skip
    """The gradient of a's rows, and each row's part of the length scale's."""
    if not flows.numel():
        for made in (grad, stretch):
            if made is not None:
                made.zero_()
        return
    to = grad if grad is None or grad.dtype == torch.float32 else torch.empty(grad.shape)
    run, threads = choose_threads(lib.kernel_matrix_gradient, 2 * _nanoseconds(a, b))
    run(to, stretch, _plain(a), _plain(b), flows.contiguous(), _plain(length_scale), which, threads)
    if grad is not None and to is not None and to is not grad:
        grad.copy_(to)


def _backward(
    lib: Any, grad: Tensor, x: Tensor, y: Tensor, length_scale: Tensor, metric: str, needs: list[bool],
    out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    made = _gradients_like((x, y, length_scale), needs) if out is None else tuple(out)
    which = FUNCTION_NAMES.index(metric)
    if needs[0] or needs[2]:
        stretch = torch.zeros(x.shape[0], dtype=torch.float64) if needs[2] else None
        _slopes(lib, made[0] if needs[0] else None, stretch, x, y, grad, length_scale, which)
        if stretch is not None:
            made[2].copy_(stretch.sum().reshape(length_scale.shape))
    if needs[1]:  # K of (y, x) is K of (x, y) transposed
        _slopes(lib, made[1], None, y, x, grad.t(), length_scale, which)
    return made


def _gradients_like(inputs: tuple[Tensor, ...], needs: Sequence[bool]) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape if want else 0) for t, want in zip(inputs, needs, strict=True))


FORWARD = Pass(
    f"kernel_matrix({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
    lambda x, y, length_scale, metric: x.new_empty((x.shape[0], y.shape[0])),
)
BACKWARD = Pass(
    f"kernel_matrix_backward(Tensor grad_output, {schema_of(ARGUMENTS)}, bool[] needs, str? op_kernel=None) "
    "-> (Tensor, Tensor, Tensor)",
    lambda grad, x, y, length_scale, metric, needs: _gradients_like((x, y, length_scale), needs),
    returns=RETURNS,
)
OP: Op = Op(
    CONTRACT,
    [
        triton_kernel(Path(__file__).parent),
        *cpp_kernels(Path(__file__).parent, forward=_forward, backward=_backward),
        *python_kernels(CONTRACT, FORWARD, BACKWARD, native, lambda: OP),
    ],
    op_package=__file__,
    forward=FORWARD,
    backward=BACKWARD,
    composite=composite,
    native=native,
    mutants=MUTANTS,
)
