"""What causal_conv1d_update promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Cost, Request
from kernelworks.contract.arguments import Arguments, Word, check_of, errors_of
from kernelworks.contract.cases import draw, normal
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.convolution.causal_conv1d.contract import bound as chunk_bound
from kernelworks.ops.convolution.causal_conv1d.contract import composite as chunk_composite
from kernelworks.ops.convolution.causal_conv1d.contract import reference as chunk_reference

__all__ = ["ARGUMENTS", "CONTRACT", "composite", "in_chunk", "reference"]

ARGUMENTS: Arguments = {
    "x": T("B D L or B D", where=("D >= 1",)),
    "conv_state": T("B D S", like="x"),
    "weight": T("D W", like="x", where=("1 <= W <= S + 1",)),
    "bias": T("D", like="x", optional=True),
    "activation": Word("silu", optional=True),
}
_check = check_of(ARGUMENTS)


def check(**call: Any) -> None:
    _check(**call)
    x = call["x"]
    if 0 in x.shape[2:]:
        raise ValueError(f"x must have shape [B, D, L] with L >= 1, or [B, D]; got {list(x.shape)}")
    for name in ARGUMENTS:
        if torch.is_grad_enabled() and getattr(call[name], "requires_grad", False):
            raise ValueError(f"{name} must not require grad: a state that is overwritten has no gradient; "
                             "use torch.no_grad(), or causal_conv1d")  # fmt: skip


def in_chunk(x: Tensor, conv_state: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x as a chunk [B, D, L], and of the state what its first window reads."""
    before = weight.shape[1] - 1
    return (x if x.dim() == 3 else x.unsqueeze(-1)), conv_state[..., conv_state.shape[2] - before :]


def _moved(x: Tensor, conv_state: Tensor) -> Tensor:
    chunk = x if x.dim() == 3 else x.unsqueeze(-1)
    return torch.cat((conv_state, chunk), -1)[..., chunk.shape[-1] :]


def reference(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> tuple[Tensor, ...]:
    chunk, states = in_chunk(x, conv_state, weight)
    (output,) = chunk_reference(chunk, weight, bias, states, activation, False)
    return output.reshape(x.shape), _moved(x, conv_state)


def composite(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> Tensor:  # fmt: skip
    """As transformers writes it."""
    chunk, states = in_chunk(x, conv_state, weight)
    output: Tensor = chunk_composite(chunk, weight, bias, states, activation, False)
    conv_state.copy_(_moved(x, conv_state))
    return output.reshape(x.shape)


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    x, states = in_chunk(args["x"], args["conv_state"], args["weight"])
    given = args | {"x": x, "initial_states": states}
    (off,) = chunk_bound(given, (outputs[0].reshape(x.shape),), dtype)
    return off.reshape(outputs[0].shape), torch.zeros_like(outputs[1])


def cost(request: Request) -> Cost:
    x, state, weight = request.args["x"], request.args["conv_state"], request.args["weight"]
    W, size, silu = weight.shape[1], x.dtype.itemsize, request.args.get("activation") is not None
    bias = x.shape[1] * size * (request.args.get("bias") is not None)
    read = x.nbytes + state.nbytes + weight.nbytes + bias
    return Cost((2.0 * W + 4.0 * silu) * x.numel, float(silu * x.numel), read, x.nbytes + state.nbytes)


def dims(request: Request) -> dict[str, int]:
    x, weight = request.args["x"], request.args["weight"]
    return {"B": x.shape[0], "D": x.shape[1], "L": x.shape[2] if len(x.shape) == 3 else 1, "W": weight.shape[1]}


def _make(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], S: int = 4, W: int = 4, *, kind: str = "normal",
    bias: bool = True, silu: bool = True,
) -> dict[str, Any]:  # fmt: skip
    return {
        "x": draw(kind, generator, dtype, *shape),
        "conv_state": normal(generator, dtype, *shape[:2], S),
        "weight": normal(generator, dtype, shape[1], W, scale=W**-0.5),
        "bias": normal(generator, dtype, shape[1]) if bias else None,
        "activation": "silu" if silu else None,
    }


def _case(name: str, shape: tuple[int, ...], *sizes: int, layouts: bool = False, **more: Any) -> Case:
    return Case(name, lambda g, d: _make(g, d, shape, *sizes, **more), layouts=layouts)


def _cases() -> Iterator[Case]:
    for D in (1, 15, 16, 17, 33, 257):
        yield _case(f"D={D}", (3, D), layouts=D in (17, 33), silu=D % 2 == 1)
    for L in (1, 2, 3, 4, 5, 37):  # shorter than the window, as long, longer than the state
        yield _case(f"L={L}", (2, 5, L), layouts=L in (2, 5), bias=L % 2 == 0)
    for S, W in ((0, 1), (1, 1), (1, 2), (3, 4), (5, 3), (9, 4), (2, 3)):
        for L in (1, 4):
            yield _case(f"S={S} W={W} L={L}", (2, 7, L), S, W, silu=W == 4)
    for kind in ("large_mean", "tiny", "huge", "subnormal", "zeros", "inf", "negative_inf", "nan"):
        yield _case(kind, (2, 33), kind=kind, silu=kind == "tiny")
    yield _case("one term", (1, 9), 0, 1, bias=False, silu=False)
    yield _case("no batch", (0, 4))


CONTRACT = Contract(
    name="causal_conv1d_update",
    family="convolution",
    formula="output = causal_conv1d(x, weight, bias, the last W - 1 of conv_state, activation); conv_state <- the last "
    "S of conv_state and x in a row",
    source="Gu and Dao, Mamba, 2023 (arXiv:2312.00752)",
    outputs=("output", "conv_state"),
    results={"output": Result("x", lambda args: tuple(args["x"].shape))},
    differentiable=(),
    mutates=("conv_state",),
    check=check,
    reference=reference,
    bound=bound,
    cost=cost,
    dims=dims,
    cases=tuple(_cases()),
    bench_cases=tuple(
        Case(f"B{B} D{D}", lambda g, d, s=(B, D): _make(g, d, s), dtypes=(torch.float32, torch.bfloat16))
        for B, D in ((1, 4096), (16, 4096))
    ),
    errors=errors_of(ARGUMENTS),
)
