"""prod on the GPU: a program multiplies some elements of a tile of lines in float64, zeros counted apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs, kernel
from kernelworks.contract.reduced_dims import kept_shape, reduced_lines, reduced_shape
from kernelworks.contract.row_layout import Lines
from kernelworks.templates.reduction_stages.launches import align_dims

__all__ = ["backward", "forward"]

CONFIGS = configs(__file__)
PART = 8192  # elements that a part has at least


@kernel
def _multiplied(a, b):
    return a * b


@kernel
def _product_of(product, zeros):
    """NaN and infinities come through a zero, as they do through a product."""
    return tl.where(zeros > 0.0, product * 0.0, product)


@kernel
def _products(
    x, out, product, zeros, n, lines, blocks, all_lines, outer_stride, line_stride, stride, parts, length,
    LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a part of LINES lines: the product of what is not 0, and how many zeros there are."""
    program = tl.program_id(0).to(tl.int64)
    part = program % parts
    block = program // parts % blocks
    outer = program // parts // blocks
    line = block * LINES + tl.arange(0, LINES)
    inside = line < lines
    mine = outer * lines + line
    number = tl.arange(0, BLOCK)[None, :].to(tl.int64)
    at = outer * outer_stride + line[:, None] * line_stride
    begin = part * length
    end = tl.minimum(begin + length, n)
    chain = tl.full([LINES, BLOCK], 1.0, tl.float64)
    count = tl.full([LINES, BLOCK], 0.0, tl.float64)
    for start in range(begin, end, BLOCK):
        place = start + number
        value = tl.load(x + at + place * stride, mask=inside[:, None] & (place < end), other=1.0).to(tl.float64)
        none = value == 0.0
        chain *= tl.where(none, 1.0, value)
        count += tl.where(none, 1.0, 0.0)
    all = tl.reduce(chain, 1, _multiplied)
    found = tl.sum(count, 1)
    if out is not None:
        tl.store(out + mine, _product_of(all, found).to(tl.float32), mask=inside)
    else:
        tl.store(product + part * all_lines + mine, all, mask=inside)
        tl.store(zeros + part * all_lines + mine, found, mask=inside)


@kernel
def _join(product, zeros, out, joined, all_zeros, all_lines, parts, LINES: tl.constexpr, PARTS: tl.constexpr):
    """What the parts of LINES lines come to."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    inside = line < all_lines
    part = tl.arange(0, PARTS)[None, :].to(tl.int64)
    mask = inside[:, None] & (part < parts)
    at = part * all_lines + line[:, None]
    all = tl.reduce(tl.load(product + at, mask=mask, other=1.0), 1, _multiplied)
    found = tl.sum(tl.load(zeros + at, mask=mask, other=0.0), 1)
    if out is not None:
        tl.store(out + line, _product_of(all, found).to(tl.float32), mask=inside)
    else:
        tl.store(joined + line, all, mask=inside)
        tl.store(all_zeros + line, found, mask=inside)


@kernel
def _gradients(
    x, grad, product, zeros, to, n, lines, blocks, tiles, outer_stride, line_stride, stride, LINES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The product of the others: without a zero a quotient, with one 0 but in its place, with more 0."""
    program = tl.program_id(0).to(tl.int64)
    tile = program % tiles
    block = program // tiles % blocks
    outer = program // tiles // blocks
    line = block * LINES + tl.arange(0, LINES)
    inside = line < lines
    mine = outer * lines + line
    place = tile * BLOCK + tl.arange(0, BLOCK)[None, :].to(tl.int64)
    mask = inside[:, None] & (place < n)
    at = outer * outer_stride + line[:, None] * line_stride + place * stride
    flow = tl.load(grad + mine, mask=inside, other=0.0).to(tl.float64)
    coefficient = (flow * tl.load(product + mine, mask=inside, other=1.0))[:, None]
    found = tl.load(zeros + mine, mask=inside, other=0.0)[:, None]
    value = tl.load(x + at, mask=mask, other=1.0).to(tl.float64)
    others = tl.where(value == 0.0, coefficient, tl.where(found == 0.0, coefficient / value, 0.0))
    tl.store(to + at, tl.where(found > 1.0, 0.0, others).to(tl.float32), mask=mask)


PRODUCTS, JOIN, GRADIENTS = Kernel(_products), Kernel(_join), Kernel(_gradients)


class _Tiles(NamedTuple):
    """Lines as tiles: of unit stride all are one block of them."""

    outer: int
    lines: int
    outer_stride: int
    line_stride: int
    taken: int
    block: int

    @property
    def blocks(self) -> int:
        return int(triton.cdiv(self.lines, self.taken))


def _power(n: int) -> int:
    return int(triton.next_power_of_2(n))


def _tiles(x: Lines, tile: int, least: int) -> _Tiles:
    if x.inner == 1:
        block = min(tile, _power(x.n))
        return _Tiles(1, x.outer, 0, x.outer_stride, min(tile // block, _power(x.outer)), block)
    taken = min(_power(x.inner), max(least, tile // _power(x.n)))
    return _Tiles(x.outer, x.inner, x.outer_stride, 1, taken, min(tile // taken, _power(x.n)))


def _multiply(x: Lines, out: Tensor | None) -> tuple[Any, ...]:
    """Writes the products of all lines to ``out``; without it returns those of what is not 0, and counts of zeros."""
    settings = CONFIGS.pick("products", N=x.n, inner=x.inner, dtype=x.tensor.dtype)
    programs, t = settings.pop("PROGRAMS"), _tiles(x, settings.pop("TILE"), settings.pop("COLUMNS"))
    count = t.outer * t.lines
    parts = min(triton.cdiv(programs, t.outer * t.blocks), triton.cdiv(x.n, max(PART // t.taken, t.block)))
    length = triton.cdiv(triton.cdiv(x.n, parts), t.block) * t.block
    parts = triton.cdiv(x.n, length)
    kept = out is None or parts > 1
    found = _two(kept, x.tensor, parts, count)
    PRODUCTS.at(LINES=t.taken, BLOCK=t.block, **settings)(
        (t.outer * t.blocks * parts, 1, 1), x.tensor, None if kept else out, *found, x.n, t.lines, t.blocks, count,
        t.outer_stride, t.line_stride, x.stride, parts, length,
    )  # fmt: skip
    if parts > 1:
        many = _power(parts)
        taken = max(1, min(1024 // many, _power(count)))
        joined = _two(out is None, x.tensor, count)
        JOIN.at(LINES=taken, PARTS=many, num_warps=4)(
            (triton.cdiv(count, taken), 1, 1), *found, out, *joined, count, parts
        )
        found = joined
    return found


def _two(wanted: bool, x: Tensor, *shape: int) -> tuple[Any, ...]:
    """Room for products and counts of zeros; None for each if it is not asked for."""
    return tuple(torch.empty((2, *shape), dtype=torch.float64, device=x.device)) if wanted else (None, None)


def forward(x: Tensor, dim: Any, keepdim: bool, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = torch.empty(reduced_shape(tuple(x.shape), dim, keepdim), dtype=x.dtype, device=x.device)
    if not x.numel():
        return out.fill_(1.0)
    _multiply(reduced_lines(x, dim), out)
    return out


def backward(grad: Tensor, x: Tensor, dim: Any, keepdim: bool, out: Any = None) -> Any:
    given, dims, turn = align_dims(x, dim)
    made = torch.empty_like(given) if out is None or turn else out
    if x.numel():
        where = reduced_lines(given, dims, ordered=True)
        found = _multiply(where, None)
        settings = CONFIGS.pick("gradients", N=where.n, inner=where.inner, dtype=x.dtype)
        t = _tiles(where, settings.pop("TILE"), settings.pop("COLUMNS"))
        tiles = triton.cdiv(where.n, t.block)
        flow = (grad if keepdim else grad.reshape(kept_shape(tuple(x.shape), dim))).contiguous()
        GRADIENTS.at(LINES=t.taken, BLOCK=t.block, **settings)(
            (t.outer * t.blocks * tiles, 1, 1), where.tensor, flow, *found, made, where.n, t.lines, t.blocks, tiles,
            t.outer_stride, t.line_stride, where.stride,
        )  # fmt: skip
    if turn is None:
        return made
    return turn(made) if out is None else out.copy_(turn(made))
