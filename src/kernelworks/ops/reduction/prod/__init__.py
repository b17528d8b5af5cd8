"""The product of the elements along dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, into, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.reduced_dims import dims_of, reduced_lines, reduced_shape
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.reduction.prod.contract import ARGUMENTS, CONTRACT, product
from kernelworks.ops.reduction.prod.mutants import MUTANTS
from kernelworks.templates.reduction_stages.launches import align_dims
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["OP", "prod"]

NANOSECONDS = 0.3  # about what an element takes one thread


@overload
def prod(
    x: Array, dim: int | tuple[int, ...] | list[int] | None = None, *, keepdim: bool = False, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def prod(
    input: Array, dim: int = ..., keepdim: bool = False, *, dtype: torch.dtype | None = None, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@two_names
def prod(
    x: Any = ABSENT, dim: Any = ABSENT, *rest: Any, keepdim: Any = False, out: Any = None, kernel: str | None = None,
    **torchs: Any,
) -> Any:  # fmt: skip
    """The product of the elements along dimensions, or of all.

    ``output = the product over dim of x``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: dimensions, also counted from the end: one, a list of them, or None for all. A call in torch's way has one;
            without it torch's function runs.
        keepdim: whether the output keeps the dimensions, with one element.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's dtype; 1 where a line has no elements. The gradient of an element is the product of the
        others, also where some are 0.

    Error bound: ``u |output| + n 2^-53 |output|``, n elements of a line.
    The same bits for any number of threads.
    Cost: 1 flop an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.prod.
    """
    if torchs or rest:
        given = (x,) if dim is ABSENT else (x, dim, *rest)
        return TORCH_SIGNATURE(given, torchs, {"keepdim": keepdim}, out, kernel)
    return OP.call(x, None if dim is ABSENT else dim, keepdim, out, kernel)


def _forward(lib: Any, x: Tensor, dim: Any, keepdim: bool, out: Tensor | None = None) -> Tensor:
    shape = reduced_shape(tuple(x.shape), dim, keepdim)
    output = torch.empty(shape, dtype=x.dtype) if out is None else out
    if not x.numel():
        return output.fill_(1.0)
    run, threads = choose_threads(lib.prod, NANOSECONDS * x.numel())
    run(output, *reduced_lines(x, dim), threads)
    return output


def _backward(lib: Any, grad: Tensor, x: Tensor, dim: Any, keepdim: bool, out: Any = None) -> Any:
    given, dims, back = align_dims(x, dim)
    made = torch.empty(given.shape, dtype=x.dtype) if out is None or back else out
    if x.numel():
        run, threads = choose_threads(lib.prod_backward, 3 * NANOSECONDS * x.numel())
        run(made, grad.contiguous(), *reduced_lines(given, dims, ordered=True), threads)
    return into(back(made), out) if back else made


def _aten(x: Any, dim: Any, keepdim: bool) -> Any:
    """torch's operator, which takes one dimension or all: of several one after the other."""
    dims = dims_of(tuple(x.shape), dim)
    if dims is None:
        made = aten("prod", x)
        return aten("reshape", made, [1] * len(x.shape)) if keepdim and len(x.shape) else made
    for d in reversed(dims):
        x = aten("prod.dim_int", x, d, keepdim)
    return x


SCHEMA = schema_of(ARGUMENTS)
FORWARD = Pass(
    f"prod({SCHEMA}, str? op_kernel=None) -> Tensor",
    lambda x, dim, keepdim: x.new_empty(reduced_shape(tuple(x.shape), dim, keepdim)),
)
BACKWARD = Pass(
    f"prod_backward(Tensor grad_output, {SCHEMA}, str? op_kernel=None) -> Tensor",
    lambda grad, x, *rest: x.new_empty(x.shape),
    returns=("x",),
)
PACKAGE = Path(__file__).parent
OP: Op = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE),
        *cpp_kernels(PACKAGE, forward=_forward, backward=_backward),
        *python_kernels(CONTRACT, FORWARD, BACKWARD, product, lambda: OP),
    ],
    op_package=__file__, forward=FORWARD, backward=BACKWARD, composite=product, aten=_aten, mutants=MUTANTS,
)  # fmt: skip


def _ours(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> tuple[Any, ...] | str:
    if dtype is not None and dtype != getattr(input, "dtype", None):
        return "dtype asks for another result than the input's"
    if dim is None:
        return "torch tells a product of all from a dim of None, which it refuses"
    return (input, dim, keepdim) if isinstance(dim, int) else "torch takes one dimension"


TORCH_SIGNATURE = TorchSignature(OP, torch.prod, _ours, {"input": "x"})
