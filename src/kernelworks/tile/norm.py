"""Norms of rows, for any op package of the norm template.

A tile of rows is held in float32 in registers, read once and written once.

A row is scaled by a power of two that brings it near 1, so that its squares stay in float32, and centred twice: the
mean of what the first mean left corrects it, so a mean that dwarfs the spread costs nothing. The backward finds that
mean, the squares and what it needs of the gradient in one round. It keeps its shares of the parameters' gradients in
registers over its tiles; a second kernel adds the shares.
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
from kernelworks.tile.row_chunks import power_of_two, sums4, unknown_zero, wide

LONGEST_SUM = 64  # tiles that one program adds up in float32: what the bound of the gradients leaves room for
SMALLEST = tl.constexpr(2.0**-126)


@triton.jit
def _rows(at, stride, begin, inside, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A tile of rows in float32, 0 outside."""
    row = begin + tl.arange(0, ROWS)[:, None]
    return tl.load(at + row * stride + tl.arange(0, BLOCK)[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _normalised(s, inside, eps, N, CENTRED: tl.constexpr):
    """The normalised rows, 0 outside, and 1 / spread."""
    scale = power_of_two(tl.max(tl.abs(s), 1), eps)
    d = s * scale[:, None]
    if CENTRED:
        d = tl.where(inside, d - (tl.sum(d, 1) / N)[:, None], 0.0)
        d = tl.where(inside, d - (tl.sum(d, 1) / N)[:, None], 0.0)
    least = tl.where(eps > 0.0, SMALLEST, 0.0)  # where all of x is equal and eps underflows, 0 / 0 must not come of it
    r = tl.rsqrt(tl.sum(d * d, 1) / N + tl.maximum(eps * scale * scale, least))
    return d * r[:, None], r * scale


@triton.jit
def _forward(
    x, residual, weight, bias, output, sum_, x_stride, residual_stride, M, N, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    begin = tl.program_id(0).to(tl.int64) * ROWS
    column = tl.arange(0, BLOCK)[None, :]
    row = begin + tl.arange(0, ROWS)[:, None]
    inside = (row < M) & (column < N)
    s = _rows(x, x_stride, begin, inside, ROWS, BLOCK)
    if residual is not None:
        s += _rows(residual, residual_stride, begin, inside, ROWS, BLOCK)
        tl.store(sum_ + row * N + column, s.to(sum_.dtype.element_ty), mask=inside)
    y, _ = _normalised(s, inside, eps, N, CENTRED)
    if weight is not None:
        y *= tl.load(weight + column, mask=column < N, other=0.0).to(tl.float32)
    if bias is not None:
        y += tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)
    tl.store(output + row * N + column, y.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _top_and_sum(top0, sum0, top1, sum1):
    return tl.maximum(top0, top1), sum0 + sum1


@triton.jit
def _backward(
    grad, grad_sum, x, residual, weight, grad_x, grad_residual, partial, grad_stride, grad_sum_stride, x_stride,
    residual_stride, M, N, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr, CENTRED: tl.constexpr, STAGES: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Threads meet twice a tile: for the largest magnitude and the mean, then for what is left of the mean, the squares
    and both means of the gradient. Meanwhile the next tiles are on their way."""
    first, step = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)[None, :]
    weight_sums = tl.zeros([ROWS, BLOCK], tl.float32)
    bias_sums = tl.zeros([ROWS, BLOCK], tl.float32)
    if weight is not None:
        every = weight + tl.arange(0, ROWS)[:, None] * 0 + column
        w = tl.load(every, mask=column < N, other=0.0)
    if ASSEMBLY and partial is not None:
        gdc_launch_dependents()
    zero = tl.zeros([ROWS], tl.int32)
    for tile in tl.range(first, tl.cdiv(M, ROWS), step, num_stages=STAGES):
        begin = tl.cast(tile, tl.int64) * ROWS
        row = begin + tl.arange(0, ROWS)[:, None]
        inside = column < N if ROWS == 1 else (row < M) & (column < N)
        d = _rows(x, x_stride, begin, inside, ROWS, BLOCK)
        if residual is not None:
            d += _rows(residual, residual_stride, begin, inside, ROWS, BLOCK)
        given = tl.load(grad + row * grad_stride + column, mask=inside, other=0.0)
        if ASSEMBLY:
            top, mean = tl.reduce((tl.abs(d), d * (1.0 / BLOCK)), 1, _top_and_sum)
        else:
            top, mean = tl.max(tl.abs(d), 1), tl.sum(d * (1.0 / BLOCK), 1)
        scale = power_of_two(top, eps)
        d *= scale[:, None]
        if CENTRED:
            d = tl.where(inside, d - (mean * scale * (BLOCK / N))[:, None], 0.0)
        flow = wide(given, None, ASSEMBLY)
        if weight is not None:
            flow *= wide(w, zero, ASSEMBLY)
        shift, square, mean, c = sums4(d, d * d, flow, flow * d, 1, ASSEMBLY)
        square /= N
        c /= N
        if CENTRED:
            shift /= N
            mean /= N
            square = tl.maximum(square - shift * shift, 0.0)
            c -= shift * mean
            d = tl.where(inside, d - shift[:, None], 0.0)
        least = tl.where(eps > 0.0, SMALLEST, 0.0)  # as in ``_normalised``
        r = tl.rsqrt(square + tl.maximum(eps * scale * scale, least))
        d *= r[:, None]
        zero = unknown_zero(r, ASSEMBLY)
        g = wide(given, zero, ASSEMBLY)  # widened anew: registers hold it as it came meanwhile
        weight_sums += g * d
        bias_sums += g
        if weight is not None:
            g *= wide(w, zero, ASSEMBLY)
        d = g - d * (c * r)[:, None]
        if CENTRED:
            d -= mean[:, None]
        d *= (r * scale)[:, None]
        if grad_sum is not None:
            d += _rows(grad_sum, grad_sum_stride, begin, inside, ROWS, BLOCK)
        d = d.to(grad_x.dtype.element_ty)
        tl.store(grad_x + row * N + column, d, mask=inside)
        if grad_residual is not None:
            tl.store(grad_residual + row * N + column, d, mask=inside)
    if partial is not None:
        columns = tl.arange(0, BLOCK)
        share = partial + first.to(tl.int64) * N
        tl.store(share + columns, tl.sum(weight_sums, 0), mask=columns < N)
        tl.store(share + step.to(tl.int64) * N + columns, tl.sum(bias_sums, 0), mask=columns < N)


FORWARD, BACKWARD = Kernel(_forward), Kernel(_backward)


def _stride(rows: Tensor | None) -> int:
    """Between rows, of what ``as_rows`` gave."""
    return 0 if rows is None else rows.stride(0) if rows.dim() == 2 else rows.shape[-1]


def _laid_out(x: Tensor | None) -> Tensor | None:
    return None if x is None else as_rows(x)


def _plain(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous()


class NormPasses:
    """The passes of one op in its op package's configurations; ``names`` are its arguments in order, x and eps among
    them."""

    def __init__(self, op_package: str, names: tuple[str, ...], *, centred: bool) -> None:
        self.configs, self.names, self.centred = configs(op_package), names, centred
        self.returns = tuple(n for n in names if n != "eps")
        self.at, self.sums_at = functools.cache(self._at), functools.cache(self._sums_at)

    def _at(self, kernel: Kernel, name: str, n: int, dtype: torch.dtype) -> tuple[Launch, int, int]:
        """The launch for rows of n, the rows of a tile, and how many programs a multiprocessor gets."""
        chosen = self.configs.pick(name, N=n, dtype=dtype)
        programs = chosen.pop("PROGRAMS", 0)
        if kernel is BACKWARD:
            chosen["ASSEMBLY"] = not interpreting()
        launch = kernel.at(BLOCK=triton.next_power_of_2(n), CENTRED=self.centred, **chosen)
        return launch, chosen["ROWS"], programs

    def _sums_at(self, n: int, dtype: torch.dtype) -> tuple[Launch, int]:
        chosen = self.configs.pick("column_sums", N=n, dtype=dtype)
        early = not interpreting()
        options = {"launch_pdl": True} if early else {}
        return COLUMN_SUMS.at(EARLY=early, **options, **chosen), -(-n // chosen["BLOCK"])

    def forward(self, *args: Any, out: Any = None) -> Any:
        have = dict(zip(self.names, args, strict=True))
        x, residual = have["x"], _laid_out(have.get("residual"))
        shapes = 1 if residual is None else 2
        made = tuple(x.new_empty(x.shape) for _ in range(shapes)) if out is None else out if shapes == 2 else (out,)
        n = x.shape[-1]
        if x.numel():
            rows = as_rows(x)
            launch, height, _ = self.at(FORWARD, "forward", n, x.dtype)
            launch(
                (-(-(x.numel() // n) // height), 1, 1), rows, residual, _plain(have["weight"]),
                _plain(have.get("bias")), made[0], made[1] if shapes == 2 else None, _stride(rows), _stride(residual),
                x.numel() // n, n, float(have["eps"]),
            )  # fmt: skip
        return made if shapes == 2 else made[0]

    def backward(self, grad: Tensor, *args: Any, out: Any = None) -> tuple[Tensor, ...]:
        """``args``: the gradient of the sum where the op has a residual, the forward's arguments, the needs."""
        later, given = (args[0], args[1:-1]) if "residual" in self.names else (None, args[:-1])
        have = dict(zip(self.names, given, strict=True))
        x, residual, n = have["x"], _laid_out(have.get("residual")), have["x"].shape[-1]
        wanted = {
            name: name == "x" or (have[name] is not None and bool(need))
            for name, need in zip(self.returns, args[-1], strict=True)
        }
        made = {
            name: x.new_empty((n,) if name in ("weight", "bias") else x.shape) if need else x.new_empty(0)
            for name, need in wanted.items()
        }
        if out is not None:
            made["x"] = out[0]
        sums = wanted["weight"] or wanted.get("bias", False)
        if not x.numel():
            return tuple(made[name].zero_() for name in self.returns)
        rows, grads = as_rows(x), as_rows(grad)
        flows = None if residual is None else _laid_out(later)
        launch, height, programs = self.at(BACKWARD, "backward", n, x.dtype)
        m, tiles = x.numel() // n, -(-(x.numel() // n) // height)
        shares = max(min(tiles, programs * multiprocessors(x.device)), -(-tiles // LONGEST_SUM) if sums else 1)
        partial = torch.empty((2, shares, n), dtype=torch.float32, device=x.device) if sums else None
        launch(
            (shares, 1, 1), grads, flows, rows, residual, _plain(have["weight"]), made["x"],
            made["residual"] if wanted.get("residual") else None, partial, _stride(grads), _stride(flows),
            _stride(rows), _stride(residual), m, n, float(have["eps"]),
        )  # fmt: skip
        if partial is not None:
            add, blocks = self.sums_at(n, x.dtype)
            first = made["weight"] if wanted["weight"] else x.new_empty(n)
            second = made["bias"] if wanted.get("bias") else x.new_empty(n)
            add((blocks, 2, 1), partial, first, second, shares, n)
        return tuple(made[name] for name in self.returns)
