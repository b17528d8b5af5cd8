"""The affine map of the last dimension with a weight in a packed format."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import INT8_BY_BLOCK, Kernel, Request
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.memory_layout import as_rows
from kernelworks.contract.packed_formats import FORMATS, dequantize_blocks
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.quantization.quantized_linear.contract import ARGUMENTS, CONTRACT, reference
from kernelworks.ops.quantization.quantized_linear.mutants import MUTANTS

__all__ = ["OP", "quantized_linear"]

INT8_GROUP_BYTES = 104  # of 32 numbers of x in int8.cpp: in 16 bits each, 8 sums, a scale, a scaled sum
MOST_ROWS_ON_GPU = 16  # each reads the weight again, which L2 holds for so many


def quantized_linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    format: str,
    activations: str = "float32",
    out: Array | None = None,
    kernel: str | None = None,
) -> Array:
    """Affine map of the last dimension with packed weights: ``output = x @ dequantize(weight, format).T + bias``.

    Args:
        x: [..., K], float32, bfloat16 or float16, any strides; K fills whole blocks.
        weight: [N, bytes of K], uint8, contiguous: what ``quantize`` makes of [N, K], and what GGUF files hold.
        bias: [N] of x's dtype, or None for zeros.
        format: of blocks of 32 numbers ``"Q8_0"`` (34 bytes), ``"Q4_0"`` (18), ``"Q4_1"`` (20), ``"Q5_0"`` (22),
            ``"Q5_1"`` (24) or ``"IQ4_NL"`` (18); of blocks of 128 ``"INT4_128"`` (66) or ``"UINT4_128"`` (68); of
            blocks of 256 ``"Q4_K"`` (144), ``"Q5_K"`` (176) or ``"Q6_K"`` (210).
        activations: ``"float32"``: x enters as it is, and sums are float32's. ``"int8"`` allows kernels that round x to
            8 bits first, with a scale for each block of 32, as llama.cpp does; they add integers.
        out: where to write: a contiguous [..., N] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., N] of x's dtype. Differentiable in x and bias; the weight is bytes and has no gradient.

    Error bound: |output - exact| <= u |output| + n 2^-24 / (1 - n 2^-24) (|x| @ |weight|.T + |bias|), u the unit
    roundoff of the dtype and n = K/8 + 10: weights are decoded exactly, sums are kept in float32. With
    ``activations="int8"`` and a kernel that rounds x, 1/254 of the largest |x| of each block, times that block of
    |weight|, more; and where a format adds a least number, |weight| in the sum is the sizes of what is added.
    Cost: 2 M N K flop for M rows of x; with few rows the weight's bytes are read once, and that is the time.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: ggml/src/ggml-cpu (llama.cpp); torch.nn.functional.linear.
    """
    output: Array = OP.call(x, weight, bias, format, activations, out, kernel)
    return output


# ---------------------------------------------------------------- launches


def _nanoseconds(rows: int, weight: Tensor) -> float:
    """Of one thread: for few rows the weight's bytes come from memory, for many each is multiplied by all."""
    return weight.numel() * max(0.06, rows / 16)


def _output(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _dense(bias: Tensor | None) -> Tensor | None:
    return bias if bias is None or bias.is_contiguous() else bias.contiguous()


def _forward(
    lib: Any, x: Tensor, weight: Tensor, bias: Tensor | None, format: str, activations: str, out: Any = None
) -> Tensor:
    output = _output(x, weight) if out is None else out
    if output.numel() == 0:
        return output
    rows, m = as_rows(x), math.prod(x.shape[:-1])
    as_it_is = m == 1 and x.dtype == torch.float32
    room = None if as_it_is else torch.empty(m * x.shape[-1], dtype=torch.float32)
    run, threads = choose_threads(lib.quantized_linear, _nanoseconds(m, weight))
    run(output, rows, weight, _dense(bias), room, FORMATS[format].number, threads)
    return output


def _forward_int8(
    lib: Any, x: Tensor, weight: Tensor, bias: Tensor | None, format: str, activations: str, out: Any = None
) -> Tensor:
    output = _output(x, weight) if out is None else out
    if output.numel() == 0:
        return output
    rows, m = as_rows(x), math.prod(x.shape[:-1])
    room = torch.empty(m * x.shape[-1] // 32 * INT8_GROUP_BYTES, dtype=torch.uint8)
    run, threads = choose_threads(lib.quantized_linear_int8, _nanoseconds(m, weight))
    run(output, rows, weight, _dense(bias), room, FORMATS[format].number, threads)
    return output


def _gradients(grad: Tensor, weight: Tensor, format: str, needs: list[bool]) -> tuple[Tensor, Tensor]:
    k = FORMATS[format].unpacked_size(weight.shape[1])
    return (
        grad.new_empty((*grad.shape[:-1], k) if needs[0] else 0),
        grad.new_empty(weight.shape[0] if needs[1] else 0),
    )


def _backward(
    lib: Any, grad: Tensor, weight: Tensor, format: str, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor]:
    grad_x, grad_bias = _gradients(grad, weight, format, needs) if out is None else out
    m = math.prod(grad.shape[:-1])
    if needs[0]:
        wide = grad.reshape(m, weight.shape[0]).float().contiguous()
        run, threads = choose_threads(lib.quantized_linear_grad_x, _nanoseconds(m, weight))
        run(grad_x, wide, weight, FORMATS[format].number, threads)
    if needs[1]:
        run, threads = choose_threads(lib.quantized_linear_grad_bias, grad.numel())
        run(grad_bias, as_rows(grad), threads)
    return grad_x, grad_bias


# ---------------------------------------------------------------- torch's functions


def _composite(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, format: str = "Q8_0", activations: str = "float32"
) -> Tensor:
    """In float32, as the weight's numbers are."""
    wide = dequantize_blocks(weight, format)
    return F.linear(x.float(), wide, None if bias is None else bias.float()).to(x.dtype)


def _torch(*args: Any, out: Any = None) -> Any:
    return into(_composite(*args), out)


def _torch_backward(
    grad: Tensor, weight: Tensor, format: str, needs: list[bool], out: Any = None,
    compute: torch.dtype = torch.float32,
) -> Any:  # fmt: skip
    """Of functions that are differentiable again."""
    g = grad.to(compute)
    grad_x = g @ dequantize_blocks(weight, format).to(compute) if needs[0] else g.new_empty(0)
    grad_bias = g.reshape(math.prod(grad.shape[:-1]), weight.shape[0]).sum(0) if needs[1] else g.new_empty(0)
    return into((grad_x.to(grad.dtype), grad_bias.to(grad.dtype)), out)


# ---------------------------------------------------------------- the op

PACKAGE = Path(__file__).parent
INT8_TARGETS: Mapping[str, str] = {"avx512_vnni": "int8.cpp", "avx2": "int8.cpp"}


def _int8(kernel: Kernel) -> Kernel:
    return dataclasses.replace(kernel, name=f"int8_{kernel.target}", inner=INT8_BY_BLOCK)


def _few_rows(request: Request) -> str | None:
    rows = math.prod(request.args["x"].shape[:-1])
    return None if rows <= MOST_ROWS_ON_GPU else f"takes up to {MOST_ROWS_ON_GPU} rows of x, got {rows}"


OP = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, guard=_few_rows, passes=("forward",)),
        *map(_int8, cpp_kernels(PACKAGE, forward=_forward_int8, targets=INT8_TARGETS)),
        *cpp_kernels(PACKAGE, forward=_forward, backward=_backward),
        python_kernel("torch", _torch, _torch_backward),
        python_kernel("reference", in_float64(reference), functools.partial(_torch_backward, compute=torch.float64)),
    ],
    op_package=__file__,
    forward=Pass(
        f"quantized_linear({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
        lambda x, weight, bias, format, activations: _output(x, weight),
    ),
    backward=Pass(
        "quantized_linear_backward(Tensor grad_output, Tensor weight, str format, bool[] needs, str? op_kernel=None) "
        "-> (Tensor, Tensor)",
        _gradients,
        returns=("x", "bias"),
        reads={"x": ("weight",), "bias": ()},
    ),
    composite=_composite,
    mutants=MUTANTS,
)
