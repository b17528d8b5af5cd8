"""The cosine of the angle between two vectors, each a line along a dimension."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.reduced_dims import reduced_shape
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array, TorchSignature, own_result
from kernelworks.ops.reduction.cosine_similarity.contract import ARGUMENTS, CONTRACT
from kernelworks.ops.reduction.cosine_similarity.mutants import MUTANTS
from kernelworks.ops.reduction.cosine_similarity.operands import broadcast, side_by_side
from kernelworks.templates.reduction_stages.launches import as_float32
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["OP", "cosine_similarity"]

TARGETS = dict.fromkeys(("avx512", "avx2", "scalar"), "simd.cpp")
NANOSECONDS = 0.6  # about what a pair of elements takes one thread


@own_result
def cosine_similarity(
    x1: Array, x2: Array, dim: int = 1, eps: float = 1e-8, *, out: Array | None = None, kernel: str | None = None
) -> Array:
    """The cosine of the angle between two vectors, each a line along a dimension.

    ``output = x1.x2 / (max(|x1|, eps) max(|x2|, eps))``, with ``|x| = sqrt(sum x^2)``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x1: any shape, float32, bfloat16 or float16, any strides.
        x2: of x1's dtype, and of x1's shape or one that broadcasts with it.
        dim: the dimension along which the vectors lie, of the shape that both come to; also counted from the end.
        eps: what a norm is at least, 0 or more. As in torch a gradient takes it for the norm's value alone: the limit
            does not stop what flows through the norm.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` of x1's dtype, without ``dim``; 0 where a line has no elements.

    Error bound: ``u |output| + (2 n + 12) 2^-53 sum |x1 x2| / (max(|x1|, eps) max(|x2|, eps))``, n elements of a line.
    The same bits for any number of threads.
    Cost: 6 flop a pair of elements; reads x1 and x2 once for each of three sums and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.cosine_similarity.
    """
    if broadcast(x1, x2):
        made: Array = TORCH_SIGNATURE((x1, x2, dim, eps), {}, {}, out, kernel)
    else:
        made = OP.call(x1, x2, dim, eps, out, kernel)
    return made


def _forward(lib: Any, x1: Tensor, x2: Tensor, dim: int, eps: float, out: Tensor | None = None) -> Tensor:
    output = torch.empty(reduced_shape(tuple(x1.shape), dim, False), dtype=x1.dtype) if out is None else out
    if not x1.numel():
        return output.zero_()
    operands, where = side_by_side(x1, x2, dim)
    run, threads = choose_threads(lib.cosine_similarity, NANOSECONDS * x1.numel())
    run(output, *operands, *where[1:], as_float32(eps), threads)
    return output


def _backward(lib: Any, grad: Tensor, x1: Tensor, x2: Tensor, dim: int, eps: float, needs: Any, out: Any = None) -> Any:
    operands, where = side_by_side(x1.contiguous(), x2.contiguous(), dim)
    made = tuple(map(torch.empty_like, operands)) if out is None else tuple(out)
    if x1.numel():
        wanted = [m if need or out is not None else None for m, need in zip(made, needs, strict=True)]
        run, threads = choose_threads(lib.cosine_similarity_backward, 2 * NANOSECONDS * x1.numel())
        run(*wanted, grad.contiguous(), *operands, *where[1:], as_float32(eps), threads)
    return made


def _composite(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    return F.cosine_similarity(x1, x2, dim, eps)


SCHEMA = schema_of(ARGUMENTS)
FORWARD = Pass(
    f"cosine_similarity({SCHEMA}, str? op_kernel=None) -> Tensor",
    lambda x1, x2, dim, eps: x1.new_empty(reduced_shape(tuple(x1.shape), dim, False)),
)
BACKWARD = Pass(
    f"cosine_similarity_backward(Tensor grad_output, {SCHEMA}, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    lambda grad, x1, x2, *rest: (x1.new_empty(x1.shape), x2.new_empty(x2.shape)),
    returns=("x1", "x2"),
)
PACKAGE = Path(__file__).parent
OP: Op = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE),
        *cpp_kernels(PACKAGE, forward=_forward, backward=_backward, targets=TARGETS),
        *python_kernels(CONTRACT, FORWARD, BACKWARD, _composite, lambda: OP),
    ],
    op_package=__file__, forward=FORWARD, backward=BACKWARD, composite=_composite,
    aten=lambda x1, x2, dim, eps: aten("cosine_similarity", x1, x2, dim, eps), mutants=MUTANTS,
)  # fmt: skip


def _ours(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> tuple[Any, ...] | str:
    if not (isinstance(x1, Tensor) and isinstance(x2, Tensor)):
        return "x1 and x2 are tensors"
    if x1.shape != x2.shape:
        if not broadcast(x1, x2):
            return "the shapes do not broadcast"
        x1, x2 = torch.broadcast_tensors(x1, x2)
    return x1, x2, dim, eps


TORCH_SIGNATURE = TorchSignature(OP, F.cosine_similarity, _ours, {})
