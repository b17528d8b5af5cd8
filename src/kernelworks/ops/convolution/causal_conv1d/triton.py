"""causal_conv1d on the GPU.

A program takes some channels at some positions and reads each tap's inputs anew, which come from L1. The backward makes
the gradient of each sum first, with shares of the parameters' gradients that a second kernel adds up, and then what
flows into the inputs; without an activation the first of these is what flowed in."""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.tile.column_sums import COLUMN_SUMS
from kernelworks.tile.reciprocal import reciprocal

CONFIGS = configs(__file__)
LOG2_E = tl.constexpr(1.4426950408889634)
MOST_BATCH = 65535  # CUDA's limit of the third grid dimension


@triton.jit
def _inputs(x, states, at, d, D, L, x_d, x_l, state_d, state_l, W: tl.constexpr):
    """The inputs at positions ``at`` of a line, which lie before it if they are negative; 0 outside."""
    inside = (d < D) & (at < L)
    found = tl.load(x + d * x_d + at * x_l, mask=inside & (at >= 0), other=0.0).to(tl.float32)
    if states is not None:
        before = inside & (at < 0) & (at > -W)
        found += tl.load(states + d * state_d + (at + W - 1) * state_l, mask=before, other=0.0).to(tl.float32)
    return found


@triton.jit
def _sums(
    x, states, weight, bias, at, d, D, L, x_d, x_l, state_d, state_l, weight_d, weight_w, bias_d, W: tl.constexpr
):
    total = tl.zeros([d.shape[0], at.shape[1]], tl.float32)
    if bias is not None:
        total += tl.load(bias + d * bias_d, mask=d < D, other=0.0).to(tl.float32)
    for k in range(W):
        tap = tl.load(weight + d * weight_d + k * weight_w, mask=d < D, other=0.0).to(tl.float32)
        total += tap * _inputs(x, states, at + (k - W + 1), d, D, L, x_d, x_l, state_d, state_l, W)
    return total


@triton.jit
def _place(CHANNELS: tl.constexpr, POSITIONS: tl.constexpr):
    d = tl.program_id(0).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)[:, None]
    return d, tl.program_id(1).to(tl.int64) * POSITIONS + tl.arange(0, POSITIONS)[None, :]


@triton.jit
def _forward(
    output, x, states, weight, bias, D, L, out_b, out_d, out_l, x_b, x_d, x_l, state_b, state_d, state_l, weight_d,
    weight_w, bias_d, W: tl.constexpr, SILU: tl.constexpr, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    d, at = _place(CHANNELS, POSITIONS)
    b = tl.program_id(2).to(tl.int64)
    if states is not None:
        states += b * state_b
    s = _sums(x + b * x_b, states, weight, bias, at, d, D, L, x_d, x_l, state_d, state_l, weight_d, weight_w, bias_d, W)
    if SILU:
        s = s / (1.0 + tl.exp2(s * -LOG2_E))
    tl.store(output + b * out_b + d * out_d + at * out_l, s.to(output.dtype.element_ty), mask=(d < D) & (at < L))


@triton.jit
def _final(final, x, states, D, L, x_b, x_d, x_l, state_b, state_d, state_l, W: tl.constexpr, CHANNELS: tl.constexpr,
           STATES: tl.constexpr):  # fmt: skip
    d, j = _place(CHANNELS, STATES)
    b = tl.program_id(2).to(tl.int64)
    if states is not None:
        states += b * state_b
    found = _inputs(x + b * x_b, states, j + (L - W + 1), d, D, L, x_d, x_l, state_d, state_l, W)
    place = final + (b * D + d) * (W - 1) + j
    tl.store(place, found.to(final.dtype.element_ty), mask=(d < D) & (j < W - 1))


@triton.jit
def _flows(
    flow, partial, grad, x, states, weight, bias, D, L, flow_b, flow_d, flow_l, grad_b, grad_d, grad_l, x_b, x_d, x_l,
    state_b, state_d, state_l, weight_d, weight_w, bias_d, W: tl.constexpr, SILU: tl.constexpr, CHANNELS: tl.constexpr,
    POSITIONS: tl.constexpr,
):  # fmt: skip
    """The gradient of each sum, in float32, and this program's shares of those of the taps and of the bias."""
    d, at = _place(CHANNELS, POSITIONS)
    b = tl.program_id(2).to(tl.int64)
    x += b * x_b
    if states is not None:
        states += b * state_b
    inside = (d < D) & (at < L)
    g = tl.load(grad + b * grad_b + d * grad_d + at * grad_l, mask=inside, other=0.0).to(tl.float32)
    if SILU:
        s = _sums(x, states, weight, bias, at, d, D, L, x_d, x_l, state_d, state_l, weight_d, weight_w, bias_d, W)
        e = tl.exp2(tl.abs(s) * -LOG2_E)
        r = reciprocal(1.0 + e)
        over, under = tl.where(s < 0.0, e * r, r), tl.where(s < 0.0, r, e * r)
        g = tl.where(inside, g * (over + over * under * s), 0.0)
        tl.store(flow + b * flow_b + d * flow_d + at * flow_l, g, mask=inside)
    share = b * tl.num_programs(1) + tl.program_id(1)
    for k in range(W):
        from_x = _inputs(x, states, at + (k - W + 1), d, D, L, x_d, x_l, state_d, state_l, W)
        of_tap = tl.sum(tl.where(inside, g * from_x, 0.0), 1)[:, None]
        tl.store(partial + (share * (W + 1) + k) * D + d, of_tap, mask=d < D)
    tl.store(partial + (share * (W + 1) + W) * D + d, tl.sum(g, 1)[:, None], mask=d < D)


@triton.jit
def _into_inputs(
    grad_x, grad_states, flow, later, weight, D, L, x_b, x_d, x_l, flow_b, flow_d, flow_l, later_b, later_d, later_l,
    weight_d, weight_w, W: tl.constexpr, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    d, p = _place(CHANNELS, POSITIONS)
    p = p - (W - 1)  # negative: of the states
    b = tl.program_id(2).to(tl.int64)
    total = tl.zeros([CHANNELS, POSITIONS], tl.float32)
    for k in range(W):
        at = p + (W - 1 - k)
        inside = (d < D) & (at >= 0) & (at < L)
        tap = tl.load(weight + d * weight_d + k * weight_w, mask=d < D, other=0.0).to(tl.float32)
        g = tl.load(flow + b * flow_b + d * flow_d + at * flow_l, mask=inside, other=0.0).to(tl.float32)
        total += tl.where(inside, tap * g, 0.0)
    if later is not None:
        j = p - (L - W + 1)
        there = (d < D) & (j >= 0) & (p < L)
        total += tl.load(later + b * later_b + d * later_d + j * later_l, mask=there, other=0.0).to(tl.float32)
    mask = (d < D) & (p >= 0) & (p < L)
    tl.store(grad_x + b * x_b + d * x_d + p * x_l, total.to(grad_x.dtype.element_ty), mask=mask)
    if grad_states is not None:
        place = grad_states + (b * D + d) * (W - 1) + (p + W - 1)
        tl.store(place, total.to(grad_states.dtype.element_ty), mask=(d < D) & (p < 0))


FORWARD, FINAL, FLOWS, INTO_INPUTS = Kernel(_forward), Kernel(_final), Kernel(_flows), Kernel(_into_inputs)


@functools.cache
def _at(kernel: str, W: int, L: int, channels_last: bool, dtype: torch.dtype) -> tuple[dict[str, Any], int, int]:
    """Options, and the channels and positions of a program; L is the number of positions, up to the next power of
    two."""
    chosen = CONFIGS.pick(kernel, channels_last=int(channels_last), dtype=dtype)
    elements, positions = chosen.pop("ELEMENTS"), min(L, chosen.pop("POSITIONS"))
    return {**chosen, "W": W}, elements // positions, positions


def _launches(kernel: str, launch: Kernel, x: Tensor, W: int, **fixed: Any) -> tuple[Launch, tuple[int, int, int]]:
    """The launch and its grid for tensors that lie as x does."""
    B, D, L = x.shape
    options, channels, positions = _at(kernel, W, 1 << (L - 1).bit_length(), x.stride(1) == 1, x.dtype)
    along = L + W - 1 if kernel == "into_inputs" else L
    grid = (-(-D // channels), -(-along // positions), B)
    return launch.at(CHANNELS=channels, POSITIONS=positions, **fixed, **options), grid


def _strides(t: Tensor | None, dims: int = 3) -> tuple[int, ...]:
    return (0,) * dims if t is None else t.stride()


def _parts(x: Tensor) -> range:
    return range(0, x.shape[0], MOST_BATCH)


def _of(t: Any, first: int) -> Any:
    return None if t is None else t[first : first + MOST_BATCH]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial_states: Tensor | None, activation: str | None,
    return_final_states: bool, out: Any = None,
) -> Any:  # fmt: skip
    (_, D, L), W = x.shape, weight.shape[1]
    if not return_final_states:
        output, final = torch.empty_like(x) if out is None else out, None
    else:
        output, final = (torch.empty_like(x), x.new_empty(x.shape[0], D, W - 1)) if out is None else out
    for first in _parts(x):
        to, from_, states, last = (_of(t, first) for t in (output, x, initial_states, final))
        launch, grid = _launches("forward", FORWARD, from_, W, SILU=activation is not None)
        launch(
            grid, to, from_, states, weight, bias, D, L, *to.stride(), *from_.stride(), *_strides(states),
            *weight.stride(), *_strides(bias, 1),
        )  # fmt: skip
        if last is not None and W > 1:
            FINAL.at(W=W, CHANNELS=128, STATES=triton.next_power_of_2(W - 1), num_warps=4)(
                (-(-D // 128), 1, from_.shape[0]), last, from_, states, D, L, *from_.stride(), *_strides(states)
            )
    return output if final is None else (output, final)


def backward(
    grad: Tensor, grad_final: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor | None,
    initial_states: Tensor | None, activation: str | None, return_final_states: bool, needs: list[bool],
    out: Any = None,
) -> Any:  # fmt: skip
    (B, D, L), W = x.shape, weight.shape[1]
    states_wanted = initial_states is not None and needs[3]
    made = out
    if out is None:
        made = (
            torch.empty_like(x), weight.new_empty(weight.shape if needs[1] else 0),
            weight.new_empty(D if bias is not None and needs[2] else 0),
            weight.new_empty((B, D, W - 1) if states_wanted else 0),
        )  # fmt: skip
    grad_x, grad_weight, grad_bias, grad_states = made
    if not B:
        return tuple(t.zero_() for t in made)
    later = grad_final if return_final_states and W > 1 else None
    silu = activation is not None
    flow = torch.empty_like(x, dtype=torch.float32) if silu else grad
    totals = []
    for first in _parts(x):
        of_x, of_states, to, from_, flows, states, after = (
            _of(t, first)
            for t in (grad_x, grad_states if states_wanted else None, grad, x, flow, initial_states, later)
        )
        launch, grid = _launches("flows", FLOWS, from_, W, SILU=silu)
        shares = grid[1] * grid[2]
        partial = torch.empty((shares, W + 1, D), dtype=torch.float32, device=x.device)
        if silu or needs[1] or needs[2]:
            launch(
                grid, flows, partial, to, from_, states, weight, bias, D, L, *flows.stride(), *to.stride(),
                *from_.stride(), *_strides(states), *weight.stride(), *_strides(bias, 1),
            )  # fmt: skip
            totals.append(partial)
        launch, grid = _launches("into_inputs", INTO_INPUTS, of_x, W)
        launch(
            grid, of_x, of_states, flows, after, weight, D, L, *of_x.stride(), *flows.stride(), *_strides(after),
            *weight.stride(),
        )  # fmt: skip
    if needs[1] or grad_bias.numel():
        _add_up(totals, grad_weight if needs[1] else None, grad_bias if grad_bias.numel() else None)
    return made


def _add_up(totals: list[Tensor], grad_weight: Tensor | None, grad_bias: Tensor | None) -> None:
    """The parameters' gradients: [shares, W + 1, D] of partial sums, of which the last are the bias's."""
    partial = totals[0] if len(totals) == 1 else torch.cat(totals)
    shares, taps, D = partial.shape
    summed = partial.new_empty((taps, D))
    COLUMN_SUMS.at(ROWS=32, BLOCK=32, EARLY=False, num_warps=4)(
        (-(-(taps * D) // 32), 1, 1), partial, summed, None, shares, taps * D
    )
    if grad_weight is not None:
        grad_weight.copy_(summed[:-1].T)
    if grad_bias is not None:
        grad_bias.copy_(summed[-1])
