"""layer_norm on the GPU: rows held in registers, so that each tensor is read once and written once.

A program takes tiles of ROWS rows, one after the other. The backward keeps its shares of the gradients of weight and
bias in registers over all its rows; a second kernel adds the shares.

The sums of a row and of its squares are taken in one round. That is exact enough while the mean is no more than the
spread; other rows are centred first, and where that is not enough either (a mean that dwarfs the spread, squares that
leave float32) they are scaled by a power of two and centred on the element nearest their mean.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents

from kernelworks.build.triton import Kernel, Launch, configs, interpreting, multiprocessors
from kernelworks.contract.memory_layout import as_rows
from kernelworks.tile.column_sums import COLUMN_SUMS
from kernelworks.tile.row_chunks import (  # fmt: skip
    appended,
    load_row,
    nearer,
    power_of_two,
    prefetch_row,
    sums2,
    sums4,
    unknown_zero,
    wide,
)

CONFIGS = configs(__file__)

# Variances outside have overflowed or lost bits in float32.
LEAST = tl.constexpr(2.0**-90)
MOST = tl.constexpr(2.0**100)
SMALLEST = tl.constexpr(2.0**-126)

SECTOR = 32  # bytes that L2 fetches at once
LONGEST_SUM = 64  # tiles that one program adds up in float32: what the bound of the gradients leaves room for


@triton.jit
def _moments(
    p, scale, centre, shift, zero, N,
    ROWS: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, WHOLE: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """The means of d and of d^2, d = x scale - centre - shift."""
    cols = tl.arange(0, CHUNK)[None, :]
    sums = tl.zeros([ROWS, CHUNK], tl.float32)
    squares = tl.zeros([ROWS, CHUNK], tl.float32)
    for k in tl.static_range(CHUNKS):
        d = (wide(p[k], zero, ASSEMBLY) * scale[:, None] - centre[:, None]) - shift[:, None]
        if not WHOLE:
            d = tl.where(k * CHUNK + cols < N, d, 0.0)
        sums += d
        squares += d * d
    mean, square = sums2(sums, squares, 1, ASSEMBLY)
    return mean / N, square / N


@triton.jit
def _pivot(
    p, square, eps, N,
    ROWS: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, WHOLE: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """A power of two that brings x near 1, and the element nearest the mean, scaled by it.

    Differences from that element are exact where x lies close together.
    """
    cols = tl.arange(0, CHUNK)[None, :]
    zero = unknown_zero(square, ASSEMBLY)
    largest = tl.zeros([ROWS, CHUNK], tl.float32)
    for k in tl.static_range(CHUNKS):
        largest = tl.maximum(largest, tl.abs(wide(p[k], zero, ASSEMBLY)))
    scale = power_of_two(tl.max(largest, 1), eps)
    zero = unknown_zero(scale * square, ASSEMBLY)
    sums = tl.zeros([ROWS, CHUNK], tl.float32)
    for k in tl.static_range(CHUNKS):
        sums += wide(p[k], zero, ASSEMBLY) * scale[:, None]
    mean = tl.sum(sums, 1) / N
    zero = unknown_zero(scale * square * scale, ASSEMBLY)
    nearest = tl.full([ROWS, CHUNK], float("inf"), tl.float32)
    found = tl.zeros([ROWS, CHUNK], tl.float32)
    for k in tl.static_range(CHUNKS):
        scaled = wide(p[k], zero, ASSEMBLY) * scale[:, None]
        distance = tl.abs(scaled - mean[:, None])
        closer = distance < nearest
        if not WHOLE:
            closer = closer & (k * CHUNK + cols < N)
        nearest = tl.where(closer, distance, nearest)
        found = tl.where(closer, scaled, found)
    nearest, found = tl.reduce((nearest, found), 1, nearer)
    return scale, found


@triton.jit
def _statistics(
    p, mean, square, eps, N,
    ROWS: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, WHOLE: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """For rows that one round of sums did not do: scale, centre, shift and variance (of x scale, with eps)."""
    scale = tl.full([ROWS], 1.0, tl.float32)
    zero = unknown_zero(square, ASSEMBLY)
    centre = mean
    shift, square = _moments(p, scale, centre, scale * 0.0, zero, N, ROWS, CHUNKS, CHUNK, WHOLE, ASSEMBLY)
    variance = square - shift * shift + eps
    fine = (64.0 * shift * shift < variance) & (variance > LEAST) & (variance < MOST)
    if tl.min(fine.to(tl.int32), 0) == 0:
        scale, centre = _pivot(p, square, eps, N, ROWS, CHUNKS, CHUNK, WHOLE, ASSEMBLY)
        zero = unknown_zero(scale * square * scale * scale, ASSEMBLY)
        shift, square = _moments(p, scale, centre, scale * 0.0, zero, N, ROWS, CHUNKS, CHUNK, WHOLE, ASSEMBLY)
        zero = unknown_zero(square, ASSEMBLY)
        rest, square = _moments(p, scale, centre, shift, zero, N, ROWS, CHUNKS, CHUNK, WHOLE, ASSEMBLY)
        shift += rest
        # Where all of x is equal the variance is 0 and eps may underflow: 0 / 0 must not come of it.
        least = tl.where(eps > 0.0, SMALLEST, 0.0)
        variance = square - rest * rest + tl.maximum(eps * scale * scale, least)
    return scale, centre, shift, variance


@triton.jit
def _late(parameter, k: tl.constexpr, N, CHUNK: tl.constexpr, WHOLE: tl.constexpr):
    """Chunk k of weight or bias ([ROWS, 1] pointers), loaded where it is used: that takes fewer registers."""
    cols = k * CHUNK + tl.arange(0, CHUNK)[None, :]
    return tl.load(parameter + cols) if WHOLE else tl.load(parameter + cols, mask=cols < N, other=0.0)


@triton.jit
def _forward(
    x, weight, bias, output, x_stride, M, N, eps,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
    EVICT: tl.constexpr, LATE: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, CHUNK)[None, :]
    lanes = tl.arange(0, ROWS)[:, None]
    far = lanes.to(tl.int64)
    first, step = tl.program_id(0), tl.num_programs(0)
    if weight is not None and not LATE:
        w = load_row(weight + far * 0, N, lanes >= 0, CHUNKS, CHUNK, WHOLE, "")
    if bias is not None and not LATE:
        b = load_row(bias + far * 0, N, lanes >= 0, CHUNKS, CHUNK, WHOLE, "")
    for tile in tl.range(first, tl.cdiv(M, ROWS), step, num_stages=STAGES):
        inside = tile * ROWS + lanes < M
        begin = tl.cast(tile, tl.int64) * ROWS
        p = load_row(x + begin * x_stride + far * x_stride, N, inside, CHUNKS, CHUNK, WHOLE, EVICT)
        sums = tl.zeros([ROWS, CHUNK], tl.float32)
        squares = tl.zeros([ROWS, CHUNK], tl.float32)
        for k in tl.static_range(CHUNKS):
            v = wide(p[k], None, ASSEMBLY)
            sums += v
            squares += v * v
        centre, square = sums2(sums, squares, 1, ASSEMBLY)
        centre, square = centre / N, square / N
        scale = tl.full([ROWS], 1.0, tl.float32)
        shift = tl.zeros([ROWS], tl.float32)
        variance = square - centre * centre + eps
        fine = (centre * centre <= variance) & (variance > LEAST) & (variance < MOST)
        if tl.min(fine.to(tl.int32), 0) == 0:
            scale, centre, shift, variance = _statistics(
                p, centre, square, eps, N, ROWS, CHUNKS, CHUNK, WHOLE, ASSEMBLY
            )
        r = tl.rsqrt(variance)
        zero = unknown_zero(r, ASSEMBLY)
        shift *= r
        y_at = output + begin * N + far * N
        for k in tl.static_range(CHUNKS):
            mask = inside if WHOLE else inside & (k * CHUNK + cols < N)
            y = (wide(p[k], zero, ASSEMBLY) * scale[:, None] - centre[:, None]) * r[:, None] - shift[:, None]
            if weight is not None:
                y *= wide(_late(weight + far * 0, k, N, CHUNK, WHOLE) if LATE else w[k], zero, ASSEMBLY)
            if bias is not None:
                y += wide(_late(bias + far * 0, k, N, CHUNK, WHOLE) if LATE else b[k], zero, ASSEMBLY)
            tl.store(y_at + (k * CHUNK + cols), y.to(output.dtype.element_ty), mask=mask)


@triton.jit
def _backward(
    grad, x, weight, grad_x, partial, grad_stride, x_stride, M, N, eps,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
    LATE: tl.constexpr, SECTORS: tl.constexpr, ASSEMBLY: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, CHUNK)[None, :]
    lanes = tl.arange(0, ROWS)[:, None]
    far = lanes.to(tl.int64)
    first, step = tl.program_id(0), tl.num_programs(0)
    if weight is not None and not LATE:
        w = load_row(weight + far * 0, N, lanes >= 0, CHUNKS, CHUNK, WHOLE, "")
    weight_sums = ()
    bias_sums = ()
    if partial is not None:
        for _ in tl.static_range(CHUNKS):
            weight_sums = appended(weight_sums, tl.zeros([ROWS, CHUNK], tl.float32))
            bias_sums = appended(bias_sums, tl.zeros([ROWS, CHUNK], tl.float32))
    if EARLY:
        gdc_launch_dependents()
    zero = tl.zeros([ROWS], tl.int32)
    for tile in tl.range(first, tl.cdiv(M, ROWS), step, num_stages=STAGES):
        inside = tile * ROWS + lanes < M
        begin = tl.cast(tile, tl.int64) * ROWS
        if SECTORS > 0:
            ahead = tl.minimum(tile + step, tl.cdiv(M, ROWS) - 1).to(tl.int64) * ROWS
            prefetch_row(x + ahead * x_stride, N, SECTORS)
            prefetch_row(grad + ahead * grad_stride, N, SECTORS)
        p = load_row(x + begin * x_stride + far * x_stride, N, inside, CHUNKS, CHUNK, WHOLE, "evict_first")
        o = load_row(grad + begin * grad_stride + far * grad_stride, N, inside, CHUNKS, CHUNK, WHOLE, "evict_first")
        sums = tl.zeros([ROWS, CHUNK], tl.float32)
        squares = tl.zeros([ROWS, CHUNK], tl.float32)
        plain = tl.zeros([ROWS, CHUNK], tl.float32)
        dots = tl.zeros([ROWS, CHUNK], tl.float32)
        for k in tl.static_range(CHUNKS):
            v = wide(p[k], None, ASSEMBLY)
            g = wide(o[k], None, ASSEMBLY)
            if weight is not None:
                g *= wide(_late(weight + far * 0, k, N, CHUNK, WHOLE) if LATE else w[k], zero, ASSEMBLY)
            sums += v
            squares += v * v
            plain += g
            dots += v * g
        centre, square, mean_g, c = sums4(sums, squares, plain, dots, 1, ASSEMBLY)
        centre, square, mean_g = centre / N, square / N, mean_g / N
        scale = tl.full([ROWS], 1.0, tl.float32)
        shift = tl.zeros([ROWS], tl.float32)
        variance = square - centre * centre + eps
        fine = (centre * centre <= variance) & (variance > LEAST) & (variance < MOST) & (tl.abs(c) < float("inf"))
        c = (c / N - centre * mean_g) * tl.rsqrt(variance)
        if tl.min(fine.to(tl.int32), 0) == 0:
            scale, centre, shift, variance = _statistics(
                p, centre, square, eps, N, ROWS, CHUNKS, CHUNK, WHOLE, ASSEMBLY
            )
            r = tl.rsqrt(variance)
            zero = unknown_zero(r * scale, ASSEMBLY)
            dots = tl.zeros([ROWS, CHUNK], tl.float32)
            for k in tl.static_range(CHUNKS):
                d = (wide(p[k], zero, ASSEMBLY) * scale[:, None] - centre[:, None]) - shift[:, None]
                g = wide(o[k], zero, ASSEMBLY)
                if weight is not None:
                    g *= wide(_late(weight + far * 0, k, N, CHUNK, WHOLE) if LATE else w[k], zero, ASSEMBLY)
                dots += d * r[:, None] * g
            c = tl.sum(dots, 1) / N
        r = tl.rsqrt(variance)
        zero = unknown_zero(r, ASSEMBLY)
        shift *= r
        slope = r * scale
        to = begin * N + far * N
        grown_w = ()
        grown_b = ()
        for k in tl.static_range(CHUNKS):
            mask = inside if WHOLE else inside & (k * CHUNK + cols < N)
            z = (wide(p[k], zero, ASSEMBLY) * scale[:, None] - centre[:, None]) * r[:, None] - shift[:, None]
            g = wide(o[k], zero, ASSEMBLY)
            if partial is not None:
                grown_w = appended(grown_w, weight_sums[k] + g * z)
                grown_b = appended(grown_b, bias_sums[k] + g)
            if weight is not None:
                g *= wide(_late(weight + far * 0, k, N, CHUNK, WHOLE) if LATE else w[k], zero, ASSEMBLY)
            d = ((g - mean_g[:, None]) - z * c[:, None]) * slope[:, None]
            tl.store(grad_x + to + (k * CHUNK + cols), d.to(grad_x.dtype.element_ty), mask=mask)
        weight_sums = grown_w
        bias_sums = grown_b
    if partial is not None:
        column = tl.arange(0, CHUNK)
        share = partial + first.to(tl.int64) * N
        for k in tl.static_range(CHUNKS):
            mask = k * CHUNK + column < N
            tl.store(share + (k * CHUNK + column), tl.sum(weight_sums[k], 0), mask=mask)
            tl.store(share + step.to(tl.int64) * N + (k * CHUNK + column), tl.sum(bias_sums[k], 0), mask=mask)


FORWARD, BACKWARD = Kernel(_forward), Kernel(_backward)


def _at(
    kernel: Kernel, name: str, n: int, dtype: torch.dtype, inputs: int, **constants: Any
) -> tuple[Launch, int, int]:
    """The launch for rows of n, the rows of a tile, and how many programs a multiprocessor gets (0: one a tile)."""
    chosen = CONFIGS.pick(name, dtype=dtype, N=n, BYTES=n * dtype.itemsize * inputs)
    programs = chosen.pop("PROGRAMS", 0)
    if chosen.pop("PREFETCH", False) and not interpreting():
        constants["SECTORS"] = triton.next_power_of_2(triton.cdiv(n * dtype.itemsize, SECTOR))
    chunk = chosen["CHUNK"]
    launch = kernel.at(
        CHUNKS=-(-n // chunk), WHOLE=n % chunk == 0, ASSEMBLY=not interpreting(), **constants, **chosen,
    )  # fmt: skip
    return launch, chosen["ROWS"], programs


@functools.cache
def _forward_at(n: int, dtype: torch.dtype) -> tuple[Launch, int, int]:
    return _at(FORWARD, "forward", n, dtype, 1)


@functools.cache
def _backward_at(n: int, dtype: torch.dtype) -> tuple[Launch, int, int]:
    return _at(BACKWARD, "backward", n, dtype, 2, SECTORS=0, EARLY=not interpreting())


@functools.cache
def _column_sums_at(n: int, dtype: torch.dtype) -> tuple[Launch, tuple[int, int, int]]:
    early = not interpreting()
    options = {"launch_pdl": True} if early else {}
    chosen = CONFIGS.pick("column_sums", N=n, dtype=dtype)
    return COLUMN_SUMS.at(EARLY=early, **options, **chosen), (-(-n // chosen["BLOCK"]), 2, 1)


def _plain(parameter: Tensor | None) -> Tensor | None:
    return parameter if parameter is None or parameter.is_contiguous() else parameter.contiguous()


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, out: Tensor | None = None
) -> Tensor:  # fmt: skip
    n = x.shape[-1]
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    if n:
        rows = as_rows(x)
        m = rows.numel() // n
        launch, height, programs = _forward_at(n, x.dtype)
        tiles = -(-m // height)
        if programs:
            tiles = min(tiles, programs * multiprocessors(x.device))
        launch((tiles, 1, 1), rows, _plain(weight), _plain(bias), output, _stride(rows), m, n, float(eps))
    return output


def backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, needs: list[bool],
    out: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    n = x.shape[-1]
    m = x.numel() // max(n, 1)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out[0]
    grad_weight = x.new_empty(n if weight is not None and needs[1] else 0)
    grad_bias = x.new_empty(n if bias is not None and needs[2] else 0)
    if n:
        launch, height, programs = _backward_at(n, x.dtype)
        tiles = -(-m // height)
        shares = min(tiles, programs * multiprocessors(x.device))
        partial = None
        if grad_weight.numel() or grad_bias.numel():
            shares = max(shares, -(-tiles // LONGEST_SUM))
            partial = torch.empty((2, shares, n), dtype=torch.float32, device=x.device)
        rows, grads = as_rows(x), as_rows(grad)
        launch(
            (shares, 1, 1), grads, rows, _plain(weight), grad_x, partial, _stride(grads), _stride(rows), m, n,
            float(eps),
        )  # fmt: skip
        if partial is not None:
            sums, grid = _column_sums_at(n, x.dtype)
            # A gradient that nobody asked for goes where the other will overwrite nothing of it.
            first = grad_weight if grad_weight.numel() else x.new_empty(n)
            second = grad_bias if grad_bias.numel() else x.new_empty(n)
            sums(grid, partial, first, second, shares, n)
    return grad_x, grad_weight, grad_bias


def _stride(rows: Tensor) -> int:
    """Between rows, of what ``as_rows`` gave."""
    return rows.stride(0) if rows.dim() == 2 else rows.shape[-1]
