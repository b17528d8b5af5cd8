"""The experts of each token: those with the largest logits, and what each weighs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import Request
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.memory_layout import as_rows
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.routing.router_topk.contract import ARGUMENTS, CONTRACT, reference, weights_of
from kernelworks.ops.routing.router_topk.mutants import MUTANTS

__all__ = ["OP", "router_topk"]

MOST_ON_GPU = 4096  # experts, whose logits stay in registers there
NANOSECONDS, NANOSECONDS_OUT = 0.7, 25.0  # about what a logit, and an expert that is chosen, take one thread of a CPU


def router_topk(
    logits: Array, k: int, *, scoring: str = "softmax", norm_topk_prob: bool = False, scale: float = 1.0,
    out: tuple[Array, Array] | None = None, kernel: str | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """The k experts of each token with the largest logits, and what each weighs.

    ``indices = topk(logits, k)``, ``weights = scale softmax(logits)[indices]`` or ``scale sigmoid(logits[indices])``;
    with ``norm_topk_prob`` divided by their sum over the k, of sigmoids with 1e-20 beside it.

    Args:
        logits: [T, E], what the router gives of each token and expert; float32, bfloat16 or float16, any strides.
        k: how many experts a token has, from 1 to E.
        scoring: ``"softmax"`` over the experts (Mixtral, Qwen3-MoE), or ``"sigmoid"`` of each (DeepSeek-V3).
        norm_topk_prob: whether the k weights of a token are divided by their sum.
        scale: what they are multiplied by at last (DeepSeek's ``routed_scaling_factor``).
        out: where to write: a contiguous tensor of logits' dtype and a contiguous int64 tensor, [T, k] each.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``(weights, indices)``: [T, k] of logits' dtype, falling with a scale above 0, and [T, k] of int64. The choice
        goes by the logits, of which each score is a rising function: two logits that differ are told apart even where
        their scores round to the same number. Of equal logits any may be named, none twice; kernels of ours name the
        first. A NaN is above all numbers. A logit of -inf weighs 0.

    Error bound: with softmax u |weight| + 2^-24 weight (1.05 (|x - max| + their mean, weighted) + min(E, 512) + 13);
    with sigmoid (8 + k) 2^-24 weight and the rounding; scores below 2^-126 may be 0 (README.md).
    Cost: a comparison and an exponential a logit; reads logits once and writes the results once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Shazeer et al. 2017, arXiv:1701.06538; DeepSeek-V3, arXiv:2412.19437.
    """
    made: tuple[Array, Array] = OP.call(logits, k, scoring, norm_topk_prob, scale, out, kernel)
    return made


# ---------------------------------------------------------------- C++ kernels


def _forward(
    lib: Any, logits: Tensor, k: int, scoring: str, norm_topk_prob: bool, scale: float, out: Any = None
) -> tuple[Tensor, Tensor]:
    shape = (logits.shape[0], k)
    weights, indices = out or (torch.empty(shape, dtype=logits.dtype), torch.empty(shape, dtype=torch.int64))
    run, threads = choose_threads(lib.router_topk, NANOSECONDS * logits.numel() + NANOSECONDS_OUT * weights.numel())
    run(weights, indices, as_rows(logits), scoring == "sigmoid", norm_topk_prob, float(scale), threads)
    return weights, indices


def _backward(
    lib: Any, grad: Tensor, logits: Tensor, indices: Tensor, scoring: str, norm_topk_prob: bool, scale: float,
    out: Any = None,
) -> Tensor:  # fmt: skip
    grad_logits: Tensor = torch.empty(logits.shape, dtype=logits.dtype) if out is None else out
    run, threads = choose_threads(lib.router_topk_backward, NANOSECONDS * logits.numel())
    run(
        grad_logits, as_rows(grad), as_rows(logits), indices.contiguous(), scoring == "sigmoid", norm_topk_prob,
        float(scale), threads,
    )  # fmt: skip
    return grad_logits


# ---------------------------------------------------------------- torch's own functions


def _weighed(logits: Tensor, indices: Tensor, scoring: str, norm_topk_prob: bool, scale: float) -> Tensor:
    return weights_of(logits.float(), indices, scoring, norm_topk_prob, scale).to(logits.dtype)


def _composite(
    logits: Tensor, k: int, scoring: str = "softmax", norm_topk_prob: bool = False, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Of equals the first, as kernels of ours: a derivative that is made again follows their choice."""
    indices = torch.sort(logits.detach(), dim=-1, descending=True, stable=True).indices[:, :k].contiguous()
    return _weighed(logits, indices, scoring, norm_topk_prob, scale), indices


def _native(
    logits: Tensor, k: int, scoring: str = "softmax", norm_topk_prob: bool = False, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    indices = torch.topk(logits.detach(), k, -1).indices
    return _weighed(logits, indices, scoring, norm_topk_prob, scale), indices


def _torch(*args: Any, out: Any = None) -> Any:
    return into(_native(*args), out)


def _torch_backward(
    grad: Tensor, logits: Tensor, indices: Tensor, scoring: str, norm_topk_prob: bool, scale: float, out: Any = None,
    compute: torch.dtype = torch.float32,
) -> Any:  # fmt: skip
    """By the chosen experts; of functions that are differentiable again."""
    with torch.enable_grad():
        leaf = logits if logits.requires_grad else logits.detach().requires_grad_()
        weights = weights_of(leaf.to(compute), indices, scoring, norm_topk_prob, scale)
        (found,) = torch.autograd.grad(weights, leaf, grad.to(compute), create_graph=logits.requires_grad)
    return into(found, out)


def _decline_on_gpu(request: Request) -> str | None:
    experts = request.args["logits"].shape[1]
    return f"takes up to {MOST_ON_GPU} experts, got {experts}" if experts > MOST_ON_GPU else None


PACKAGE = Path(__file__).parent
OP = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, guard=_decline_on_gpu),
        *cpp_kernels(PACKAGE, forward=_forward, backward=_backward),
        python_kernel("torch", _torch, _torch_backward),
        python_kernel(
            "reference", in_float64(reference, CONTRACT.results_in_order),
            functools.partial(_torch_backward, compute=torch.float64),
        ),
    ],
    op_package=__file__,
    forward=Pass(
        f"router_topk({schema_of(ARGUMENTS)}, str? op_kernel=None) -> (Tensor, Tensor)",
        lambda logits, k, *way: (
            logits.new_empty((logits.shape[0], k)), logits.new_empty((logits.shape[0], k), dtype=torch.int64)
        ),
    ),
    backward=Pass(
        "router_topk_backward(Tensor grad_weights, Tensor logits, Tensor indices, str scoring, bool norm_topk_prob, "
        "float scale, str? op_kernel=None) -> Tensor",
        lambda grad, logits, *rest: logits.new_empty(logits.shape),
        returns=("logits",),
    ),
    composite=_composite,
    native=_native,
    mutants=MUTANTS,
)  # fmt: skip
