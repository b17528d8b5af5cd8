"""A state that forgets by a gate, and learns of each key what it did not know."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, triton_kernel, with_libraries
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import Kernel, Request
from kernelworks.contract.arguments import schema_of
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array, own_result
from kernelworks.ops.scan.gated_delta_rule.contract import ARGUMENTS, CONTRACT, scale_of, state_shape
from kernelworks.ops.scan.gated_delta_rule.mutants import MUTANTS
from kernelworks.ops.scan.gated_delta_rule.torch_kernels import composite
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["OP", "gated_delta_rule"]

PACKAGE = Path(__file__).parent
LEAST = 8  # steps that are worth the products of a chunk
MOST_KEYS = 128  # elements of a key with which a chunk fits the registers of a GPU
NANOSECONDS = 0.1  # about what an element of the state takes one thread of a CPU in a step


@own_result
def gated_delta_rule(
    q: Array, k: Array, v: Array, g: Array, beta: Array, *, scale: float | None = None,
    initial_state: Array | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: None = None, out: Any = None, kernel: str | None = None,
) -> tuple[Array, Array | None]:  # fmt: skip
    """The gated delta rule, of all steps of a sequence or of the next one.

    ``S_t = e^g_t S_{t-1} + k_t (beta_t (v_t - (e^g_t S_{t-1})^T k_t))^T`` and ``output_t = scale S_t^T q_t``: the state
    decays, the value is compared with what the state knows of the key, and a part beta of what is missing is written.
    Names and places are those of fla's ``chunk_gated_delta_rule`` and ``fused_recurrent_gated_delta_rule``; one op is
    both.

    Args:
        q, k: [B, T, H, K], float32, bfloat16 or float16, any strides; K from 1 to 256.
        v: [B, T, Hv, V] of q's dtype; Hv a multiple of H, and value head h reads key head h // (Hv / H); V up to 256.
        g: [B, T, Hv], the logarithm of the decay, at most 0 as models have it; q's dtype or float32.
        beta: [B, T, Hv], q's dtype or float32.
        scale: what queries are multiplied by; 1 / sqrt(K) by default.
        initial_state: [B, Hv, K, V], float32; zeros by default.
        output_final_state: whether the state behind the last step is returned.
        use_qk_l2norm_in_kernel: whether keys and queries are divided by sqrt(|k|^2 + 1e-6) first.
        cu_seqlens: not taken: sequences that are packed one behind the other are calls of their own.
        out: where to write: a contiguous tensor like the output, or with output_final_state a pair with the state.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``(output, final_state)``: [B, T, Hv, V] of q's dtype, and [B, Hv, K, V], float32, or None.

    Error bound: u |output| for the last rounding, and the error of the state read by the query; a column of the state
    is off by at most ``e_t = e^g_t max(1, |1 - beta |k|^2|) e_{t-1} + l_t``, with l_t what a step rounds in float32
    (README.md). That of the gradients runs the other way, by the same matrices.
    Cost: 7 flop an element of the state a step; reads its arguments once, and writes output and state once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Yang, Kautz and Hatamizadeh 2025, arXiv:2412.06464.
    """
    if cu_seqlens is not None:
        raise ValueError("cu_seqlens must be None: gated_delta_rule takes sequences of one length; call it for each")
    made = OP.call(
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, out, kernel
    )  # fmt: skip
    return made if output_final_state else (made, None)


def _flat(x: Tensor) -> Tensor:
    """With unit stride in the last dimension, which is all that kernels ask."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _forward(
    lib: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None,
    initial_state: Tensor | None, output_final_state: bool, use_qk_l2norm_in_kernel: bool, out: Any = None,
) -> Any:  # fmt: skip
    output, last = out if output_final_state and out is not None else (out, None)
    if output is None:
        output = torch.empty(v.shape, dtype=v.dtype)
        last = torch.empty(state_shape(q, v), dtype=torch.float32) if output_final_state else None
    first = None if initial_state is None else initial_state.contiguous()
    kernel, threads = choose_threads(
        lib.gated_delta_rule, NANOSECONDS * (q.shape[1] + 4) * math.prod(state_shape(q, v))
    )  # fmt: skip
    kernel(
        output, last, _flat(q), _flat(k), _flat(v), g, beta, first, scale_of(scale, q.shape[3]),
        use_qk_l2norm_in_kernel, threads,
    )  # fmt: skip
    return (output, last) if output_final_state else output


def new_gradients(given: tuple[Tensor | None, ...], needs: list[bool]) -> tuple[Tensor, ...]:
    """Room for the gradients that are wanted of tensors that are given; empty for others."""
    some = next(t for t in given if t is not None)
    return tuple(
        t.new_empty(t.shape) if t is not None and need else some.new_empty(0)
        for t, need in zip(given, needs, strict=True)
    )


def _few_steps(request: Request) -> str | None:
    steps = request.args["q"].shape[1]
    return f"takes {LEAST} steps or more at once, got {steps}" if steps < LEAST else None


def _small_key(request: Request) -> str | None:
    dim = request.args["q"].shape[3]
    return f"takes keys of up to {MOST_KEYS} elements, got {dim}" if dim > MOST_KEYS else None


def _small_chunk(request: Request) -> str | None:
    return _small_key(request) or _few_steps(request)


def _backward(
    forward_lib: Any, lib: Any, grad: Tensor, grad_state: Tensor | None, q: Tensor, k: Tensor, v: Tensor, g: Tensor,
    beta: Tensor, scale: float | None, initial_state: Tensor | None, output_final_state: bool,
    use_qk_l2norm_in_kernel: bool, needs: list[bool], out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    given = (q, k, v, g, beta, initial_state)
    made = out if out is not None else new_gradients(given, needs)
    first, last = (None if t is None else t.contiguous() for t in (initial_state, grad_state))
    kernel, threads = choose_threads(
        lib.gated_delta_rule_backward, 4 * NANOSECONDS * (q.shape[1] + 4) * math.prod(state_shape(q, v))
    )  # fmt: skip
    kernel(
        *(to if need and t is not None else None for to, need, t in zip(made, needs, given, strict=True)), _flat(grad),
        last, _flat(q), _flat(k), _flat(v), g, beta, first, scale_of(scale, q.shape[3]), use_qk_l2norm_in_kernel,
        threads,
    )  # fmt: skip
    return tuple(made)


def _cpp_kernels() -> list[Kernel]:
    """By chunks, the same with gradients, and step by step."""
    wide = ("avx512", "avx2")
    chunked = cpp_kernels(PACKAGE, forward=_forward, targets=dict.fromkeys(wide, "chunked.cpp"), guard=_few_steps)
    both = cpp_kernels(PACKAGE, forward=_forward, backward=_backward, targets=dict.fromkeys(wide, "chunked.cpp"))
    sources = (PACKAGE / "chunked.cpp", PACKAGE / "backward.cpp")
    return [
        *(dataclasses.replace(op_kernel, name=f"{op_kernel.target}_chunked") for op_kernel in chunked),
        *cpp_kernels(PACKAGE, forward=_forward),
        *(
            dataclasses.replace(
                with_libraries(op_kernel, sources, forward=_forward, backward=_backward, first=1),
                name=f"{op_kernel.target}_backward",
            )
            for op_kernel in both
        ),
    ]


def _fake_backward(
    grad: Tensor, grad_state: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: Any, state: Any,
    final: bool, normal: bool, needs: list[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    return new_gradients((q, k, v, g, beta, state), needs)


def _fake(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    state = state_shape(q, v) if args[-2] else (0,)
    return v.new_empty(v.shape), v.new_empty(state, dtype=torch.float32)


FORWARD = Pass(f"gated_delta_rule({schema_of(ARGUMENTS)}, str? op_kernel=None) -> (Tensor, Tensor)", _fake)
BACKWARD = Pass(
    f"gated_delta_rule_backward(Tensor grad_output, Tensor? grad_final_state, {schema_of(ARGUMENTS)}, bool[] needs, "
    f"str? op_kernel=None) -> ({', '.join(['Tensor'] * len(CONTRACT.differentiable))})",
    _fake_backward,
    returns=CONTRACT.differentiable,
)
OP: Op = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, guard=_small_chunk, passes=("forward",), name="triton_chunked", module="triton_chunked"),
        triton_kernel(PACKAGE, passes=("forward",)),
        triton_kernel(PACKAGE, guard=_small_key, name="triton_backward", module="triton_backward"),
        *_cpp_kernels(),
        *python_kernels(CONTRACT, FORWARD, BACKWARD, composite, lambda: OP),
    ],
    op_package=__file__,
    forward=FORWARD,
    backward=BACKWARD,
    composite=composite,
    mutants=MUTANTS,
    # torch wants a fixed number of outputs: without the state the second one is empty.
    to_torch=lambda result, q, *args: result if args[-2] else (result, q.new_empty(0, dtype=torch.float32)),
    from_torch=lambda result, q, *args: result if args[-2] else result[0],
)
