"""The affine map of the last dimension with a weight of 8 bits and a scale for each of its rows."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import Request
from kernelworks.contract.arguments import schema_of
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.quantization.rowwise_linear.contract import ARGUMENTS, CONTRACT, EIGHT, reference
from kernelworks.ops.quantization.rowwise_linear.mutants import MUTANTS

__all__ = ["OP", "rowwise_linear"]

MOST_ROWS_ON_GPU = 16  # each multiplies the weight's tile in registers


def rowwise_linear(
    x: Array, weight: Array, scale: Array, bias: Array | None = None, *, out: Array | None = None,
    kernel: str | None = None,
) -> Array:  # fmt: skip
    """Affine map of the last dimension, the weight in 8 bits with a scale by row: ``(x @ weight.T) * scale + bias``.

    Args:
        x: [..., K], float32, bfloat16 or float16, any strides; |x| below 2^100, above which sums of codes overflow.
        weight: [N, K], int8 or float8_e4m3fn, contiguous.
        scale: [N], float32: what row n of the weight is multiplied by.
        bias: [N] of x's dtype, or None for zeros.
        out: where to write: a contiguous [..., N] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., N] of x's dtype. Differentiable in x and bias; the weight and its scales have no gradient.

    Error bound: |output - exact| <= u |output| + n 2^-24 / (1 - n 2^-24) (|x| @ |weight|.T |scale| + |bias|), u the
        unit roundoff of the dtype and n = K/8 + 12: weights are decoded exactly, sums are kept in float32.
    Cost: 2 M N K flop for M rows of x; with few rows the weight's bytes are read once, and that is the time.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Dettmers et al. 2022, arXiv:2208.07339; torch.nn.functional.linear.
    """
    output: Array = OP.call(x, weight, scale, bias, out, kernel)
    return output


def _output(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _forward(lib: Any, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, out: Any = None) -> Tensor:
    output = _output(x, weight) if out is None else out
    m, k = math.prod(x.shape[:-1]), x.shape[-1]
    if output.numel():
        rows = x.to(torch.float32).reshape(m, k).contiguous()
        run, threads = choose_threads(lib.rowwise_linear, weight.numel() * max(0.06, m / 16))
        more = None if bias is None else bias.contiguous()
        run(output, rows, weight.view(torch.uint8), scale.contiguous(), more, weight.dtype == EIGHT, threads)
    return output


def _composite(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """In float32, as the weight's numbers are."""
    output = F.linear(x.float(), weight.float()) * scale
    return (output if bias is None else output + bias.float()).to(x.dtype)


def _torch(*args: Any, out: Any = None) -> Any:
    return into(_composite(*args), out)


def _backward(
    grad: Tensor, weight: Tensor, scale: Tensor, needs: list[bool], out: Any = None,
    compute: torch.dtype = torch.float32,
) -> Any:  # fmt: skip
    """Of functions that are differentiable again."""
    g = grad.to(compute)
    grad_x = (g * scale.to(compute)) @ weight.to(compute) if needs[0] else g.new_empty(0)
    grad_bias = g.reshape(math.prod(grad.shape[:-1]), weight.shape[0]).sum(0) if needs[1] else g.new_empty(0)
    return into((grad_x.to(grad.dtype), grad_bias.to(grad.dtype)), out)


def _gradients(grad: Tensor, weight: Tensor, scale: Tensor, needs: list[bool]) -> tuple[Tensor, Tensor]:
    return (
        grad.new_empty((*grad.shape[:-1], weight.shape[1]) if needs[0] else 0),
        grad.new_empty(weight.shape[0] if needs[1] else 0),
    )


def _few_rows(request: Request) -> str | None:
    rows = math.prod(request.args["x"].shape[:-1])
    return None if rows <= MOST_ROWS_ON_GPU else f"takes up to {MOST_ROWS_ON_GPU} rows of x, got {rows}"


OP = Op(
    CONTRACT,
    [
        triton_kernel(Path(__file__).parent, guard=_few_rows, passes=("forward",)),
        *cpp_kernels(Path(__file__).parent, forward=_forward),
        python_kernel("torch", _torch, _backward),
        python_kernel("reference", in_float64(reference), functools.partial(_backward, compute=torch.float64)),
    ],
    op_package=__file__,
    forward=Pass(
        f"rowwise_linear({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
        lambda x, weight, scale, bias: _output(x, weight),
    ),
    backward=Pass(
        "rowwise_linear_backward(Tensor grad_output, Tensor weight, Tensor scale, bool[] needs, str? op_kernel=None) "
        "-> (Tensor, Tensor)",
        _gradients,
        returns=("x", "bias"),
        reads={"x": ("weight", "scale"), "bias": ()},
    ),
    composite=_composite,
    mutants=MUTANTS,
)
