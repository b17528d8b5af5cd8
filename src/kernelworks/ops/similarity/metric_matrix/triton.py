"""laplacian_kernel, linear_kernel and polynomial_kernel on the GPU: a program takes a tile of K; of a gradient,
some rows against all columns."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.similarity.metric_matrix.contract import FUNCTIONS

CONFIGS = configs(__file__)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _reach(a, b, row, column, N, M, D, scale, L1: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """q of a tile, of points times ``scale``, a power of two."""
    q = tl.zeros([BM, BN], tl.float32)
    for d in range(D):
        own = tl.load(a + row * D + d, mask=row < N, other=0.0).to(tl.float32)
        other = tl.load(b + column * D + d, mask=column < M, other=0.0).to(tl.float32)
        if L1:
            q += tl.abs((own[:, None] - other[None, :]) * scale)
        else:
            q += (own * scale)[:, None] * (other * scale)[None, :]
    return q


@triton.jit
def _exp2(t):
    """2^t. The GPU's own function gives 0 where the result is subnormal: it is asked for 2^64 times that."""
    small = t < -100.0
    k = tl.exp2(tl.where(small, t + 64.0, t))
    return tl.where(small, k * 5.421010862427522e-20, k)


@triton.jit
def _power(t, degree):
    """By squares: a product for each binary digit of the degree, and one for each that is 1."""
    made = tl.zeros_like(t) + 1.0
    left = tl.zeros([], tl.int64) + degree
    while left > 0:
        made = tl.where(left % 2 == 1, made * t, made)
        t = t * t
        left = left // 2
    return made


@triton.jit
def _forward(
    out, a, b, N, M, D, degree, scale, factor, offset, L1: tl.constexpr, LINE: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    column = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    q = _reach(a, b, row, column, N, M, D, scale, L1, BM, BN)
    if L1:
        k = _exp2(q * factor * -LOG2E)
    elif LINE:
        k = q * factor + offset
    else:
        k = _power(q * factor + offset, degree)
    inside = (row < N)[:, None] & (column < M)[None, :]
    tl.store(out + row[:, None] * M + column[None, :], k.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gradient(
    a, b, flows, down, across, grad, N, M, D, degree, scale, factor, offset, L1: tl.constexpr, LINE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """``down`` and ``across`` are how far the flows of neighbouring rows and columns lie apart."""
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    first = tl.program_id(1) * BD
    mine = tl.arange(0, BD)
    total = tl.zeros([BM, BD], tl.float32)
    for start in range(0, M, BN):
        column = start + tl.arange(0, BN).to(tl.int64)
        inside = (row < N)[:, None] & (column < M)[None, :]
        u = tl.load(flows + row[:, None] * down + column[None, :] * across, mask=inside, other=0.0).to(tl.float32)
        if L1:
            u *= _exp2(_reach(a, b, row, column, N, M, D, scale, L1, BM, BN) * factor * -LOG2E)
        elif not LINE:
            t = _reach(a, b, row, column, N, M, D, scale, L1, BM, BN) * factor + offset
            u *= _power(t, degree - 1) * (tl.zeros([], tl.int64) + degree).to(tl.float32)
        u = tl.where((column < M)[None, :], u, 0.0)
        for d in tl.static_range(BD):
            at = first + d
            other = tl.load(b + column * D + at, mask=(column < M) & (at < D), other=0.0).to(tl.float32)
            if L1:
                own = tl.load(a + row * D + at, mask=(row < N) & (at < D), other=0.0).to(tl.float32)
                apart = own[:, None] - other[None, :]
                moved = -tl.sum(u * tl.where(apart > 0.0, 1.0, tl.where(apart < 0.0, -1.0, apart)), 1)
            else:
                moved = tl.sum(u * (other * scale)[None, :], 1)
            total += tl.where((mine == d)[None, :], moved[:, None], 0.0)
    at = first + mine
    inside = (row < N)[:, None] & (at < D)[None, :]
    by = scale * factor  # of dot products the other point's scale is in the sum already
    tl.store(grad + row[:, None] * D + at[None, :], (total * by).to(grad.dtype.element_ty), mask=inside)


FORWARD, GRADIENT = Kernel(_forward), Kernel(_gradient)


@functools.cache
def _forward_at(l1: bool, line: bool, d: int) -> tuple[Launch, int, int]:
    """The launch, and the rows and columns that a program takes."""
    chosen = CONFIGS.pick("forward", D=d)
    return FORWARD.at(L1=l1, LINE=line, **chosen), chosen["BM"], chosen["BN"]


@functools.cache
def _gradient_at(l1: bool, line: bool, d: int) -> tuple[Launch, int, int]:
    chosen = CONFIGS.pick("gradient", D=d)
    taken = min(triton.next_power_of_2(d), 8)
    return GRADIENT.at(L1=l1, LINE=line, BD=taken, **chosen), chosen["BM"], taken


def _numbers(name: str, d: int, numbers: tuple[Any, ...]) -> tuple[bool, bool, tuple[int, float, float, float]]:
    """Whether distances are L1, whether the degree is 1, and what kernels take: gamma is ``factor`` times the power of
    two ``scale`` (of L1 distances) or ``scale`` squared (of dot products)."""
    degree, gamma, offset = FUNCTIONS[name].native_numbers(d, *numbers)
    l1 = name == "laplacian_kernel"
    power = math.frexp(gamma)[1] - 1
    power = power if l1 else power // 2
    return l1, degree == 1, (degree, 2.0**power, gamma / 2.0 ** (power if l1 else 2 * power), offset)


def _run(name: str, x: Tensor, y: Tensor, *numbers: Any, out: Any = None) -> Tensor:
    (n, d), m = x.shape, y.shape[0]
    made = x.new_empty(n, m) if out is None else out
    if made.numel():
        l1, line, given = _numbers(name, d, numbers)
        launch, rows, columns = _forward_at(l1, line, d)
        launch(
            (triton.cdiv(n, rows), triton.cdiv(m, columns), 1), made, x.contiguous(), y.contiguous(), n, m, d, *given
        )
    return made


def _slopes(name: str, made: Tensor, a: Tensor, b: Tensor, flows: Tensor, numbers: tuple[Any, ...]) -> None:
    if not flows.numel():
        made.zero_()
        return
    (n, d), m = a.shape, b.shape[0]
    l1, line, given = _numbers(name, d, numbers)
    launch, rows, taken = _gradient_at(l1, line, d)
    to = made if made.is_contiguous() else torch.empty(made.shape, dtype=made.dtype, device=made.device)
    launch((triton.cdiv(n, rows), triton.cdiv(d, taken), 1), a, b, flows, *flows.stride(), to, n, m, d, *given)
    if to is not made:
        made.copy_(to)


def _run_back(name: str, grad: Tensor, x: Tensor, y: Tensor, *given: Any, out: Any = None) -> tuple[Tensor, ...]:
    *numbers, needs = given
    made = out or tuple(t.new_empty(t.shape if want else 0) for t, want in zip((x, y), needs, strict=True))
    a, b = x.contiguous(), y.contiguous()
    if needs[0]:
        _slopes(name, made[0], a, b, grad, tuple(numbers))
    if needs[1]:
        _slopes(name, made[1], b, a, grad.t(), tuple(numbers))
    return tuple(made)


laplacian_kernel_forward = functools.partial(_run, "laplacian_kernel")
laplacian_kernel_backward = functools.partial(_run_back, "laplacian_kernel")
linear_kernel_forward = functools.partial(_run, "linear_kernel")
linear_kernel_backward = functools.partial(_run_back, "linear_kernel")
polynomial_kernel_forward = functools.partial(_run, "polynomial_kernel")
polynomial_kernel_backward = functools.partial(_run_back, "polynomial_kernel")
