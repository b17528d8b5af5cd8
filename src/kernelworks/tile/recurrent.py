"""Recurrent layers in Triton: the products of all inputs at once, then a launch a step, of products and cell.

An op package gives its cell as a device function of each gate's product with the input and with the state, and of the
states: ``CELL(x0, x1, x2, x3, h0, h1, h2, h3, h, c) -> (h, c)``. Gates that a cell has not repeat the first one, and a
state that it has not is h. Sums and cells are float32; each step's output is written in the call's dtype, from where
the next step's products read it, as matrix units take it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Configs, Kernel, interpreting, kernel


@kernel
def _inputs(
    x, weight, bias, out, x_step, x_batch, x_inner, w_row, w_inner, places, B, N, K,
    ROWS: tl.constexpr, UNITS: tl.constexpr, BLOCK: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """out[t B + b, n] = sum over k of x[t, b, k] weight[n, k] + bias[n], in float32."""
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    at = x + m // B * x_step + m % B * x_batch
    total = tl.zeros([ROWS, UNITS], tl.float32)
    for done in range(0, K, BLOCK):
        k = done + tl.arange(0, BLOCK)
        left = tl.load(at[:, None] + k[None, :] * x_inner, mask=(m < places)[:, None] & (k < K)[None, :], other=0.0)
        right = tl.load(
            weight + n[None, :] * w_row + k[:, None] * w_inner, mask=(k < K)[:, None] & (n < N)[None, :], other=0.0
        )
        if WIDEN:  # the interpreter takes bfloat16 numbers for integers in a product
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    tl.store(out + m[:, None] * N + n[None, :], total, mask=(m < places)[:, None] & (n < N)[None, :])


@kernel
def _gate(of_input, bias, at, unit, own, there, inside):
    """A gate's product with the input, and that with the state behind its bias."""
    given = tl.load(of_input + at, mask=inside, other=0.0)
    if bias is not None:
        own += tl.load(bias + unit, mask=there, other=0.0).to(tl.float32)[None, :]
    return given, own


@kernel
def _weights(weight, k, unit, w_row, w_inner, inside, WIDEN: tl.constexpr):
    w = tl.load(weight + unit[None, :] * w_row + k[:, None] * w_inner, mask=inside, other=0.0)
    if WIDEN:
        w = w.to(tl.float32)
    return w


@kernel
def _step(
    out, c_out, h, c, of_input, weight, bias, B, H, h_row, w_row, w_inner,
    CELL: tl.constexpr, GATES: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, BLOCK: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """ROWS sequences times UNITS units: the products of all gates with the state h (None: of zeros), then the cell. A
    second state is float32 and lies as the output does."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(1).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    inside = (row < B)[:, None] & (unit < H)[None, :]
    own0 = tl.zeros([ROWS, UNITS], tl.float32)
    own1, own2, own3 = own0, own0, own0
    state = own0
    if h is not None:
        state = tl.load(h + row[:, None] * h_row + unit[None, :], mask=inside, other=0.0).to(tl.float32)
        for done in range(0, H, BLOCK):
            k = done + tl.arange(0, BLOCK)
            left = tl.load(h + row[:, None] * h_row + k[None, :], mask=(row < B)[:, None] & (k < H)[None, :], other=0.0)
            if WIDEN:  # the interpreter takes bfloat16 numbers for integers in a product
                left = left.to(tl.float32)
            mask = (k < H)[:, None] & (unit < H)[None, :]
            own0 = tl.dot(left, _weights(weight, k, unit, w_row, w_inner, mask, WIDEN), own0, input_precision="ieee")
            if GATES > 1:
                w1 = _weights(weight, k, H + unit, w_row, w_inner, mask, WIDEN)
                own1 = tl.dot(left, w1, own1, input_precision="ieee")
                w2 = _weights(weight, k, 2 * H + unit, w_row, w_inner, mask, WIDEN)
                own2 = tl.dot(left, w2, own2, input_precision="ieee")
            if GATES > 3:
                w3 = _weights(weight, k, 3 * H + unit, w_row, w_inner, mask, WIDEN)
                own3 = tl.dot(left, w3, own3, input_precision="ieee")
    at = row[:, None] * GATES * H + unit[None, :]
    x0, own0 = _gate(of_input, bias, at, unit, own0, unit < H, inside)
    x1, x2, x3 = x0, x0, x0
    if GATES > 1:
        x1, own1 = _gate(of_input, bias, at + H, H + unit, own1, unit < H, inside)
        x2, own2 = _gate(of_input, bias, at + 2 * H, 2 * H + unit, own2, unit < H, inside)
    if GATES > 3:
        x3, own3 = _gate(of_input, bias, at + 3 * H, 3 * H + unit, own3, unit < H, inside)
    to = row[:, None] * H + unit[None, :]
    other = state
    if c_out is not None:
        other = tl.zeros([ROWS, UNITS], tl.float32)
        if c is not None:
            other = tl.load(c + to, mask=inside, other=0.0)
    made, other = CELL(x0, x1, x2, x3, own0, own1, own2, own3, state, other)
    tl.store(out + to, made, mask=inside)
    if c_out is not None:
        tl.store(c_out + to, other, mask=inside)


INPUTS, STEP = Kernel(_inputs), Kernel(_step)


def launches(cell: Any, gates: int, states: int, configs: Configs) -> Any:
    """The forward of a ``triton.py``: of a cell with so many gates and states."""

    def forward(x: Tensor, *args: Any, out: Any = None) -> tuple[Tensor, ...]:
        weight_ih, weight_hh, bias_ih, bias_hh, *first, reverse = args
        (steps, batch, inputs), (rows, units) = x.shape, weight_hh.shape
        empty = [x.new_empty((steps, batch, units)), *(x.new_empty((batch, units)) for _ in first)]
        made: tuple[Tensor, ...] = tuple(empty if out is None else out)
        bias_ih, bias_hh = (None if b is None else b.contiguous() for b in (bias_ih, bias_hh))
        widen = interpreting() and x.dtype == torch.bfloat16
        h = first[0] if first[0] is None or first[0].stride(1) == 1 else first[0].contiguous()
        c = first[1].to(torch.float32).contiguous() if states > 1 and first[1] is not None else None
        if steps and batch:
            settings = configs.pick("inputs", dtype=x.dtype)
            places = steps * batch
            of_input = torch.empty(places, rows, dtype=torch.float32, device=x.device)
            grid = (triton.cdiv(places, settings["ROWS"]), triton.cdiv(rows, settings["UNITS"]), 1)
            INPUTS.at(WIDEN=widen, **settings)(
                grid, x, weight_ih, bias_ih, of_input, *x.stride(), *weight_ih.stride(), places, batch, rows, inputs
            )
            settings = configs.pick("step", B=batch, H=units, dtype=x.dtype)
            launch = STEP.at(CELL=cell, GATES=gates, WIDEN=widen, **settings)
            grid = (triton.cdiv(batch, settings["ROWS"]), triton.cdiv(units, settings["UNITS"]), 1)
            after = torch.empty(batch, units, dtype=torch.float32, device=x.device) if states > 1 else None
            for t in reversed(range(steps)) if reverse else range(steps):
                launch(
                    grid, made[0][t], after, h, c, of_input[t * batch :], weight_hh, bias_hh, batch, units,
                    units if h is None else h.stride(0), *weight_hh.stride(),
                )  # fmt: skip
                h, c = made[0][t], after  # a program reads no other's second state: it lies where it lay
        for to, state in zip(made[1:], (h, c), strict=False):
            to.zero_() if state is None else to.copy_(state)
        return made

    return forward
