"""Attention without a softmax: a state that only writes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, triton_kernel
from kernelworks.contract import Kernel, Request
from kernelworks.contract.arguments import schema_of
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array, own_result
from kernelworks.ops.scan.linear_attention.contract import ARGUMENTS, CONTRACT, scale_of, sequence_of, state_shape
from kernelworks.ops.scan.linear_attention.mutants import MUTANTS
from kernelworks.templates.linear_state.sequence import backward_cpp, by_chunks, forward_cpp, new_gradients
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["OP", "linear_attention"]

PACKAGE = Path(__file__).parent
MOST_KEYS = 128  # elements of a key with which a chunk fits the registers of a GPU


@own_result
def linear_attention(
    q: Array, k: Array, v: Array, *, scale: float | None = None, initial_state: Array | None = None,
    output_final_state: bool = False, cu_seqlens: None = None, out: Any = None, kernel: str | None = None,
) -> tuple[Array, Array | None]:  # fmt: skip
    """Causal linear attention, of all steps of a sequence or of the next one.

    ``S_t = S_{t-1} + k_t v_t^T`` and ``output_t = scale S_t^T q_t``: a query's scores with the keys up to its own, by
    which values are added, without a softmax. Features of queries and keys (``elu(x) + 1``) are the caller's, as is a
    division by the sum of scores. Names and places are those of fla's ``chunk_linear_attn`` and
    ``fused_recurrent_linear_attn`` with ``normalize=False``; one op is both.

    Args:
        q, k: [B, T, H, K], float32, bfloat16 or float16, any strides; K from 1 to 256.
        v: [B, T, Hv, V] of q's dtype; Hv a multiple of H, and value head h reads key head h // (Hv / H); V up to 256.
        scale: what queries are multiplied by; 1 / sqrt(K) by default.
        initial_state: [B, Hv, K, V], float32; zeros by default.
        output_final_state: whether the state behind the last step is returned.
        cu_seqlens: not taken: sequences that are packed one behind the other are calls of their own.
        out: where to write: a contiguous tensor like the output, or with output_final_state a pair with the state.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``(output, final_state)``: [B, T, Hv, V] of q's dtype, and [B, Hv, K, V], float32, or None.

    Error bound: u |output| for the last rounding, and ``|scale| |q| (e_t + 2^-24 (K + min(64, T) + 2) m_t)``: a column
    of the state is off by at most ``e_t = e_{t-1} + 2^-23 m_t``, with m_t the norms of what is added up (README.md).
    Cost: 4 flop an element of the state a step; reads its arguments once, and writes output and state once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Katharopoulos et al. 2020, arXiv:2006.16236.
    """
    if cu_seqlens is not None:
        raise ValueError("cu_seqlens must be None: linear_attention takes sequences of one length; call it for each")
    made = OP.call(q, k, v, scale, initial_state, output_final_state, out, kernel)
    return made if output_final_state else (made, None)


def composite(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> Any:  # fmt: skip
    """By chunks of up to 64 steps, in float32, as its users write it."""
    wide = torch.promote_types(q.dtype, torch.float32)
    output, state = by_chunks(sequence_of(q.to(wide), k.to(wide), v.to(wide), scale, initial_state))
    output = output.to(q.dtype, copy=True, memory_format=torch.contiguous_format)
    return (output, state.contiguous()) if output_final_state else output


def _given(q: Tensor, scale: float | None, initial_state: Tensor | None) -> tuple[Any, ...]:
    first = None if initial_state is None else initial_state.contiguous()
    return None, None, None, None, first, scale_of(scale, q.shape[3]), False


def _forward(
    lib: Any, q: Tensor, k: Tensor, v: Tensor, scale: float | None, initial_state: Tensor | None,
    output_final_state: bool, out: Any = None,
) -> Any:  # fmt: skip
    output, last = out if output_final_state and out is not None else (out, None)
    if output is None:
        output = torch.empty(v.shape, dtype=v.dtype)
        last = torch.empty(state_shape(q, v), dtype=torch.float32) if output_final_state else None
    forward_cpp(lib.linear_attention, q, k, v, *_given(q, scale, initial_state), outputs=(output, last))
    return (output, last) if output_final_state else output


def _backward(
    lib: Any, grad: Tensor, grad_state: Tensor | None, q: Tensor, k: Tensor, v: Tensor, scale: float | None,
    initial_state: Tensor | None, output_final_state: bool, needs: list[bool], out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    given = (q, k, v, initial_state)
    made = tuple(out) if out is not None else new_gradients(given, needs)
    d_q, d_k, d_v, d_first = (
        to if need and t is not None else None for to, need, t in zip(made, needs, given, strict=True)
    )
    backward_cpp(
        lib.linear_attention_backward, (d_q, d_k, d_v, None, None, d_first), grad, grad_state, q, k, v,
        *_given(q, scale, initial_state),
    )  # fmt: skip
    return made


def _cpp_kernels() -> list[Kernel]:
    """By chunks, with gradients, and step by step."""
    wide = dict.fromkeys(("avx512", "avx2"), "chunked.cpp")
    chunked = cpp_kernels(PACKAGE, forward=_forward, backward=_backward, targets=wide)
    return [
        *(dataclasses.replace(op_kernel, name=f"{op_kernel.target}_chunked") for op_kernel in chunked),
        *cpp_kernels(PACKAGE, forward=_forward),
    ]


def _small_key(request: Request) -> str | None:
    dim = request.args["q"].shape[3]
    return f"takes keys of up to {MOST_KEYS} elements, got {dim}" if dim > MOST_KEYS else None


def _fake_backward(
    grad: Tensor, grad_state: Any, q: Tensor, k: Tensor, v: Tensor, scale: Any, state: Any, final: bool,
    needs: list[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    return new_gradients((q, k, v, state), needs)


def _fake(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), v.new_empty(state_shape(q, v) if args[-1] else (0,), dtype=torch.float32)


FORWARD = Pass(f"linear_attention({schema_of(ARGUMENTS)}, str? op_kernel=None) -> (Tensor, Tensor)", _fake)
BACKWARD = Pass(
    f"linear_attention_backward(Tensor grad_output, Tensor? grad_final_state, {schema_of(ARGUMENTS)}, bool[] needs, "
    f"str? op_kernel=None) -> ({', '.join(['Tensor'] * len(CONTRACT.differentiable))})",
    _fake_backward,
    returns=CONTRACT.differentiable,
)
OP: Op = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, guard=_small_key),
        *_cpp_kernels(),
        *python_kernels(CONTRACT, FORWARD, BACKWARD, composite, lambda: OP),
    ],
    op_package=__file__,
    forward=FORWARD,
    backward=BACKWARD,
    composite=composite,
    mutants=MUTANTS,
    # torch wants a fixed number of outputs: without the state the second one is empty.
    to_torch=lambda result, q, *args: result if args[-1] else (result, q.new_empty(0, dtype=torch.float32)),
    from_torch=lambda result, q, *args: result if args[-1] else result[0],
)
