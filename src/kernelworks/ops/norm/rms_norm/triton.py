"""rms_norm on the GPU: rows held in registers, so that each tensor is read once and written once.

A program takes tiles of ROWS rows, one after the other. The backward keeps its share of the weight's gradient in
registers over all its rows; a second kernel adds the shares.
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
from kernelworks.tile.row_chunks import appended, load_row, power_of_two, sums2, unknown_zero, wide

CONFIGS = configs(__file__)

# Means of squares outside have overflowed or lost bits in float32; such rows are scaled by a power of two first.
LEAST = tl.constexpr(2.0**-90)
MOST = tl.constexpr(2.0**120)

LONGEST_SUM = 64  # tiles that one program adds up in float32: what the bound of the weight's gradient leaves room for
NARROW = 1024  # below this N the bound leaves less room, and the sums are kept in float64


@triton.jit
def _sum(p, q, k: tl.constexpr, zero, ASSEMBLY: tl.constexpr):
    """Chunk k of x + residual in float32."""
    s = wide(p[k], zero, ASSEMBLY)
    if q is not None:
        s += wide(q[k], zero, ASSEMBLY)
    return s


@triton.jit
def _scale(p, q, mean, eps, ASSEMBLY: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    zero = unknown_zero(mean, ASSEMBLY)
    largest = tl.zeros([ROWS, CHUNK], tl.float32)
    for k in tl.static_range(CHUNKS):
        largest = tl.maximum(largest, tl.abs(_sum(p, q, k, zero, ASSEMBLY)))
    return power_of_two(tl.max(largest, 1), eps)


@triton.jit
def _forward(
    x, residual, weight, output, sum_, x_stride, residual_stride, M, N, eps,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
    EVICT: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, CHUNK)[None, :]
    lanes = tl.arange(0, ROWS)[:, None]
    far = lanes.to(tl.int64)
    first, step = tl.program_id(0), tl.num_programs(0)
    if weight is not None:
        w = load_row(weight + far * 0, N, lanes >= 0, CHUNKS, CHUNK, WHOLE, "")
    for tile in tl.range(first, tl.cdiv(M, ROWS), step, num_stages=STAGES):
        inside = tile * ROWS + lanes < M
        begin = tl.cast(tile, tl.int64) * ROWS
        p = load_row(x + begin * x_stride + far * x_stride, N, inside, CHUNKS, CHUNK, WHOLE, EVICT)
        if residual is not None:
            beside = residual + begin * residual_stride + far * residual_stride
            q = load_row(beside, N, inside, CHUNKS, CHUNK, WHOLE, EVICT)
        else:
            q = None
        squares = tl.zeros([ROWS, CHUNK], tl.float32)
        for k in tl.static_range(CHUNKS):
            s = _sum(p, q, k, None, ASSEMBLY)
            squares += s * s
        mean = tl.sum(squares, 1) / N + eps
        scale = tl.full([ROWS], 1.0, tl.float32)
        fine = (mean > LEAST) & (mean < MOST)
        if tl.min(fine.to(tl.int32), 0) == 0:
            scale = _scale(p, q, mean, eps, ASSEMBLY, ROWS, CHUNKS, CHUNK)
            zero = unknown_zero(scale * mean, ASSEMBLY)
            squares = tl.zeros([ROWS, CHUNK], tl.float32)
            for k in tl.static_range(CHUNKS):
                s = _sum(p, q, k, zero, ASSEMBLY) * scale[:, None]
                squares += s * s
            mean = tl.sum(squares, 1) / N + eps * scale * scale
        r = tl.rsqrt(mean)
        zero = unknown_zero(r, ASSEMBLY)
        y_at = output + begin * N + far * N
        for k in tl.static_range(CHUNKS):
            mask = inside if WHOLE else inside & (k * CHUNK + cols < N)
            s = _sum(p, q, k, zero, ASSEMBLY)
            if residual is not None:
                s_at = sum_ + begin * N + far * N
                tl.store(s_at + (k * CHUNK + cols), s.to(sum_.dtype.element_ty), mask=mask)
            y = (s * scale[:, None]) * r[:, None]
            if weight is not None:
                y *= wide(w[k], zero, ASSEMBLY)
            tl.store(y_at + (k * CHUNK + cols), y.to(output.dtype.element_ty), mask=mask)


@triton.jit
def _backward(
    grad, grad_sum, x, residual, weight, grad_x, grad_residual, partial,
    grad_stride, grad_sum_stride, x_stride, residual_stride, M, N, eps,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
    ASSEMBLY: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, CHUNK)[None, :]
    lanes = tl.arange(0, ROWS)[:, None]
    far = lanes.to(tl.int64)
    first, step = tl.program_id(0), tl.num_programs(0)
    WIDTH: tl.constexpr = tl.float64 if WIDE else tl.float32
    if weight is not None:
        w = load_row(weight + far * 0, N, lanes >= 0, CHUNKS, CHUNK, WHOLE, "")
    sums = ()
    if partial is not None:
        for _ in tl.static_range(CHUNKS):
            sums = appended(sums, tl.zeros([ROWS, CHUNK], WIDTH))
    if EARLY:
        gdc_launch_dependents()
    zero = tl.zeros([ROWS], tl.int32)
    for tile in tl.range(first, tl.cdiv(M, ROWS), step, num_stages=STAGES):
        inside = tile * ROWS + lanes < M
        begin = tl.cast(tile, tl.int64) * ROWS
        if residual is not None:
            beside = residual + begin * residual_stride + far * residual_stride
            q = load_row(beside, N, inside, CHUNKS, CHUNK, WHOLE, "evict_first")
        else:
            q = None
        p = load_row(x + begin * x_stride + far * x_stride, N, inside, CHUNKS, CHUNK, WHOLE, "evict_first")
        o = load_row(grad + begin * grad_stride + far * grad_stride, N, inside, CHUNKS, CHUNK, WHOLE, "evict_first")
        squares = tl.zeros([ROWS, CHUNK], tl.float32)
        dots = tl.zeros([ROWS, CHUNK], tl.float32)
        for k in tl.static_range(CHUNKS):
            s = _sum(p, q, k, None, ASSEMBLY)
            g = wide(o[k], None, ASSEMBLY)
            if weight is not None:
                g *= wide(w[k], zero, ASSEMBLY)
            squares += s * s
            dots += s * g
        square, dot = sums2(squares, dots, 1, ASSEMBLY)
        mean = square / N + eps
        scale = tl.full([ROWS], 1.0, tl.float32)
        fine = (mean > LEAST) & (mean < MOST) & (tl.abs(dot) < float("inf"))
        if tl.min(fine.to(tl.int32), 0) == 0:
            scale = _scale(p, q, mean, eps, ASSEMBLY, ROWS, CHUNKS, CHUNK)
            zero = unknown_zero(scale * mean, ASSEMBLY)
            squares = tl.zeros([ROWS, CHUNK], tl.float32)
            dots = tl.zeros([ROWS, CHUNK], tl.float32)
            for k in tl.static_range(CHUNKS):
                s = _sum(p, q, k, zero, ASSEMBLY) * scale[:, None]
                g = wide(o[k], zero, ASSEMBLY)
                if weight is not None:
                    g *= wide(w[k], zero, ASSEMBLY)
                squares += s * s
                dots += s * g
            square, dot = sums2(squares, dots, 1, ASSEMBLY)
            mean = square / N + eps * scale * scale
        r = tl.rsqrt(mean)
        c = dot / N * r
        r = r * scale
        zero = unknown_zero(r, ASSEMBLY)
        to = begin * N + far * N
        grown = ()
        for k in tl.static_range(CHUNKS):
            mask = inside if WHOLE else inside & (k * CHUNK + cols < N)
            s = _sum(p, q, k, zero, ASSEMBLY) * r[:, None]
            g = wide(o[k], zero, ASSEMBLY)
            if partial is not None:
                grown = appended(grown, sums[k] + (g * s).to(WIDTH))
            if weight is not None:
                g *= wide(w[k], zero, ASSEMBLY)
            d = (g - s * c[:, None]) * r[:, None]
            if grad_sum is not None:
                h_at = grad_sum + begin * grad_sum_stride + far * grad_sum_stride
                d += tl.load(h_at + (k * CHUNK + cols), mask=mask, other=0.0, eviction_policy="evict_first").to(
                    tl.float32
                )
            d = d.to(grad_x.dtype.element_ty)
            tl.store(grad_x + to + (k * CHUNK + cols), d, mask=mask)
            if grad_residual is not None:
                tl.store(grad_residual + to + (k * CHUNK + cols), d, mask=mask)
        sums = grown
    if partial is not None:
        column = tl.arange(0, CHUNK)
        share = partial + first.to(tl.int64) * N
        for k in tl.static_range(CHUNKS):
            tl.store(share + (k * CHUNK + column), tl.sum(sums[k], 0).to(tl.float32), mask=k * CHUNK + column < N)


FORWARD, BACKWARD = Kernel(_forward), Kernel(_backward)


def _at(
    kernel: Kernel, name: str, n: int, dtype: torch.dtype, inputs: int, **constants: Any
) -> tuple[Launch, int, int]:
    """The launch for rows of n, the rows of a tile, and how many programs a multiprocessor gets (0: one a tile)."""
    chosen = CONFIGS.pick(name, dtype=dtype, N=n, BYTES=n * dtype.itemsize * inputs)
    programs = chosen.pop("PROGRAMS", 0)
    chunk = chosen["CHUNK"]
    launch = kernel.at(
        CHUNKS=-(-n // chunk), WHOLE=n % chunk == 0, ASSEMBLY=not interpreting(), **constants, **chosen,
    )  # fmt: skip
    return launch, chosen["ROWS"], programs


@functools.cache
def _forward_at(n: int, dtype: torch.dtype, inputs: int) -> tuple[Launch, int, int]:
    return _at(FORWARD, "forward", n, dtype, inputs)


@functools.cache
def _backward_at(n: int, dtype: torch.dtype, inputs: int) -> tuple[Launch, int, int]:
    return _at(BACKWARD, "backward", n, dtype, inputs, WIDE=n < NARROW, EARLY=not interpreting())


@functools.cache
def _column_sums_at(n: int, dtype: torch.dtype) -> tuple[Launch, tuple[int, int, int]]:
    early = not interpreting()
    options = {"launch_pdl": True} if early else {}
    chosen = CONFIGS.pick("column_sums", N=n, dtype=dtype)
    return COLUMN_SUMS.at(EARLY=early, **options, **chosen), (-(-n // chosen["BLOCK"]), 1, 1)


def forward(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None, out: Any = None) -> Any:
    n = x.shape[-1]
    if weight is not None and not weight.is_contiguous():
        weight = weight.contiguous()
    sum_ = added = None
    if residual is None:
        output = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    else:
        output, sum_ = (x.new_empty(x.shape), x.new_empty(x.shape)) if out is None else out
        added = as_rows(residual)
    if n:
        rows = as_rows(x)
        m = rows.numel() // n
        launch, height, programs = _forward_at(n, x.dtype, 1 if added is None else 2)
        tiles = -(-m // height)
        if programs:
            tiles = min(tiles, programs * multiprocessors(x.device))
        launch((tiles, 1, 1), rows, added, weight, output, sum_, _stride(rows), _stride(added), m, n, float(eps))
    return output if residual is None else (output, sum_)


def backward(
    grad: Tensor, grad_sum: Tensor | None, x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None,
    needs: list[bool], out: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    n = x.shape[-1]
    m = x.numel() // max(n, 1)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out[0]
    wanted = weight is not None and needs[1]
    grad_weight = x.new_empty(n if wanted else 0)
    grad_residual = x.new_empty(x.shape) if residual is not None and needs[2] else None
    if n:
        rows, grads = as_rows(x), as_rows(grad)
        added = None if residual is None else as_rows(residual)
        later = None if grad_sum is None or residual is None else as_rows(grad_sum)
        inputs = 2 + (added is not None) + (later is not None)
        launch, height, programs = _backward_at(n, x.dtype, inputs)
        tiles = -(-m // height)
        shares = min(tiles, programs * multiprocessors(x.device))
        partial = None
        if wanted:
            shares = max(shares, -(-tiles // LONGEST_SUM))
            partial = torch.empty((shares, n), dtype=torch.float32, device=x.device)
        launch(
            (shares, 1, 1), grads, later, rows, added, None if weight is None else weight.contiguous(), grad_x,
            grad_residual, partial, _stride(grads), _stride(later), _stride(rows), _stride(added), m, n, float(eps),
        )  # fmt: skip
        if wanted:
            sums, grid = _column_sums_at(n, x.dtype)
            sums(grid, partial, grad_weight, None, shares, n)
    return grad_x, grad_weight, x.new_empty(0) if grad_residual is None else grad_residual


def _stride(rows: Tensor | None) -> int:
    """Between rows, of what ``as_rows`` gave."""
    if rows is None:
        return 0
    return rows.stride(0) if rows.dim() == 2 else rows.shape[-1]
