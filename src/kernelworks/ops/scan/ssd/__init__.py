"""Mamba-2's state space recurrence (SSD)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, triton_kernel
from kernelworks.contract import Kernel, Request
from kernelworks.contract.arguments import schema_of
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array, own_result
from kernelworks.ops.scan.ssd.contract import ARGUMENTS, CONTRACT, sequence_of, state_shape
from kernelworks.ops.scan.ssd.mutants import MUTANTS
from kernelworks.ops.scan.ssd.numbers import NumberGradients
from kernelworks.templates.linear_state.sequence import backward_cpp, by_chunks, forward_cpp, new_gradients
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["OP", "ssd"]

PACKAGE = Path(__file__).parent
MOST_STATE = 128  # elements of a column of the state with which a chunk fits the registers of a GPU


@overload
def ssd(
    x: Array, dt: Array, A: Array, B: Array, C: Array, *, D: Array | None = None, initial_states: Array | None = None,
    seq_idx: Array | None = None, return_final_states: Literal[False] = False, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def ssd(
    x: Array, dt: Array, A: Array, B: Array, C: Array, *, D: Array | None = None, initial_states: Array | None = None,
    seq_idx: Array | None = None, return_final_states: Literal[True], out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@own_result
def ssd(
    x: Array, dt: Array, A: Array, B: Array, C: Array, *, D: Array | None = None, initial_states: Array | None = None,
    seq_idx: Array | None = None, return_final_states: bool = False, out: Any = None, kernel: str | None = None,
) -> Any:  # fmt: skip
    """Mamba-2's state space recurrence, of all steps of a sequence or of the next one.

    ``S_t = e^(A dt_t) S_{t-1} + dt_t x_t B_t^T`` and ``output_t = S_t C_t + D x_t``. Names and places are those of
    mamba_ssm's ``mamba_chunk_scan_combined`` (without a chunk size) and ``selective_state_update``; one op is both.
    What is done to dt before (a bias, softplus, a limit) and to the output behind it (a gate z) are other ops.

    Args:
        x: [B, T, H, P], float32, bfloat16 or float16, any strides; P from 1 to 256.
        dt: [B, T, H], steps of time, x's dtype or float32.
        A: [H], at most 0 as models have it; x's dtype or float32.
        B, C: [B, T, G, N] of x's dtype; H a multiple of G, and head h reads group h // (H / G); N up to 256.
        D: [H], what of x is added to the output; x's dtype or float32.
        initial_states: [B, H, P, N], float32; zeros by default.
        seq_idx: [B, T], int32: sequences that lie one behind the other in a row of the batch: where the number changes
            the state is 0 again. The first one starts from ``initial_states``.
        return_final_states: whether the states behind the last step are returned.
        out: where to write: a contiguous tensor like x, or with return_final_states a pair with the states.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, T, H, P] of x's dtype, or with return_final_states ``(output, final_states)``, the states
        [B, H, P, N], float32. A value that is not finite may show in a later sequence of the same row.

    Error bound: u |output| for the last rounding, and ``|C| (e_t + 2^-24 (N + min(64, T) + 5 + |A dt|) m_t)``: a line
    of the state is off by at most ``e_t = e^(A dt) e_{t-1} + 2^-24 (5 + |A dt|) m_t``, with m_t the norms of what is
    added up (README.md).
    Cost: 5 flop an element of the state a step; reads its arguments once, and writes output and state once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Dao and Gu 2024, arXiv:2405.21060.
    """
    return OP.call(x, dt, A, B, C, D, initial_states, seq_idx, return_final_states, out, kernel)


def composite(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    initial_states: Tensor | None = None, seq_idx: Tensor | None = None, return_final_states: bool = False,
) -> Any:  # fmt: skip
    """By chunks of up to 64 steps, in float32, as its users write it."""
    wide = torch.promote_types(x.dtype, torch.float32)
    s = sequence_of(x.to(wide), dt.to(wide), A.to(wide), B.to(wide), C.to(wide), initial_states, seq_idx)
    output, state = by_chunks(s)
    if D is not None:
        output = output + D.to(wide)[:, None] * x.to(wide)
    output = output.to(x.dtype, copy=True, memory_format=torch.contiguous_format)
    return (output, state.mT.contiguous()) if return_final_states else output


def _forward(
    lib: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, initial_states: Tensor | None,
    seq_idx: Tensor | None, return_final_states: bool, out: Any = None,
) -> Any:  # fmt: skip
    output, last = out if return_final_states and out is not None else (out, None)
    if output is None:
        output = torch.empty(x.shape, dtype=x.dtype)
        last = torch.empty(state_shape(x, B), dtype=torch.float32) if return_final_states else None
    first = None if initial_states is None else initial_states.contiguous()
    forward_cpp(lib.ssd, C, B, x, dt, A, D, seq_idx, first, 1.0, True, outputs=(output, last))
    return (output, last) if return_final_states else output


def _backward(
    lib: Any, grad: Tensor, grad_states: Tensor | None, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor,
    D: Tensor | None, initial_states: Tensor | None, seq_idx: Tensor | None, return_final_states: bool,
    needs: list[bool], out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    given = (x, dt, A, B, C, D, initial_states)
    made = tuple(out) if out is not None else new_gradients(given, needs)
    numbers = NumberGradients(made, needs, given)
    d_c, d_b, d_x, d_first = numbers.tensors
    gate, factor = (torch.empty(dt.shape, dtype=torch.float32) if wanted else None for wanted in numbers.wanted_numbers)
    first = None if initial_states is None else initial_states.contiguous()
    backward_cpp(
        lib.ssd_backward, (d_c, d_b, d_x, gate, factor, d_first), grad, grad_states, C, B, x, dt, A, D, seq_idx, first,
        1.0, True,
    )  # fmt: skip
    numbers.write(grad, gate, factor)
    return made


def _cpp_kernels() -> list[Kernel]:
    """By chunks, with gradients, and step by step."""
    wide = dict.fromkeys(("avx512", "avx2"), "chunked.cpp")
    chunked = cpp_kernels(PACKAGE, forward=_forward, backward=_backward, targets=wide)
    return [
        *(dataclasses.replace(op_kernel, name=f"{op_kernel.target}_chunked") for op_kernel in chunked),
        *cpp_kernels(PACKAGE, forward=_forward),
    ]


def _small_state(request: Request) -> str | None:
    dim = request.args["B"].shape[3]
    return f"takes N up to {MOST_STATE}, got {dim}" if dim > MOST_STATE else None


def _fake_backward(
    grad: Tensor, grad_states: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any, first: Any,
    seq_idx: Any, final: bool, needs: list[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    return new_gradients((x, dt, A, B, C, D, first), needs)


def _fake(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(state_shape(x, B) if args[-1] else (0,), dtype=torch.float32)


FORWARD = Pass(f"ssd({schema_of(ARGUMENTS)}, str? op_kernel=None) -> (Tensor, Tensor)", _fake)
BACKWARD = Pass(
    f"ssd_backward(Tensor grad_output, Tensor? grad_final_states, {schema_of(ARGUMENTS)}, bool[] needs, "
    f"str? op_kernel=None) -> ({', '.join(['Tensor'] * len(CONTRACT.differentiable))})",
    _fake_backward,
    returns=CONTRACT.differentiable,
)
OP: Op = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, guard=_small_state),
        *_cpp_kernels(),
        *python_kernels(CONTRACT, FORWARD, BACKWARD, composite, lambda: OP),
    ],
    op_package=__file__,
    forward=FORWARD,
    backward=BACKWARD,
    composite=composite,
    mutants=MUTANTS,
    # torch wants a fixed number of outputs: without the states the second one is empty.
    to_torch=lambda result, x, *args: result if args[-1] else (result, x.new_empty(0, dtype=torch.float32)),
    from_torch=lambda result, x, *args: result if args[-1] else result[0],
)
