"""What causal_conv1d promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Flag, Word, check_of, errors_of
from kernelworks.contract.cases import draw, normal
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.product import gamma

__all__ = ["ARGUMENTS", "CONTRACT", "composite", "reference"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149  # of float32's subnormals
SATURATION_LIMIT = 105.0  # beyond it e^-|s| is 0 in float32
LONGEST_CHAIN = 2048  # sums of gradients are kept in float32 over so many terms at most, then in float64
RETURNS = ("x", "weight", "bias", "initial_states")


ARGUMENTS: Arguments = {
    "x": T("B D L", where=("D >= 1", "L >= 1")),
    "weight": T("D W", like="x", where=("W >= 1",)),
    "bias": T("D", like="x", optional=True),
    "initial_states": T("B D S", like="x", optional=True, where=("S == W - 1",)),
    "activation": Word("silu", optional=True),
    "return_final_states": Flag(),
}


def padded_inputs(x: Tensor, weight: Tensor, initial_states: Tensor | None) -> Tensor:
    """x behind the states, zeros if there are none."""
    before = weight.shape[1] - 1
    return F.pad(x, (before, 0)) if initial_states is None else torch.cat((initial_states, x), -1)


def sums(x: Tensor, weight: Tensor, bias: Tensor | None, initial_states: Tensor | None) -> Tensor:
    """Each output before the activation."""
    padded, L = padded_inputs(x, weight, initial_states), x.shape[-1]
    made: Any = sum(padded[..., k : k + L] * weight[:, k : k + 1] for k in range(weight.shape[1]))
    total: Tensor = made if bias is None else made + bias[:, None]
    return total


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial_states: Tensor | None, activation: str | None,
    return_final_states: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    s = sums(x, weight, bias, initial_states)
    output = s if activation is None else s * torch.sigmoid(s)
    if not return_final_states:
        return (output,)
    return output, padded_inputs(x, weight, initial_states)[..., x.shape[-1] :]


# On a CPU with AVX512-FP16, oneDNN writes the code of a depthwise convolution of so many taps without end, if it has 16
# channels or fewer (torch 2.13: 12 taps return, 16 do not). In float32, then rounded once, it is the same sum.
MOST_TAPS_IN_FLOAT16 = 12


def _depthwise(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    taps, given = weight.unsqueeze(1), x.dtype
    if given is torch.float16 and x.device.type == "cpu" and weight.shape[1] > MOST_TAPS_IN_FLOAT16:
        x, taps, bias = x.float(), taps.float(), None if bias is None else bias.float()
    return F.conv1d(x, taps, bias, padding=padding, groups=x.shape[1]).to(given)


def composite(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial_states: Tensor | None, activation: str | None,
    return_final_states: bool,
) -> Any:  # fmt: skip
    """As transformers writes it."""
    L, padding = x.shape[-1], weight.shape[1] - 1 if initial_states is None else 0
    output = _depthwise(x if initial_states is None else torch.cat((initial_states, x), -1), weight, bias, padding)
    output = output[..., :L]
    output = output if activation is None else F.silu(output)
    return (output, padded_inputs(x, weight, initial_states)[..., L:]) if return_final_states else output


# ---------------------------------------------------------------- bounds


def _off(args: dict[str, Any], s: Tensor) -> Tensor:
    """How far a sum may be off in float32: each of W products meets at most W + 1 roundings."""
    W, bias = args["weight"].shape[1], args["bias"]
    states = None if args["initial_states"] is None else args["initial_states"].abs()
    magnitude = sums(args["x"].abs(), args["weight"].abs(), None if bias is None else bias.abs(), states)
    off: Tensor = gamma(W + 1) * magnitude + (W + 1) * SMALLEST
    return off


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    s = sums(args["x"], args["weight"], args["bias"], args["initial_states"])
    inside = _off(args, s)
    if args["activation"] is not None:
        # silu's slope is at most 1.1; a subnormal sigmoid is off by the smallest number, times |s|.
        size = s.abs().clamp(max=SATURATION_LIMIT)
        relative = 6.0 + 2.0 * size * torch.sigmoid(-s)
        inside = 1.1 * inside + U32 * relative * outputs[0].abs() + SMALLEST * (1.0 + size) + 2.0**-128 * size
    made = rounding(outputs[0], dtype) + (1.0 + UNIT_ROUNDOFF[dtype]) * inside
    return (made, *(torch.zeros_like(state) for state in outputs[1:]))  # states are copied


def _flow(args: dict[str, Any], grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of each sum, and how far it may be off."""
    if args["activation"] is None:
        return grad, torch.zeros_like(grad)
    s = sums(args["x"], args["weight"], args["bias"], args["initial_states"])
    up, down = torch.sigmoid(s), torch.sigmoid(-s)
    size = s.abs().clamp(max=SATURATION_LIMIT)
    steep = 2.0 * size
    own = U32 * ((9.0 + steep * down) * up + (14.0 + 2.0 * steep) * s.abs() * up * down) + SMALLEST * (1.0 + size)
    # The slope of silu's slope is at most 0.5.
    off = grad.abs() * (own + 0.5 * _off(args, s)) + 2.0 * SMALLEST
    return grad * up * (1.0 + s * down), off


def _through(flow: Tensor, weight: Tensor) -> Tensor:
    """What flows into the inputs behind their states: input p has tap k in output p - k."""
    L, W = flow.shape[-1], weight.shape[1]
    wide = F.pad(flow, (W - 1, W - 1))
    made = sum(wide[..., W - 1 - k : 2 * W - 2 - k + L] * weight[:, k : k + 1] for k in range(W))
    assert isinstance(made, Tensor)
    return made


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    x, weight, states = args["x"], args["weight"], args["initial_states"]
    (B, _, L), W = x.shape, weight.shape[1]
    flow, off = _flow(args, grads[0])
    into = gamma(W + 1) * _through(flow.abs(), weight.abs()) + _through(off, weight.abs()) + (W + 1) * SMALLEST
    if len(grads) > 1:  # one more addition
        into[..., L:] += U32 * (grads[1].abs() + _through(flow.abs(), weight.abs())[..., L:])
    inputs = padded_inputs(x, weight, states).abs()
    terms = min(B * L, LONGEST_CHAIN)
    of_tap = [
        ((gamma(terms + 1) * flow.abs() + off) * inputs[..., k : k + L]).sum((0, 2)) for k in range(W)
    ]  # fmt: skip
    inside = {
        "x": into[..., W - 1 :],
        "initial_states": into[..., : W - 1],
        "weight": torch.stack(of_tap, 1) + (terms + 1) * SMALLEST,
        "bias": (gamma(terms) * flow.abs() + off).sum((0, 2)),
    }
    u = UNIT_ROUNDOFF[dtype]
    # Sums of sums round to float32 once more before they round to the dtype.
    return {
        name: rounding(found, dtype) + U32 * found.abs() + (1.0 + u) * inside[name] for name, found in gradients.items()
    }


# ---------------------------------------------------------------- cost


def cost(request: Request) -> Cost:
    x, weight = request.args["x"], request.args["weight"]
    n, W, size = x.numel, weight.shape[1], x.dtype.itemsize
    silu = request.args.get("activation") is not None
    B, D, _ = x.shape
    parameters = weight.nbytes + (D * size if request.args.get("bias") is not None else 0)
    states = B * D * (W - 1) * size
    has_states = request.args.get("initial_states") is not None
    if request.pass_ == "backward":
        flop = (4.0 * W + (2.0 * W + 8.0) * silu) * n
        return Cost(flop, float(n * silu), 2 * x.nbytes + parameters + states * has_states, x.nbytes + parameters)
    written = x.nbytes + states * bool(request.args.get("return_final_states"))
    return Cost((2.0 * W + 4.0 * silu) * n, float(n * silu), x.nbytes + parameters + states * has_states, written)


def dims(request: Request) -> dict[str, int]:
    x, weight = request.args["x"], request.args["weight"]
    return {"B": x.shape[0], "D": x.shape[1], "L": x.shape[2], "W": weight.shape[1]}


def bucket(request: Request) -> dict[str, Any]:
    """Whether the channels lie side by side, and W itself: kernels have loops of their own for either."""
    x = request.args["x"]
    return {"W": request.args["weight"].shape[1], "channels_last": x.stride[1] == 1 and x.stride[2] != 1}


# ---------------------------------------------------------------- cases


def _make(
    generator: Generator, dtype: torch.dtype, B: int, D: int, L: int, W: int = 4, *, kind: str = "normal",
    bias: bool = True, silu: bool = True, states: bool = False, final: bool = False, channels_last: bool = False,
    scale: float = 1.0,
) -> dict[str, Any]:  # fmt: skip
    x = draw(kind, generator, dtype, B, D, L)
    return {
        "x": x.mT.contiguous().mT if channels_last else x,
        "weight": normal(generator, dtype, D, W, scale=scale * W**-0.5),
        "bias": normal(generator, dtype, D) if bias else None,
        "initial_states": normal(generator, dtype, B, D, W - 1) if states else None,
        "activation": "silu" if silu else None,
        "return_final_states": final,
    }


def _case(name: str, *sizes: int, layouts: bool = False, gradients: bool = True, **more: Any) -> Case:
    return Case(name, lambda g, d: _make(g, d, *sizes, **more), layouts=layouts, gradients=gradients)


KINDS = {"large_mean": True, "tiny": True, "constant": True, "zeros": True} | dict.fromkeys(
    ("huge", "subnormal", "inf", "negative_inf", "nan"), False
)


def _cases() -> Iterator[Case]:
    both = ((False, ""), (True, ", channels last"))
    # Lengths around the widest vectors and the blocks that kernels take; chunks shorter than the window.
    for L in (1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 63, 65, 67, 130, 511, 513, 1031):
        for last, text in both:
            more = {"silu": L % 2 == 1, "states": L % 3 != 0, "final": L < 6 or L == 513, "channels_last": last}
            yield _case(f"L={L}{text}", 2, 3, L, layouts=L in (3, 33) and not last, **more)
    for D in (1, 2, 15, 16, 17, 33, 65, 255, 257, 521):
        for last, text in both:
            yield _case(f"D={D}{text}", 2, D, 9, channels_last=last, silu=D % 2 == 0, states=D % 4 == 1, final=D == 17)
    for W, lengths in ((1, (3, 37)), (2, (3, 37)), (3, (2, 37)), (5, (3, 37)), (7, (3, 16)), (16, (37,)), (64, (37,))):
        for last, text in both:
            for L in lengths:
                yield _case(
                    f"W={W} L={L}{text}", 2, 5, L, W, channels_last=last, silu=W % 2 == 1, states=True, final=True
                )
    yield _case("W=65 L=70", 1, 3, 70, 65, states=True, final=True)
    for kind, gradients in KINDS.items():
        for last, text in both:
            yield _case(f"{kind}{text}", 2, 5, 41, kind=kind, channels_last=last, gradients=gradients, silu=False)
            yield _case(f"{kind}, silu{text}", 2, 5, 41, kind=kind, channels_last=last, gradients=gradients)
    for states in (False, True):
        for final in (False, True):
            text = ", states" * states + ", final" * final
            yield _case(f"no bias{text}", 2, 7, 20, bias=False, states=states, final=final, layouts=final)
            yield _case(f"no silu{text}", 2, 7, 20, silu=False, states=states, final=final)
    yield _case("one term", 1, 9, 1, 1, bias=False, silu=False)
    yield _case("one term, silu", 1, 9, 1, 1, bias=False)
    yield _case("saturated", 2, 5, 300, scale=60.0)
    yield _case("a long line", 1, 2, 5003, silu=False)
    yield _case("no batch", 0, 4, 9, states=True, final=True)


BENCH = (
    ((1, 4096, 2048), (torch.float32, torch.bfloat16), False),
    ((1, 4096, 2048), (torch.float32, torch.bfloat16), True),
    ((8, 1536, 512), (torch.float32,), False),
    ((16, 2048, 1), (torch.float32,), False),
)


def _benched(sizes: tuple[Any, ...]) -> Iterator[Case]:
    for (B, D, L), dtypes, last in sizes:
        text = f"B{B} D{D} L{L}{', channels last' if last else ''}"
        yield Case(
            text, lambda g, d, s=(B, D, L), last=last: _make(
                g, d, *s, channels_last=last, states=s[2] == 1, final=s[2] == 1
            ), dtypes=dtypes,
        )  # fmt: skip


DEVICE_BENCH = (((8, 4096, 4096), (torch.bfloat16,), True), ((8, 4096, 4096), (torch.bfloat16,), False))
DEVICE_CASES = (
    _case("D=300 L=2100", 3, 300, 2100, states=True, final=True),
    _case("D=300 L=2100, channels last", 3, 300, 2100, states=True, final=True, channels_last=True),
)


def _final_shape(args: Any) -> tuple[int, ...]:
    B, D, _ = args["x"].shape
    return (B, D, args["weight"].shape[1] - 1)


CONTRACT = Contract(
    name="causal_conv1d",
    family="convolution",
    formula="output[b, d, l] = f(bias[d] + sum_k weight[d, k] input[b, d, l + k - W + 1]), f the identity or silu; "
    "input before x is initial_states, or 0",
    source="Gu and Dao, Mamba, 2023 (arXiv:2312.00752)",
    outputs=("output", "final_states"),
    results={"final_states": Result("x", _final_shape, when="return_final_states")},
    differentiable=RETURNS,
    check=check_of(ARGUMENTS),
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    bucket=bucket,
    cases=tuple(_cases()),
    bench_cases=tuple(_benched(BENCH)),
    device_cases=DEVICE_CASES,
    device_bench_cases=tuple(_benched(DEVICE_BENCH)),
    errors=errors_of(ARGUMENTS),
)
