"""What linear_attention promises: attention without a softmax, whose sum over keys is a state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Flag, Number, check_of, errors_of
from kernelworks.contract.cases import draw, normal
from kernelworks.contract.continuation import Continuation
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.linear_state.sequence import MAX_DIM, Sequence, gradient_errors, output_error, run_steps

__all__ = ["ARGUMENTS", "CONTRACT", "reference", "scale_of", "sequence_of", "state_shape"]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

ARGUMENTS: Arguments = {
    "q": T("B T H K", where=(f"1 <= K <= {MAX_DIM}",)),
    "k": T("B T H K", like="q"),
    "v": T("B T Hv V", like="q", where=(f"1 <= V <= {MAX_DIM}", "divides(H, Hv)")),
    "scale": Number(least=None, finite=True, optional=True),
    "initial_state": T("B Hv K V", dtypes=(F32,), optional=True),
    "output_final_state": Flag(),
}


def scale_of(scale: float | None, dim: int) -> float:
    return float(dim**-0.5 if scale is None else scale)


def state_shape(q: Any, v: Any) -> tuple[int, ...]:
    return (q.shape[0], v.shape[2], q.shape[3], v.shape[3])


def sequence_of(q: Tensor, k: Tensor, v: Tensor, scale: float | None, initial_state: Tensor | None) -> Sequence:
    return Sequence(q, k, v, None, None, scale_of(scale, q.shape[3]), initial_state)


def reference(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    output, state = run_steps(sequence_of(q, k, v, scale, initial_state))
    return (output, state) if output_final_state else (output,)


def _given(args: dict[str, Any]) -> Sequence:
    return sequence_of(*(args[name] for name in ("q", "k", "v", "scale", "initial_state")))


def _bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    inside, last = output_error(_given(args), 0.0)
    bounds = [rounding(outputs[0], dtype) + 1.01 * inside]
    if args["output_final_state"]:
        bounds.append(rounding(outputs[1], F32) * bool(args["q"].shape[1]) + 1.01 * last)
    return tuple(bounds)


def _gradient_bound(
    args: dict[str, Any], grad_outputs: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype,
    given: dict[str, Any],
) -> dict[str, Tensor]:  # fmt: skip
    found = {name: rounding(value, given[name].dtype) for name, value in gradients.items()}
    if not args["q"].shape[1]:
        return found
    off = gradient_errors(_given(args), grad_outputs[0], grad_outputs[1] if len(grad_outputs) > 1 else None, 0.0)
    inside = {"q": off.q, "k": off.k, "v": off.u, "initial_state": off.first}
    return {name: value + 1.01 * inside[name] for name, value in found.items()}


# ---------------------------------------------------------------- cost


def _dims(request: Request) -> dict[str, int]:
    q, v = request.args["q"], request.args["v"]
    return {"T": q.shape[1], "B": q.shape[0] * v.shape[2], "K": q.shape[3], "V": v.shape[3]}


def _cost(request: Request) -> Cost:
    """A step updates the state and reads it: four flop an element of it."""
    q, k, v = (request.args[name] for name in ("q", "k", "v"))
    states = 4.0 * math.prod(state_shape(q, v))
    flop = 4.0 * q.shape[1] * states / 4.0
    read = sum(t.nbytes for t in request.tensors)
    if request.pass_ == "backward":
        return Cost(2.5 * flop, 0.0, read, q.nbytes + k.nbytes + v.nbytes)
    return Cost(flop, 0.0, read, v.nbytes + (states if request.args.get("output_final_state") else 0.0))


def _bucket(request: Request) -> dict[str, Any]:
    """One step is a kernel of its own kind: it waits for the state."""
    steps = request.args["q"].shape[1]
    return {"T": steps} if steps <= 2 else {}


# ---------------------------------------------------------------- cases


def case(
    batch: int, steps: int, heads: int, value_heads: int, dim: int, value_dim: int, name: str = "", *,
    kind: str = "normal", state: bool = True, final: bool = True, scale: float | None = None,
    change: Callable[[dict[str, Any]], None] | None = None, calls: tuple[int, ...] = (), **more: Any,
) -> Case:  # fmt: skip
    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        args = {
            "q": normal(generator, dtype, batch, steps, heads, dim),
            "k": draw(kind, generator, dtype, batch, steps, heads, dim),
            "v": draw(kind, generator, dtype, batch, steps, value_heads, value_dim),
            "scale": scale,
            "initial_state": torch.randn(batch, value_heads, dim, value_dim, generator=generator) if state else None,
            "output_final_state": final,
        }
        if change is not None:
            change(args)
        return args

    options = {"state": state, "final": final}
    said = [f"B={batch} T={steps} H={heads}/{value_heads} K={dim} V={value_dim}", *([kind] if kind != "normal" else [])]
    said += [name] * bool(name) + [f"without {n}" for n, there in options.items() if not there]
    said += [f"scale={scale}"] * (scale is not None) + [f"in calls of {'+'.join(map(str, calls))}"] * bool(calls)
    return Case(", ".join(said), make, calls=calls, **more)


def _opposite(args: dict[str, Any]) -> None:
    """Keys that are the same or opposite: what a step writes takes off what the one before it wrote."""
    args["k"][:, 1:] = args["k"][:, :1]
    args["k"][:, 1::2] *= -1.0


def _cases() -> Iterator[Case]:
    for steps in (0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 130):  # around every chunk, and shorter than one
        yield case(1, steps, 1, 2, 16, 20, layouts=steps in (3, 65), gradients=steps < 70)
    for dim, value_dim in ((1, 1), (3, 5), (8, 15), (17, 16), (33, 64), (64, 33), (128, 65)):
        yield case(2, 5, 1, 1, dim, value_dim)
        yield case(1, 18, 2, 2, dim, value_dim, gradients=False)
    yield case(4, 1, 8, 16, 1, 1)  # few roundings, many numbers
    yield case(2, 2, 8, 16, 2, 1)
    yield case(2, 70, 2, 6, 20, 24, dtypes=(F32, BF16))
    yield case(0, 3, 1, 1, 4, 4)
    yield case(2, 3, 0, 0, 4, 4)
    yield case(2, 7, 2, 4, 8, 8, state=False)
    yield case(2, 7, 2, 4, 8, 8, state=False, final=False)
    yield case(2, 0, 1, 2, 8, 8, state=False, gradients=False)
    for scale in (0.0, -1.5, 1.0):
        yield case(1, 9, 1, 1, 8, 8, scale=scale, final=scale != 0.0)
    yield case(1, 70, 1, 1, 8, 8, "opposite keys", change=_opposite)
    for kind in ("large_mean", "tiny", "zeros"):
        yield case(1, 20, 1, 2, 8, 20, kind=kind)
    for calls in ((20, 1, 1, 1), (1,) * 6, (33, 0, 31, 2), (1, 70), (64, 64, 1)):
        yield case(1, sum(calls), 1, 2, 16, 20, calls=calls, gradients=False, dtypes=(F32, BF16))
    yield case(2, 90, 2, 2, 16, 16, calls=(45, 44, 1), gradients=False, state=False, dtypes=(F32,))


CONTRACT = Contract(
    name="linear_attention",
    family="scan",
    formula="S_t = S_{t-1} + k_t v_t^T, output_t = scale S_t^T q_t",
    source="Katharopoulos et al., Transformers are RNNs, ICML 2020 (arXiv:2006.16236)",
    outputs=("output", "final_state"),
    arithmetic="products",
    differentiable=("q", "k", "v", "initial_state"),
    check=check_of(ARGUMENTS, {"scale": None, "initial_state": None, "output_final_state": False}),
    reference=reference,
    bound=_bound,
    gradient_bound=_gradient_bound,
    cost=_cost,
    dims=_dims,
    bucket=_bucket,
    cases=tuple(_cases()),
    bench_cases=(
        case(1, 1024, 8, 8, 64, 64, dtypes=(F32,)), case(1, 1, 32, 32, 128, 128, dtypes=(F32, BF16)),
        case(8, 1, 32, 32, 128, 128, dtypes=(BF16,)),
    ),
    device_cases=(case(1, 300, 4, 8, 128, 128, gradients=False), case(8, 1, 16, 32, 128, 128, gradients=False),
                  case(2, 50, 2, 4, 128, 100)),
    device_bench_cases=(
        case(1, 8192, 16, 16, 128, 128, dtypes=(BF16,)), case(64, 1, 32, 32, 128, 128, dtypes=(BF16,)),
    ),
    errors=errors_of(ARGUMENTS),
    continuation=Continuation(
        state={"initial_state": "final_state"}, along=dict.fromkeys(("q", "k", "v", "output"), 1)
    ),
    results={
        "final_state": Result(
            dtype=F32, shape=lambda args: state_shape(args["q"], args["v"]), when="output_final_state"
        )
    },
)  # fmt: skip
