"""One step of a causal depthwise convolution, which moves its state on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.memory_layout import is_channels_last_1d, with_unit_stride
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.convolution.causal_conv1d import few_taps
from kernelworks.ops.convolution.causal_conv1d_update.contract import ARGUMENTS, CONTRACT, composite, in_chunk
from kernelworks.ops.convolution.causal_conv1d_update.mutants import MUTANTS

__all__ = ["OP", "causal_conv1d_update"]


def causal_conv1d_update(
    x: Array, conv_state: Array, weight: Array, bias: Array | None = None, activation: str | None = None, *,
    out: Array | None = None, kernel: str | None = None,
) -> Array:  # fmt: skip
    """Causal depthwise convolution of the next inputs, with a state that is moved on in place.

    ``output`` is that of ``causal_conv1d`` with the last W - 1 elements of the state before x; then the state holds the
    last S of itself and x in a row.

    Args:
        x: [B, D], the next input, or [B, D, L] with L >= 1, the next L; float32, bfloat16 or float16, any strides.
        conv_state: [B, D, S] with S >= W - 1, of x's dtype, any strides; written to.
        weight: [D, W] with W >= 1 of x's dtype.
        bias: [D] of x's dtype, or None for zeros.
        activation: ``"silu"``, or None for none.
        out: where to write the output: a tensor like it.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` of x's shape, which lies as x does.

    There is no gradient: what requires grad is refused while gradients are recorded.

    Error bound: that of ``causal_conv1d``; the state is exact.
    Cost: 2 W flop an element, and an exponential with silu; reads x and the state and writes output and state once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Gu and Dao 2023, arXiv:2312.00752.
    """
    output: Array = OP.call(x, conv_state, weight, bias, activation, out, kernel)
    return output


def _forward(
    lib: Any, x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None,
    out: Any = None,
) -> Tensor:  # fmt: skip
    output: Tensor = torch.empty_like(x) if out is None else out
    chunk, states = in_chunk(x, conv_state, weight)
    to = output if output.dim() == 3 else output.unsqueeze(-1)
    along_channels = is_channels_last_1d(to)
    chunk = with_unit_stride(chunk, 1 if along_channels else 2)
    run, threads = choose_threads(lib.convolve, 2 * x.numel())
    run(to, None, chunk, weight, bias, states, activation is not None, along_channels, threads)
    lib.shift(conv_state, chunk, threads)
    return output


def _torch(*args: Any, out: Any = None) -> Any:
    made = composite(*args)
    told = torch.empty_like(args[0]) if out is None else out
    return into(made, told)


def _reference(*args: Any, out: Any = None) -> Any:
    output, state = in_float64(CONTRACT.reference, CONTRACT.results_in_order)(*args)
    args[1].copy_(state)
    return into(output, out)


PACKAGE = Path(__file__).parent
OP = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, passes=("forward",), in_place=True),
        *cpp_kernels(PACKAGE, forward=_forward, guard=few_taps),
        python_kernel("torch", _torch),
        python_kernel("reference", _reference),
    ],
    op_package=__file__,
    forward=Pass(
        f"causal_conv1d_update({schema_of(ARGUMENTS).replace('Tensor conv_state', 'Tensor(a!) conv_state')}, "
        "str? op_kernel=None) -> Tensor",
        lambda x, *others: torch.empty_like(x),
    ),
    composite=composite,
    mutants=MUTANTS,
)
