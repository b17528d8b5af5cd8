"""eigh on the GPU: a program keeps some matrices and their eigenvectors in registers, and turns a stage at once."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.linalg.eigh import as_batch, raise_if_failed

CONFIGS = configs(__file__)
SWEEPS = 30  # that nothing came near


@triton.jit
def _eigh(
    values, vectors, failed, matrix, batch, N, SWEEPS, SYSTEMS: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Stage k turns each pair of rows whose numbers differ in the bits of k, and their columns."""
    system = (tl.program_id(0).to(tl.int64) * SYSTEMS + tl.arange(0, SYSTEMS))[:, None, None]
    i, j = tl.arange(0, ROWS)[None, :, None], tl.arange(0, ROWS)[None, None, :]
    there = (system < batch) & (i < N) & (j < N)
    a = tl.load(matrix + system * N * N + tl.maximum(i, j) * N + tl.minimum(i, j), mask=there, other=0.0)
    v = tl.where((i == j) & (system < batch), 1.0, 0.0)
    # A power of two that brings the largest near 1, as its exponent's bits
    largest = _most(tl.abs(a))
    size = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    size = tl.minimum(tl.maximum(size, 7.888609052210118e-31), 1.2676506002282294e30)
    a = a * tl.div_rn(1.0, size)
    squares = tl.sum(tl.sum(a * a, 2, keep_dims=True), 1, keep_dims=True)
    lost = ~(squares < 1.0e38)
    least = tl.sqrt_rn(tl.where(lost, 0.0, squares)) * (5.9604644775390625e-08 / N)
    here = tl.sum(tl.where(i == j, a, 0.0), 1, keep_dims=True)  # the diagonal
    left = SWEEPS
    while left > 0:
        going = 0
        for k in range(1, ROWS):
            other = j ^ k
            places = tl.broadcast_to(other, a.shape)
            off = tl.sum(tl.where(i == other, a, 0.0), 1, keep_dims=True)
            partner = tl.broadcast_to(other, here.shape)
            # Rounding makes both triangles differ: a pair goes by the element of the lower one.
            off = tl.where(j < other, off, tl.gather(off, partner, 2))
            there_too = tl.gather(here, partner, 2)
            worth = (tl.abs(off) > least) & (~lost)
            # t of the row, whose partner's has the other sign
            ratio = (here - there_too) / tl.where(worth, 2.0 * off, 1.0)
            rises = (ratio > 0.0) | ((ratio == 0.0) & (j > other))
            t = tl.where(rises, 1.0, -1.0) / (tl.abs(ratio) + tl.sqrt_rn(1.0 + ratio * ratio))
            t = tl.where(worth, t, 0.0)
            c = tl.div_rn(1.0, tl.sqrt_rn(1.0 + t * t))
            s = t * c
            here += t * off
            a = c * a + s * tl.gather(a, places, 2)
            v = c * v + s * tl.gather(v, places, 2)
            c_down, s_down = tl.trans(c, 0, 2, 1), tl.trans(s, 0, 2, 1)
            a = c_down * a + s_down * tl.gather(a, tl.broadcast_to(i ^ k, a.shape), 1)
            a = tl.where(i == other, tl.where(worth, 0.0, off), a)
            going = tl.maximum(going, tl.max(worth.to(tl.int32)))
        left = tl.where(going > 0, left - 1, 0)
    down = tl.trans(here, 0, 2, 1)
    before = ((down < here) | ((down == here) & (i < j))) & (i < N)
    rank = tl.sum(before.to(tl.int32), 1, keep_dims=True)
    tl.store(values + system * N + rank, here * size, mask=(system < batch) & (j < N))
    tl.store(vectors + system * N * N + i * N + rank, v, mask=there)
    tl.store(failed + system, lost.to(tl.int32), mask=system < batch)


@triton.jit
def _most(x):
    return tl.max(tl.max(x, 2, keep_dims=True), 1, keep_dims=True)


EIGH = Kernel(_eigh)


@functools.cache
def _at(N: int) -> tuple[Launch, int]:
    chosen = CONFIGS.pick("eigh", dtype=torch.float32, N=N)
    rows = triton.next_power_of_2(N)
    systems = max(1, chosen.pop("NUMBERS") // (rows * rows))
    return EIGH.at(SYSTEMS=systems, ROWS=rows, **chosen), systems


def forward(A: Tensor, out: Any = None) -> tuple[Tensor, Tensor]:
    w, V = (A.new_empty(A.shape[:-1]), A.new_empty(A.shape)) if out is None else out
    if A.numel():
        given, N = as_batch(A), A.shape[-1]
        failed = torch.empty(len(given), dtype=torch.int32, device=A.device)
        launch, systems = _at(N)
        launch((triton.cdiv(len(given), systems), 1, 1), w, V, failed, given, len(given), N, SWEEPS)
        raise_if_failed(failed)
    return w, V
