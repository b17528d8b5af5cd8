"""The cosine of the angle between two vectors, each a line along a dimension."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.reduced_dims import reduced_shape
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, own_result, two_names
from kernelworks.ops.reduction.cosine_similarity.contract import ARGUMENTS, CONTRACT
from kernelworks.ops.reduction.cosine_similarity.mutants import MUTANTS
from kernelworks.ops.reduction.cosine_similarity.operands import broadcast, side_by_side
from kernelworks.templates.reduction_stages.launches import as_float32
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["OP", "cosine_similarity"]

NANOSECONDS = 0.6  # about what a pair of elements takes one thread


@overload
def cosine_similarity(
    x: Array, y: Array, dim: int = 1, *, eps: float, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def cosine_similarity(
    x1: Array, x2: Array, dim: int = 1, eps: float = 1e-8, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@own_result
@two_names
def cosine_similarity(
    x: Any = ABSENT, y: Any = ABSENT, dim: Any = 1, *rest: Any, eps: Any = ABSENT, out: Any = None,
    kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The cosine of the angle between two vectors, each a line along a dimension.

    ``output = x.y / (max(|x|, eps) max(|y|, eps))``, with ``|x| = sqrt(sum x^2)``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        y: of x's dtype, and of x's shape or one that broadcasts with it.
        dim: the dimension along which the vectors lie, of the shape that both come to; also counted from the end.
        eps: what a norm is at least, 0 or more; a call in torch's way has 1e-8 without it. As in torch a gradient takes
            it for the norm's value alone: the limit does not stop what flows through the norm.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` of x's dtype, without ``dim``; 0 where a line has no elements.

    Error bound: ``u |output| + (2 n + 12) 2^-53 sum |x y| / (max(|x|, eps) max(|y|, eps))``, n elements of a line.
    The same bits for any number of threads.
    Cost: 6 flop a pair of elements; reads x and y once for each of three sums and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.cosine_similarity.
    """
    if torchs or rest or eps is ABSENT or broadcast(x, y):
        own = {} if eps is ABSENT else {"eps": eps}
        return TORCH_SIGNATURE((x, y, dim, *rest), torchs, own, out, kernel)
    return OP.call(x, y, dim, eps, out, kernel)


def _forward(lib: Any, x: Tensor, y: Tensor, dim: int, eps: float, out: Tensor | None = None) -> Tensor:
    output = torch.empty(reduced_shape(tuple(x.shape), dim, False), dtype=x.dtype) if out is None else out
    if not x.numel():
        return output.zero_()
    operands, where = side_by_side(x, y, dim)
    run, threads = choose_threads(lib.cosine_similarity, NANOSECONDS * x.numel())
    run(output, *operands, *where[1:], as_float32(eps), threads)
    return output


def _backward(lib: Any, grad: Tensor, x: Tensor, y: Tensor, dim: int, eps: float, needs: Any, out: Any = None) -> Any:
    operands, where = side_by_side(x.contiguous(), y.contiguous(), dim)
    made = tuple(map(torch.empty_like, operands)) if out is None else tuple(out)
    if x.numel():
        wanted = [m if need or out is not None else None for m, need in zip(made, needs, strict=True)]
        run, threads = choose_threads(lib.cosine_similarity_backward, 2 * NANOSECONDS * x.numel())
        run(*wanted, grad.contiguous(), *operands, *where[1:], as_float32(eps), threads)
    return made


def _composite(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    return F.cosine_similarity(x, y, dim, eps)


SCHEMA = schema_of(ARGUMENTS)
FORWARD = Pass(
    f"cosine_similarity({SCHEMA}, str? op_kernel=None) -> Tensor",
    lambda x, y, dim, eps: x.new_empty(reduced_shape(tuple(x.shape), dim, False)),
)
BACKWARD = Pass(
    f"cosine_similarity_backward(Tensor grad_output, {SCHEMA}, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    lambda grad, x, y, *rest: (x.new_empty(x.shape), y.new_empty(y.shape)),
    returns=("x", "y"),
)
PACKAGE = Path(__file__).parent
OP: Op = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE),
        *cpp_kernels(PACKAGE, forward=_forward, backward=_backward),
        *python_kernels(CONTRACT, FORWARD, BACKWARD, _composite, lambda: OP),
    ],
    op_package=__file__, forward=FORWARD, backward=BACKWARD, composite=_composite,
    aten=lambda x, y, dim, eps: aten("cosine_similarity", x, y, dim, eps), mutants=MUTANTS,
)  # fmt: skip


def _ours(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> tuple[Any, ...] | str:
    if not (isinstance(x1, Tensor) and isinstance(x2, Tensor)):
        return "x1 and x2 are tensors"
    if x1.shape != x2.shape:
        if not broadcast(x1, x2):
            return "the shapes do not broadcast"
        x1, x2 = torch.broadcast_tensors(x1, x2)
    return x1, x2, dim, eps


TORCH_SIGNATURE = TorchSignature(OP, F.cosine_similarity, _ours, {"x1": "x", "x2": "y"})
