"""What gated_delta_rule promises: a state that forgets by a gate, and learns what it did not know of a key."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Flag, Number, check_of, errors_of
from kernelworks.contract.continuation import Continuation
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.scan.gated_delta_rule.cases import BENCH_CASES, CASES, DEVICE_BENCH_CASES, DEVICE_CASES
from kernelworks.ops.scan.gated_delta_rule.definition import (
    EPS,
    normalised_vectors,
    scale_of,
    state_errors,
    steps,
    sum_roundings,
)
from kernelworks.ops.scan.gated_delta_rule.gradient_bound import gradient_bound
from kernelworks.templates.recurrence import U32

__all__ = ["ARGUMENTS", "CONTRACT", "EPS", "MAX_DIM", "normalised_vectors", "reference", "scale_of", "state_shape"]

MAX_DIM = 256  # of a head's key and of its value
STATE_DTYPE = torch.float32
RECURRENCE_ARGUMENTS = (
    "q",
    "k",
    "v",
    "g",
    "beta",
    "initial_state",
    "use_qk_l2norm_in_kernel",
)  # by what runs over the sequence


# ---------------------------------------------------------------- arguments

ARGUMENTS: Arguments = {
    "q": T("B T H K", where=(f"1 <= K <= {MAX_DIM}",)),
    "k": T("B T H K", like="q"),
    "v": T("B T Hv V", like="q", where=(f"1 <= V <= {MAX_DIM}", "divides(H, Hv)")),
    "g": T("B T Hv", like="q", dtypes=(torch.float32,)),
    "beta": T("B T Hv", like="q", dtypes=(torch.float32,)),
    "scale": Number(least=None, finite=True, optional=True),
    "initial_state": T("B Hv K V", dtypes=(STATE_DTYPE,), optional=True),
    "output_final_state": Flag(),
    "use_qk_l2norm_in_kernel": Flag(),
}
check = check_of(
    ARGUMENTS,
    {"scale": None, "initial_state": None, "output_final_state": False, "use_qk_l2norm_in_kernel": False},
)


def state_shape(q: Any, v: Any) -> tuple[int, ...]:
    return (q.shape[0], v.shape[2], q.shape[3], v.shape[3])


# ---------------------------------------------------------------- the definition


def reference(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    run = steps(q, k, v, g, beta, initial_state, use_qk_l2norm_in_kernel)
    output = scale_of(scale, q.shape[3]) * (run.q.unsqueeze(-2) @ run.states[:, :, 1:]).squeeze(-2)
    output = output.transpose(1, 2)
    return (output, run.states[:, :, -1]) if output_final_state else (output,)


# ---------------------------------------------------------------- bounds


def _bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    q, dim = args["q"], args["q"].shape[3]
    run = steps(
        q, args["k"], args["v"], args["g"], args["beta"], args["initial_state"], args["use_qk_l2norm_in_kernel"]
    )
    errors = state_errors(args, run)
    length = run.q.norm(dim=-1, keepdim=True)
    inside = length * (errors.state[:, :, 1:] + U32 * sum_roundings(run, args) * (errors.added + errors.wrote))
    inside = abs(scale_of(args["scale"], dim)) * (inside + 2.0**-149 * (dim + 1)).transpose(1, 2) + 2.0**-149
    bounds = [rounding(outputs[0], dtype) + 1.01 * inside]
    if args["output_final_state"]:
        last = errors.state[:, :, -1].unsqueeze(-2)
        bounds.append(rounding(outputs[1], STATE_DTYPE) * bool(run.k.shape[2]) + 1.01 * last)
    return tuple(bounds)


# ---------------------------------------------------------------- cost


def _dims(request: Request) -> dict[str, int]:
    q, v = request.args["q"], request.args["v"]
    return {"T": q.shape[1], "B": q.shape[0] * v.shape[2], "K": q.shape[3], "V": v.shape[3]}


def _cost(request: Request) -> Cost:
    """A step reads the state against a key and a query, and updates it: six flop an element of it."""
    q, k, v = (request.args[name] for name in ("q", "k", "v"))
    states = 4.0 * math.prod(state_shape(q, v))
    elements = q.shape[1] * states / 4.0
    read = sum(t.nbytes for t in request.tensors)
    written = v.nbytes + (states if request.args.get("output_final_state") else 0.0)
    if request.pass_ == "backward":
        return Cost(14.0 * elements, float(v.shape[0] * v.shape[1] * v.shape[2]), read, q.nbytes + k.nbytes + v.nbytes)
    return Cost(7.0 * elements, float(v.shape[0] * v.shape[1] * v.shape[2]), read, written)


def _bucket(request: Request) -> dict[str, Any]:
    """One step is a kernel of its own kind: it waits for the state."""
    steps_ = request.args["q"].shape[1]
    return {"T": steps_} if steps_ <= 2 else {}


CONTRACT = Contract(
    name="gated_delta_rule",
    family="scan",
    formula="S_t = e^g_t S_{t-1} + k_t (beta_t (v_t - (e^g_t S_{t-1})^T k_t))^T, output_t = scale S_t^T q_t",
    source="Yang, Kautz and Hatamizadeh, Gated Delta Networks, ICLR 2025 (arXiv:2412.06464)",
    outputs=("output", "final_state"),
    arithmetic="products",
    differentiable=("q", "k", "v", "g", "beta", "initial_state"),
    check=check,
    reference=reference,
    bound=_bound,
    gradient_bound=gradient_bound,
    cost=_cost,
    dims=_dims,
    bucket=_bucket,
    cases=CASES,
    bench_cases=BENCH_CASES,
    device_cases=DEVICE_CASES,
    device_bench_cases=DEVICE_BENCH_CASES,
    errors=errors_of(ARGUMENTS),
    continuation=Continuation(
        state={"initial_state": "final_state"}, along=dict.fromkeys(("q", "k", "v", "g", "beta", "output"), 1)
    ),
    results={
        "final_state": Result(
            dtype=STATE_DTYPE, shape=lambda args: state_shape(args["q"], args["v"]), when="output_final_state"
        )
    },
)
