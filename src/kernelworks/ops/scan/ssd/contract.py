"""What ssd promises: Mamba-2's state space recurrence, whose decay is one number a head and a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Flag, check_of, errors_of
from kernelworks.contract.cases import normal
from kernelworks.contract.continuation import Continuation
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.linear_state.sequence import MAX_DIM, Sequence, gradient_errors, output_error, run_steps
from kernelworks.templates.recurrence import U32

__all__ = ["ARGUMENTS", "CONTRACT", "begins_of", "reference", "sequence_of", "state_shape"]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

ARGUMENTS: Arguments = {
    "x": T("Z L H P", where=(f"1 <= P <= {MAX_DIM}",)),
    "dt": T("Z L H", like="x", dtypes=(F32,)),
    "A": T("H", like="x", dtypes=(F32,)),
    "B": T("Z L G N", like="x", where=(f"1 <= N <= {MAX_DIM}", "divides(G, H)")),
    "C": T("Z L G N", like="x"),
    "D": T("H", like="x", dtypes=(F32,), optional=True),
    "initial_states": T("Z H P N", dtypes=(F32,), optional=True),
    "seq_idx": T("Z L", dtypes=(torch.int32,), optional=True),
    "return_final_states": Flag(),
}
NAMES = tuple(ARGUMENTS)


def state_shape(x: Any, b: Any) -> tuple[int, ...]:
    return (x.shape[0], x.shape[2], x.shape[3], b.shape[3])


def begins_of(seq_idx: Tensor | None) -> Tensor | None:
    """Where a step belongs to another sequence than the one before it [B, T]."""
    if seq_idx is None:
        return None
    begins = torch.zeros(seq_idx.shape, dtype=torch.bool, device=seq_idx.device)
    begins[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    return begins


def sequence_of(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_states: Tensor | None, seq_idx: Tensor | None
) -> Sequence:  # fmt: skip
    first = None if initial_states is None else initial_states.mT
    return Sequence(C, B, x * dt.unsqueeze(-1), A * dt, begins_of(seq_idx), 1.0, first)


def reference(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    initial_states: Tensor | None = None, seq_idx: Tensor | None = None, return_final_states: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    output, state = run_steps(sequence_of(x, dt, A, B, C, initial_states, seq_idx))
    if D is not None:
        output = output + D[:, None] * x
    return (output, state.mT) if return_final_states else (output,)


# ---------------------------------------------------------------- bounds

OWN = 2.0  # roundings of dt x


def _given(args: dict[str, Any]) -> Sequence:
    return sequence_of(*(args[n] for n in ("x", "dt", "A", "B", "C", "initial_states", "seq_idx")))


def _bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    inside, last = output_error(_given(args), OWN)
    if args["D"] is not None:
        inside = inside + 2.0 * U32 * ((args["D"][:, None] * args["x"]).abs() + outputs[0].abs())
    bounds = [rounding(outputs[0], dtype) + 1.01 * inside]
    if args["return_final_states"]:
        bounds.append(rounding(outputs[1], F32) * bool(args["x"].shape[1]) + 1.01 * last.mT)
    return tuple(bounds)


def _gradient_bound(
    args: dict[str, Any], grad_outputs: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype,
    given: dict[str, Any],
) -> dict[str, Tensor]:  # fmt: skip
    """The chain from what is written and from gates to dt, A, x and D: products of numbers that are off, and sums."""
    found = {name: rounding(value, given[name].dtype) for name, value in gradients.items()}
    x, dt, rate = args["x"], args["dt"], args["A"].abs()
    if not x.shape[1]:
        return found
    flow, last = grad_outputs[0], grad_outputs[1].mT if len(grad_outputs) > 1 else None
    off = gradient_errors(_given(args), flow, last, OWN)
    d_u, d_g, steps = off.d_u.abs(), off.d_g.abs(), float(x.shape[0] * x.shape[1])
    inside = {"B": off.k, "C": off.q, "initial_states": off.first.mT}
    inside["x"] = dt.abs().unsqueeze(-1) * (off.u + 3.0 * U32 * d_u)
    if args["D"] is not None:
        skipped = (args["D"][:, None] * flow).abs()
        inside["x"] = inside["x"] + 3.0 * U32 * skipped
        inside["D"] = U32 * (steps * x.shape[3] + 2.0) * (flow * x).abs().sum((0, 1, 3))
    terms = (d_u * x.abs()).sum(-1)
    inside["dt"] = (off.u * x.abs()).sum(-1) + rate * off.g + U32 * ((x.shape[3] + 3.0) * terms + 4.0 * rate * d_g)
    inside["A"] = (dt.abs() * off.g).sum((0, 1)) + U32 * (steps + 3.0) * (dt.abs() * d_g).sum((0, 1))
    return {name: value + 1.01 * inside[name] + 2.0**-148 for name, value in found.items()}


# ---------------------------------------------------------------- cost


def _dims(request: Request) -> dict[str, int]:
    x, b = request.args["x"], request.args["B"]
    return {"T": x.shape[1], "B": x.shape[0] * x.shape[2], "K": b.shape[3], "V": x.shape[3]}


def _cost(request: Request) -> Cost:
    """A step forgets, updates the state and reads it: five flop an element of it, and an exponential a head."""
    x, b = request.args["x"], request.args["B"]
    states = 4.0 * math.prod(state_shape(x, b))
    flop, gates = 5.0 * x.shape[1] * states / 4.0, float(math.prod(x.shape[:3]))
    read = sum(t.nbytes for t in request.tensors)
    if request.pass_ == "backward":
        return Cost(2.5 * flop, gates, read, x.nbytes + 2 * b.nbytes + request.args["dt"].nbytes)
    return Cost(flop, gates, read, x.nbytes + (states if request.args.get("return_final_states") else 0.0))


def _bucket(request: Request) -> dict[str, Any]:
    """One step is a kernel of its own kind: it waits for the state."""
    steps = request.args["x"].shape[1]
    return {"T": steps} if steps <= 2 else {}


# ---------------------------------------------------------------- cases

Change = Callable[[dict[str, Any]], None]


def case(
    batch: int, steps: int, groups: int, heads: int, dim: int, state: int, name: str = "", *, wide: bool = True,
    skip: bool = True, first: bool = True, final: bool = True, lengths: tuple[int, ...] = (),
    change: Change | None = None, calls: tuple[int, ...] = (), **more: Any,
) -> Case:  # fmt: skip
    """``lengths``: sequences of so many steps lie one behind the other, in each row of the batch turned further."""

    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        own = F32 if wide else dtype
        args: dict[str, Any] = {
            "x": normal(generator, dtype, batch, steps, heads, dim),
            "dt": (0.01 + torch.rand(batch, steps, heads, generator=generator).pow(3)).to(own),
            "A": (-0.05 - 4.0 * torch.rand(heads, generator=generator)).to(own),
            "B": normal(generator, dtype, batch, steps, groups, state),
            "C": normal(generator, dtype, batch, steps, groups, state),
            "D": torch.randn(heads, generator=generator).to(own) if skip else None,
            "initial_states": torch.randn(batch, heads, dim, state, generator=generator) if first else None,
            "seq_idx": None,
            "return_final_states": final,
        }
        if lengths:
            whole = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[:steps]
            args["seq_idx"] = torch.stack([whole.roll(5 * b) for b in range(batch)]).to(torch.int32)
        if change is not None:
            change(args)
        return args

    without = {"D": skip, "initial_states": first, "final_states": final}
    said = [f"B={batch} T={steps} G={groups} H={heads} P={dim} N={state}", *([name] if name else [])]
    said += [f"without {n}" for n, there in without.items() if not there] + ["narrow"] * (not wide)
    said += [f"sequences of {'+'.join(map(str, lengths))}"] * bool(lengths)
    said += [f"in calls of {'+'.join(map(str, calls))}"] * bool(calls)
    return Case(", ".join(said), make, calls=calls, **more)


def _put(name: str, value: float, every: int = 1) -> Change:
    def change(args: dict[str, Any]) -> None:
        args[name][..., ::every, :] = value

    return change


def _rates(value: float) -> Change:
    return lambda args: args["A"].fill_(value)


def _cases() -> Iterator[Case]:
    for steps in (0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 130):  # around every chunk, and shorter than one
        yield case(1, steps, 1, 2, 20, 16, layouts=steps in (3, 65), gradients=steps < 70)
    for dim, state in ((1, 1), (5, 3), (15, 8), (16, 17), (64, 33), (33, 64), (65, 128)):
        yield case(2, 5, 1, 1, dim, state)
        yield case(1, 18, 2, 2, dim, state, gradients=False)
    yield case(4, 1, 8, 16, 1, 1)  # few roundings, many numbers
    yield case(2, 2, 8, 16, 1, 2)
    yield case(2, 70, 2, 6, 24, 20, wide=False, dtypes=(F32, BF16))
    yield case(0, 3, 1, 1, 4, 4)
    yield case(2, 3, 0, 0, 4, 4)
    yield case(2, 7, 2, 4, 8, 8, first=False)
    yield case(2, 7, 2, 4, 8, 8, first=False, final=False, skip=False)
    yield case(2, 0, 1, 2, 8, 8, first=False, gradients=False)
    yield case(1, 40, 1, 2, 16, 8, "no decay", change=_rates(0.0))
    yield case(1, 40, 1, 2, 16, 8, "gone at once", change=_rates(-1e6))
    yield case(1, 40, 1, 2, 16, 8, "gone each third", change=_put("dt", 300.0, 3))
    yield case(1, 40, 1, 2, 16, 8, "no steps of time", change=_put("dt", 0.0))
    # Sequences one behind the other, in a batch of several: shorter than a chunk, of one step, across two chunks.
    for lengths in ((3, 1, 1, 20, 15), (64, 6), (1,) * 40, (70,)):
        steps = sum(lengths)
        yield case(2, steps, 1, 2, 16, 8, lengths=lengths)
        yield case(3, steps, 2, 2, 5, 8, lengths=lengths, first=False, skip=False, gradients=False)
    for calls in ((20, 1, 1, 1), (1,) * 6, (33, 0, 31, 2), (1, 70), (64, 64, 1)):
        yield case(1, sum(calls), 1, 2, 20, 16, calls=calls, gradients=False, dtypes=(F32, BF16))
    yield case(2, 90, 2, 2, 16, 16, calls=(45, 44, 1), gradients=False, first=False, dtypes=(F32,))


CONTRACT = Contract(
    name="ssd",
    family="scan",
    formula="S_t = e^(A dt_t) S_{t-1} + dt_t x_t B_t^T, output_t = S_t C_t + D x_t",
    source="Dao and Gu, Transformers are SSMs, ICML 2024 (arXiv:2405.21060)",
    outputs=("output", "final_states"),
    arithmetic="products",
    differentiable=("x", "dt", "A", "B", "C", "D", "initial_states"),
    check=check_of(
        ARGUMENTS, {"D": None, "initial_states": None, "seq_idx": None, "return_final_states": False}
    ),
    reference=reference,
    bound=_bound,
    gradient_bound=_gradient_bound,
    cost=_cost,
    dims=_dims,
    bucket=_bucket,
    cases=tuple(_cases()),
    bench_cases=(
        case(1, 1024, 1, 8, 64, 128, dtypes=(F32,)), case(1, 1, 1, 24, 64, 128, dtypes=(F32, BF16)),
        case(8, 1, 1, 24, 64, 128, dtypes=(BF16,)),
    ),
    device_cases=(case(1, 300, 1, 8, 64, 128, gradients=False), case(8, 1, 1, 24, 64, 128, gradients=False),
                  case(2, 50, 2, 4, 100, 128, lengths=(20, 30))),
    device_bench_cases=(
        case(1, 8192, 1, 80, 64, 128, dtypes=(BF16,)), case(64, 1, 1, 80, 64, 128, dtypes=(BF16,)),
    ),
    errors=errors_of(ARGUMENTS),
    continuation=Continuation(
        state={"initial_states": "final_states"}, along=dict.fromkeys(("x", "dt", "B", "C", "output"), 1)
    ),
    results={
        "final_states": Result(
            dtype=F32, shape=lambda args: state_shape(args["x"], args["B"]), when="return_final_states"
        )
    },
)  # fmt: skip
