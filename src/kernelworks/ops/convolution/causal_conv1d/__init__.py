"""Depthwise convolution over the past: of a chunk, with the state that chunks hand on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import Request
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.memory_layout import is_channels_last_1d, with_unit_stride
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.convolution.causal_conv1d.contract import ARGUMENTS, CONTRACT, composite
from kernelworks.ops.convolution.causal_conv1d.mutants import MUTANTS
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["OP", "causal_conv1d", "few_taps"]

MOST_TAPS = 64


@overload
def causal_conv1d(
    x: Array, weight: Array, bias: Array | None = None, *, initial_states: Array | None = None,
    return_final_states: Literal[False] = False, activation: str | None = None, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip


@overload
def causal_conv1d(
    x: Array, weight: Array, bias: Array | None = None, *, initial_states: Array | None = None,
    return_final_states: Literal[True], activation: str | None = None, out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


def causal_conv1d(
    x: Array, weight: Array, bias: Array | None = None, *, initial_states: Array | None = None,
    return_final_states: bool = False, activation: str | None = None, out: Any = None, kernel: str | None = None,
) -> Any:  # fmt: skip
    """Causal depthwise convolution: each output is made of the last W inputs of its channel.

    ``output[b, d, l] = f(bias[d] + sum_k weight[d, k] x[b, d, l + k - W + 1])``, f the identity or silu. What lies
    before x is ``initial_states``, or 0. With ``nn.Conv1d(D, D, W, groups=D, padding=W - 1)`` it is
    ``conv(x)[..., :L]``.

    Args:
        x: [B, D, L] with D, L >= 1, float32, bfloat16 or float16, any strides; one whose channels lie side by side
            (a transposed [B, L, D]) is read in place.
        weight: [D, W] with W >= 1 of x's dtype: ``conv.weight.squeeze(1)``.
        bias: [D] of x's dtype, or None for zeros.
        initial_states: [B, D, W - 1] of x's dtype: the inputs before x, the last one last; or None for zeros.
        return_final_states: whether to return the last W - 1 inputs too, which are the next chunk's initial states.
        activation: ``"silu"``, or None for none.
        out: where to write: a tensor like the output, or with final states a pair of tensors.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The output [B, D, L], which lies as x does; with ``return_final_states`` a pair with the final states
        [B, D, W - 1].

    Error bound: ``u |output| + gamma(W + 1) (sum_k |weight x| + |bias|)``, gamma(n) = n 2^-24 / (1 - n 2^-24); with
    silu 1.1 of the second term and what silu rounds. States are exact.
    Cost: 2 W flop an element, and an exponential with silu; reads x once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Gu and Dao 2023, arXiv:2312.00752.
    """
    return OP.call(x, weight, bias, initial_states, activation, return_final_states, out, kernel)


def few_taps(request: Request) -> str | None:
    """Why the loops of causal_conv.hpp decline a request."""
    W = request.args["weight"].shape[1]
    return f"takes up to {MOST_TAPS} taps, got {W}" if W > MOST_TAPS else None


def _state_shape(x: Tensor, weight: Tensor) -> tuple[int, int, int]:
    return (x.shape[0], x.shape[1], weight.shape[1] - 1)


def _forward(
    lib: Any, x: Tensor, weight: Tensor, bias: Tensor | None, initial_states: Tensor | None, activation: str | None,
    return_final_states: bool, out: Any = None,
) -> Any:  # fmt: skip
    final: Tensor | None = None
    if not return_final_states:
        output = torch.empty_like(x) if out is None else out
    elif out is None:
        output, final = torch.empty_like(x), x.new_empty(_state_shape(x, weight))
    else:
        output, final = out
    along_channels = is_channels_last_1d(output)
    run, threads = choose_threads(lib.causal_conv1d, x.numel() * (1 + 2 * (activation is not None)))
    run(
        output, final, with_unit_stride(x, 1 if along_channels else 2), weight, bias, initial_states,
        activation is not None, along_channels, threads,
    )  # fmt: skip
    return output if final is None else (output, final)


def _gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial_states: Tensor | None, needs: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tensors for the gradients; those that nobody asks for are empty."""
    return (
        torch.empty_like(x),
        weight.new_empty(weight.shape if needs[1] else 0),
        weight.new_empty(0 if bias is None or not needs[2] else bias.shape),
        weight.new_empty(0 if initial_states is None or not needs[3] else initial_states.shape),
    )


def _backward(
    lib: Any, grad: Tensor, grad_final: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor | None,
    initial_states: Tensor | None, activation: str | None, return_final_states: bool, needs: list[bool],
    out: Any = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    made = _gradients(x, weight, bias, initial_states, needs) if out is None else out
    grad_x, grad_weight, grad_bias, grad_states = made
    along_channels = is_channels_last_1d(grad_x)
    unit = 1 if along_channels else 2
    later = grad_final.contiguous() if return_final_states and grad_final is not None else None
    run, threads = choose_threads(lib.causal_conv1d_backward, 4 * x.numel())
    run(
        grad_x, grad_weight if needs[1] else None, grad_bias if bias is not None and needs[2] else None,
        grad_states if initial_states is not None and needs[3] else None, with_unit_stride(grad, unit), later,
        with_unit_stride(x, unit), weight, bias, initial_states, activation is not None, along_channels, threads,
    )  # fmt: skip
    return made


def _fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial_states: Tensor | None, activation: str | None,
    return_final_states: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(x), x.new_empty(_state_shape(x, weight) if return_final_states else (0,))


def _to_torch(result: Any, x: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """The results as compilers were told of them: two, of which final states that nobody asked for are empty, and lying
    as ``_fake`` says, which torch's functions do not see to."""
    output, final = result if isinstance(result, tuple) else (result, x.new_empty(0))
    told = torch.empty_like(x)
    return output if output.stride() == told.stride() else told.copy_(output), final.contiguous()


def _composite_as_told(x: Tensor, *args: Any) -> Any:
    output, final = _to_torch(composite(x, *args), x)
    return (output, final) if args[-1] else output


FORWARD = Pass(
    f"causal_conv1d({schema_of(ARGUMENTS)}, str? op_kernel=None) -> (Tensor, Tensor)",
    _fake,
)
BACKWARD = Pass(
    f"causal_conv1d_backward(Tensor grad_output, Tensor? grad_final_states, {schema_of(ARGUMENTS)}, bool[] needs, "
    "str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor)",
    lambda grad, later, x, weight, bias, states, activation, final, needs: _gradients(x, weight, bias, states, needs),
    returns=("x", "weight", "bias", "initial_states"),
)
OP: Op = Op(
    CONTRACT,
    [
        triton_kernel(Path(__file__).parent),
        *cpp_kernels(Path(__file__).parent, forward=_forward, backward=_backward, guard=few_taps),
        *python_kernels(CONTRACT, FORWARD, BACKWARD, _composite_as_told, lambda: OP),
    ],
    op_package=__file__,
    forward=FORWARD,
    backward=BACKWARD,
    composite=composite,
    mutants=MUTANTS,
    to_torch=_to_torch,
    from_torch=lambda result, *args: result if args[5] else result[0],
)
