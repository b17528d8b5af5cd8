"""Sums over all pairs of points in Triton for kernels of L1 distances and of dot products, K never stored.

An op package gives four functions: what a coordinate of a pair adds to q (of the two coordinates, each times
``inverse``), what the gradient of the first is a sum of, k and its slope of q. Numbers that k takes besides, a degree
and an offset, are handed to both. Else as ``pairwise.py``.
"""

import functools
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs

PART = tl.constexpr(2048)  # columns whose sum meets those before it; the bound knows it (templates/pairwise.py)


@triton.jit
def _reach(a, b, row, column, N, M, D, inverse, STEP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    q = tl.zeros([BM, BN], tl.float32)
    for d in range(D):
        own = tl.load(a + row * D + d, mask=row < N, other=0.0).to(tl.float32)
        other = tl.load(b + column * D + d, mask=column < M, other=0.0).to(tl.float32)
        q += STEP(own[:, None], other[None, :], inverse)
    return q


@triton.jit
def _forward(
    output, a, b, weights, length_scale, N, M, D, E, degree, offset, VALUE: tl.constexpr, STEP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    e = tl.program_id(1) * BE + tl.arange(0, BE)
    inverse = 1.0 / tl.load(length_scale).to(tl.float32)
    total = tl.zeros([BM, BE], tl.float32)
    for part in range(0, M, PART):
        sums = tl.zeros([BM, BE if BE > 1 else BN], tl.float32)
        for start in range(part, tl.minimum(part + PART, M), BN):
            column = start + tl.arange(0, BN).to(tl.int64)
            k = VALUE(_reach(a, b, row, column, N, M, D, inverse, STEP, BM, BN), degree, offset)
            # Columns beyond the last have points at 0 and no weight; a product of the two may be NaN.
            k = tl.where((column < M)[None, :], k, 0.0)
            if BE > 1:
                inside = (column < M)[:, None] & (e < E)[None, :]
                w = tl.load(weights + column[:, None] * E + e[None, :], mask=inside, other=0.0).to(tl.float32)
                sums += tl.dot(k, w, input_precision="ieee")
            else:
                w = tl.load(weights + column * E, mask=column < M, other=0.0).to(tl.float32)
                sums += k * w[None, :]
        if BE > 1:
            total += sums
        else:
            total += tl.sum(sums, 1)[:, None]
    tl.store(output + row[:, None] * E + e[None, :], total, mask=(row < N)[:, None] & (e < E)[None, :])


@triton.jit
def _gradient(
    a, b, flows, weights, length_scale, grad, stretch, N, M, D, E, degree, offset, SLOPE: tl.constexpr,
    STEP: tl.constexpr, DIRECTION: tl.constexpr, SIGN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """``SIGN`` is what dq by the length scale is, over q and the length scale, with its sign turned."""
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    first = tl.program_id(1) * BD
    mine = tl.arange(0, BD)
    inverse = 1.0 / tl.load(length_scale).to(tl.float32)
    total, stretched = tl.zeros([BM, BD], tl.float32), tl.zeros([BM], tl.float32)
    for part in range(0, M, PART):
        sums, more = tl.zeros([BM, BD], tl.float32), tl.zeros([BM], tl.float32)
        for start in range(part, tl.minimum(part + PART, M), BN):
            column = start + tl.arange(0, BN).to(tl.int64)
            q = _reach(a, b, row, column, N, M, D, inverse, STEP, BM, BN)
            flow = tl.zeros([BM, BN], tl.float32)
            for e in range(E):
                own = tl.load(flows + row * E + e, mask=row < N, other=0.0).to(tl.float32)
                other = tl.load(weights + column * E + e, mask=column < M, other=0.0).to(tl.float32)
                flow += own[:, None] * other[None, :]
            u = tl.where((column < M)[None, :], flow * SLOPE(q, degree, offset), 0.0)
            more += tl.sum(u * tl.minimum(q, 1e30), 1)  # an infinite distance has a slope of 0
            for d in tl.static_range(BD):
                at = first + d
                own = tl.load(a + row * D + at, mask=(row < N) & (at < D), other=0.0).to(tl.float32)
                other = tl.load(b + column * D + at, mask=(column < M) & (at < D), other=0.0).to(tl.float32)
                moved = tl.sum(u * DIRECTION(own[:, None], other[None, :], inverse), 1)
                sums += tl.where((mine == d)[None, :], moved[:, None], 0.0)
        total += sums
        stretched += more
    at = first + mine
    if grad is not None:
        tl.store(grad + row[:, None] * D + at[None, :], total * inverse, mask=(row < N)[:, None] & (at < D)[None, :])
    if (stretch is not None) and (first == 0):
        tl.store(stretch + row, stretched * inverse * SIGN, mask=row < N)


FORWARD, GRADIENT = Kernel(_forward), Kernel(_gradient)


class PairwiseMetric:
    """The passes of one op: the kernels with an op package's functions in them, in its configurations."""

    def __init__(
        self, op_package: str | Path, step: Any, direction: Any, value: Any, slope: Any, *, stretch: float
    ) -> None:
        self.configs, self.stretch = configs(op_package), stretch
        self.step, self.direction, self.value, self.slope = step, direction, value, slope
        self.forward_at, self.gradient_at = functools.cache(self._forward_at), functools.cache(self._gradient_at)

    def _forward_at(self, d: int, e: int) -> tuple[Launch, int, int]:
        """The launch for points and weights of this length, and the rows and weights that a program takes."""
        chosen = self.configs.pick("forward", D=d, E=e)
        taken = 1 if e == 1 else 16  # the least that a product of tiles takes
        return FORWARD.at(VALUE=self.value, STEP=self.step, BE=taken, **chosen), chosen["BM"], taken

    def _gradient_at(self, d: int, e: int) -> tuple[Launch, int, int]:
        chosen = self.configs.pick("gradient", D=d, E=e)
        taken = min(triton.next_power_of_2(d), 8)
        launch = GRADIENT.at(
            SLOPE=self.slope, STEP=self.step, DIRECTION=self.direction, SIGN=self.stretch, BD=taken,
            **chosen,
        )  # fmt: skip
        return launch, chosen["BM"], taken

    def _sums(
        self, output: Tensor, a: Tensor, b: Tensor, weights: Tensor, length_scale: Tensor, numbers: Any
    ) -> Tensor:
        if not output.numel() or not weights.numel():
            return output.zero_()
        (n, d), (m, e) = a.shape, weights.shape
        degree, offset = numbers or (1, 0.0)
        launch, rows, taken = self.forward_at(d, e)
        to = output if output.is_contiguous() else torch.empty_like(output, memory_format=torch.contiguous_format)
        tensors = (t.contiguous() for t in (a, b, weights))
        grid = (triton.cdiv(n, rows), triton.cdiv(e, taken), 1)
        launch(grid, to, *tensors, length_scale, n, m, d, e, int(degree), float(offset))
        return to if to is output else output.copy_(to)

    def _slopes(
        self, output: Tensor | None, stretch: Tensor | None, a: Tensor, b: Tensor, flows: Tensor, weights: Tensor,
        length_scale: Tensor, numbers: Any,
    ) -> None:  # fmt: skip
        if not a.numel() or not weights.numel():
            if output is not None:
                output.zero_()
            return
        (n, d), (m, e) = a.shape, weights.shape
        degree, offset = numbers or (1, 0.0)
        launch, rows, taken = self.gradient_at(d, e)
        to = output
        if output is not None and not output.is_contiguous():
            to = torch.empty_like(output, memory_format=torch.contiguous_format)
        tensors = tuple(t.contiguous() for t in (a, b, flows, weights))
        grid = (triton.cdiv(n, rows), triton.cdiv(d, taken) if output is not None else 1, 1)
        launch(grid, *tensors, length_scale, to, stretch, n, m, d, e, int(degree), float(offset))
        if output is not None and to is not None and to is not output:
            output.copy_(to)

    def forward(
        self, x: Tensor, y: Tensor, v: Tensor, length_scale: Tensor, *numbers: Any, out: Tensor | None = None
    ) -> Tensor:
        output = v.new_empty(x.shape[0], v.shape[1]) if out is None else out
        return self._sums(output, x, y, v, length_scale, numbers)

    def backward(self, grad: Tensor, *given: Any, out: Any = None) -> tuple[Tensor, ...]:
        x, y, v, length_scale, *numbers, needs = given
        made = tuple(out or (t.new_empty(t.shape if want else 0) for t, want in zip(given[:4], needs, strict=True)))
        if needs[0] or needs[3]:
            stretch = torch.zeros(x.shape[0], dtype=torch.float32, device=x.device) if needs[3] else None
            self._slopes(made[0] if needs[0] else None, stretch, x, y, grad, v, length_scale, numbers)
            if stretch is not None:
                made[3].copy_(stretch.double().sum().reshape(length_scale.shape))
        if needs[1]:
            self._slopes(made[1], None, y, x, v, grad, length_scale, numbers)
        if needs[2]:
            self._sums(made[2], y, x, grad, length_scale, numbers)
        return made
