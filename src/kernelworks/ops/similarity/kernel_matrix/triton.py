"""kernel_matrix on the GPU: a program takes a tile of K; of a gradient, some rows against all columns."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.similarity.kernel_matrix.contract import FUNCTIONS

CONFIGS = configs(__file__)
LOG2E = tl.constexpr(1.4426950408889634)
FUNCTION_NAMES = tuple(FUNCTIONS)


@triton.jit
def _distances(a, b, row, column, N, M, D, inverse, BM: tl.constexpr, BN: tl.constexpr):
    """The squared distances of a tile, in length scales."""
    q = tl.zeros([BM, BN], tl.float32)
    for d in range(D):
        own = tl.load(a + row * D + d, mask=row < N, other=0.0).to(tl.float32)
        other = tl.load(b + column * D + d, mask=column < M, other=0.0).to(tl.float32)
        apart = (own[:, None] - other[None, :]) * inverse
        q += apart * apart
    return q


@triton.jit
def _exp2(t):
    """2^t. The GPU's own function gives 0 where the result is subnormal: it is asked for 2^64 times that."""
    small = t < -100.0
    k = tl.exp2(tl.where(small, t + 64.0, t))
    return tl.where(small, k * 5.421010862427522e-20, k)


@triton.jit
def _value(q, WHICH: tl.constexpr):
    """WHICH: 0 is rbf, 1 to 3 the Matern functions of order 1/2, 3/2 and 5/2."""
    if WHICH == 0:
        k = _exp2(q * (-0.5 * LOG2E))
    elif WHICH == 1:
        k = _exp2(tl.sqrt_rn(q) * -LOG2E)
    elif WHICH == 2:
        z = tl.sqrt_rn(3.0 * q)
        k = (1.0 + tl.where(z > 1e15, 0.0, z)) * _exp2(z * -LOG2E)  # an infinite distance has a k of 0
    else:
        z = tl.sqrt_rn(5.0 * q)
        some = tl.where(z > 1e15, 0.0, z)
        k = (1.0 + some + some * some * 0.3333333333333333) * _exp2(z * -LOG2E)
    return k


@triton.jit
def _slope(q, WHICH: tl.constexpr):
    if WHICH == 0:
        slope = _exp2(q * (-0.5 * LOG2E))
    elif WHICH == 1:
        z = tl.sqrt_rn(q)
        slope = tl.where(z == 0.0, 0.0, _exp2(z * -LOG2E) / z)
    elif WHICH == 2:
        slope = 3.0 * _exp2(tl.sqrt_rn(3.0 * q) * -LOG2E)
    else:
        z = tl.sqrt_rn(5.0 * q)
        slope = (1.0 + tl.where(z > 1e15, 0.0, z)) * (_exp2(z * -LOG2E) * 1.6666666666666667)
    return slope


@triton.jit
def _forward(out, a, b, length_scale, N, M, D, WHICH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    column = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    inverse = 1.0 / tl.load(length_scale).to(tl.float32)
    k = _value(_distances(a, b, row, column, N, M, D, inverse, BM, BN), WHICH)
    inside = (row < N)[:, None] & (column < M)[None, :]
    tl.store(out + row[:, None] * M + column[None, :], k.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gradient(
    a, b, flows, down, across, length_scale, grad, stretch, N, M, D, WHICH: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """``down`` and ``across`` are how far the flows of neighbouring rows and columns lie apart."""
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    first = tl.program_id(1) * BD
    mine = tl.arange(0, BD)
    inverse = 1.0 / tl.load(length_scale).to(tl.float32)
    total, stretched = tl.zeros([BM, BD], tl.float32), tl.zeros([BM], tl.float32)
    for start in range(0, M, BN):
        column = start + tl.arange(0, BN).to(tl.int64)
        q = _distances(a, b, row, column, N, M, D, inverse, BM, BN)
        inside = (row < N)[:, None] & (column < M)[None, :]
        flow = tl.load(flows + row[:, None] * down + column[None, :] * across, mask=inside, other=0.0).to(tl.float32)
        u = tl.where((column < M)[None, :], flow * _slope(q, WHICH), 0.0)
        stretched += tl.sum(u * tl.minimum(q, 1e30), 1)  # an infinite distance has a slope of 0
        for d in tl.static_range(BD):
            at = first + d
            own = tl.load(a + row * D + at, mask=(row < N) & (at < D), other=0.0).to(tl.float32)
            other = tl.load(b + column * D + at, mask=(column < M) & (at < D), other=0.0).to(tl.float32)
            moved = tl.sum(u * ((own[:, None] - other[None, :]) * inverse), 1)
            total += tl.where((mine == d)[None, :], moved[:, None], 0.0)
    at = first + mine
    if grad is not None:
        inside = (row < N)[:, None] & (at < D)[None, :]
        tl.store(grad + row[:, None] * D + at[None, :], (-total * inverse).to(grad.dtype.element_ty), mask=inside)
    if (stretch is not None) and (first == 0):
        tl.store(stretch + row, stretched * inverse, mask=row < N)


FORWARD, GRADIENT = Kernel(_forward), Kernel(_gradient)


@functools.cache
def _forward_at(which: int, d: int) -> tuple[Launch, int, int]:
    """The launch, and the rows and columns that a program takes."""
    chosen = CONFIGS.pick("forward", D=d)
    return FORWARD.at(WHICH=which, **chosen), chosen["BM"], chosen["BN"]


@functools.cache
def _gradient_at(which: int, d: int) -> tuple[Launch, int, int]:
    chosen = CONFIGS.pick("gradient", D=d)
    taken = min(triton.next_power_of_2(d), 8)
    return GRADIENT.at(WHICH=which, BD=taken, **chosen), chosen["BM"], taken


def forward(x: Tensor, y: Tensor, length_scale: Tensor, metric: str, out: Any = None) -> Tensor:
    (n, d), m = x.shape, y.shape[0]
    made = x.new_empty(n, m) if out is None else out
    if made.numel():
        launch, rows, columns = _forward_at(FUNCTION_NAMES.index(metric), d)
        grid = (triton.cdiv(n, rows), triton.cdiv(m, columns), 1)
        launch(grid, made, x.contiguous(), y.contiguous(), length_scale, n, m, d)
    return made


def _slopes(
    grad: Tensor | None, stretch: Tensor | None, a: Tensor, b: Tensor, flows: Tensor, length_scale: Tensor, which: int
) -> None:
    if not flows.numel():
        for made in (grad, stretch):
            if made is not None:
                made.zero_()
        return
    (n, d), m = a.shape, b.shape[0]
    launch, rows, taken = _gradient_at(which, d)
    grid = (triton.cdiv(n, rows), triton.cdiv(d, taken) if grad is not None else 1, 1)
    launch(grid, a, b, flows, *flows.stride(), length_scale, grad, stretch, n, m, d)


def backward(
    grad: Tensor, x: Tensor, y: Tensor, length_scale: Tensor, metric: str, needs: list[bool], out: Any = None
) -> tuple[Tensor, ...]:
    inputs, which = (x, y, length_scale), FUNCTION_NAMES.index(metric)
    made = out or tuple(t.new_empty(t.shape if want else 0) for t, want in zip(inputs, needs, strict=True))
    a, b = x.contiguous(), y.contiguous()
    if needs[0] or needs[2]:
        stretch = torch.zeros(x.shape[0], dtype=torch.float32, device=x.device) if needs[2] else None
        _slopes(made[0] if needs[0] else None, stretch, a, b, grad, length_scale, which)
        if stretch is not None:
            made[2].copy_(stretch.double().sum().reshape(length_scale.shape))
    if needs[1]:
        _slopes(made[1], None, b, a, grad.t(), length_scale, which)
    return tuple(made)
