"""Norms of rows that many programs share.

The first kernel goes over parts of rows, the second joins a row's parts to its mean and 1 / spread, the third writes.
Elements are widened to float64 one by one: no row of float32 overflows there or loses its spread, and the kernels wait
on memory all the same. A part adds up what is left of its elements when its first one, the pivot, is taken off:

    d = x - pivot,  mean = pivot + sum(d) / n,  squares = sum(d^2) - sum(d)^2 / n

The difference loses n (pivot - mean)^2 2^-53 at most. The pivot is itself an element, so that (pivot - mean of row)^2
is no more than the row's squares: what is lost is below 2^-53 (2 n + 2) of them, 2^-34 for a part of 2^18. Parts join
by Chan's formula: squares add up with n (mean of part - mean of row)^2.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs, kernel
from kernelworks.contract.memory_layout import as_rows
from kernelworks.tile.row_chunks import appended

LONGEST_PART = 2**18  # elements: more would lose more than is said above
PARTS_AT_ONCE = 1024  # parts that a program joins at a time


@kernel
def _met(at, pivot, left, sums, squares, BLOCK: tl.constexpr, AHEAD: tl.constexpr, WHOLE: tl.constexpr):
    """The sums when they have met AHEAD blocks from ``at`` on, all of which are asked for before the first is looked
    at; ``left`` elements are left, WHOLE: as many as that."""
    column = tl.arange(0, BLOCK)
    held = ()
    for k in tl.static_range(AHEAD):
        place = k * BLOCK + column
        if WHOLE:
            held = appended(held, tl.load(at + place))
        else:
            held = appended(held, tl.load(at + place, mask=place < left, other=0.0))
    for k in tl.static_range(AHEAD):
        d = tl.cast(held[k], tl.float64) - pivot
        if not WHOLE:
            d = tl.where(k * BLOCK + column < left, d, 0.0)
        sums += d
        squares += d * d
    return sums, squares


@kernel
def _part(
    x, mean, squares, x_stride, N, parts, length,
    CENTRED: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """``length`` is a multiple of BLOCK AHEAD."""
    SPAN: tl.constexpr = BLOCK * AHEAD
    program = tl.program_id(0).to(tl.int64)
    begin = program % parts * length
    count = tl.minimum(begin + length, N) - begin
    at = x + program // parts * x_stride + begin
    pivot = tl.load(at).to(tl.float64) if CENTRED else tl.zeros([], tl.float64)
    sums = tl.zeros([BLOCK], tl.float64)
    around = tl.zeros([BLOCK], tl.float64)
    whole = count // SPAN * SPAN
    for first in tl.range(0, whole, SPAN):
        sums, around = _met(at + first, pivot, 0, sums, around, BLOCK, AHEAD, True)
    if whole < count:
        sums, around = _met(at + whole, pivot, count - whole, sums, around, BLOCK, AHEAD, False)
    total, own = tl.sum(sums, 0), tl.sum(around, 0)
    if CENTRED:
        middle = total / count
        own -= total * middle
        tl.store(mean + program, pivot + middle)
    tl.store(squares + program, own)


@kernel
def _counts(first, N, parts, length, JOINED: tl.constexpr):
    """Which parts there are from ``first`` on, and how many elements each has."""
    part = first + tl.arange(0, JOINED).to(tl.int64)
    return part, part < parts, tl.minimum(length, N - part * length).to(tl.float64)


@kernel
def _join(
    mean, squares, row_mean, row_rstd, N, parts, length, eps, CENTRED: tl.constexpr, JOINED: tl.constexpr
):  # fmt: skip
    """A row's mean and 1 / spread. Means are compared with the first part's, so that equal ones stay what they are."""
    row = tl.program_id(0).to(tl.int64)
    its = squares + row * parts
    around = tl.zeros([JOINED], tl.float64)
    if CENTRED:
        means = mean + row * parts
        origin = tl.load(means)
        moved = tl.zeros([JOINED], tl.float64)
        for first in tl.range(0, parts, JOINED):
            part, there, count = _counts(first, N, parts, length, JOINED)
            moved += tl.where(there, (tl.load(means + part, mask=there, other=0.0) - origin) * count, 0.0)
        middle = origin + tl.sum(moved, 0) / N
        for first in tl.range(0, parts, JOINED):
            part, there, count = _counts(first, N, parts, length, JOINED)
            apart = tl.load(means + part, mask=there, other=0.0) - middle
            around += tl.where(there, count * apart * apart, 0.0)
        tl.store(row_mean + row, middle)
    for first in tl.range(0, parts, JOINED):
        part, there, _ = _counts(first, N, parts, length, JOINED)
        around += tl.load(its + part, mask=there, other=0.0)
    variance = tl.sum(around, 0) / N
    variance = tl.where(variance < 0.0, 0.0, variance)  # of equal elements; NaN stays
    tl.store(row_rstd + row, 1.0 / tl.sqrt(variance + eps))


@kernel
def _write(
    x, weight, bias, output, row_mean, row_rstd, x_stride, M, N,
    CENTRED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK columns of ROWS rows, which share weight and bias. What was read last comes first: some of it is still in
    L2."""
    blocks = tl.cdiv(N, BLOCK)
    program = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    column = program % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    begin = program // blocks * ROWS
    if weight is not None:
        w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    for row in tl.range(begin, tl.minimum(begin + ROWS, M)):
        v = tl.load(x + row * x_stride + column, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float64)
        if CENTRED:
            v -= tl.load(row_mean + row)
        y = (v * tl.load(row_rstd + row)).to(tl.float32)
        if weight is not None:
            y *= w
        if bias is not None:
            y += b
        tl.store(output + row * N + column, y.to(output.dtype.element_ty), mask=inside)


@kernel
def _flow(grad, x, weight, row, column, inside, row_mean, row_rstd, grad_stride, x_stride, CENTRED: tl.constexpr):
    """What flows in, the same times the weight, and the normalised row."""
    z = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float64)
    if CENTRED:
        z -= tl.load(row_mean + row)
    z *= tl.load(row_rstd + row)
    g = tl.load(grad + row * grad_stride + column, mask=inside, other=0.0).to(tl.float64)
    if weight is not None:
        return g, g * tl.load(weight + column, mask=inside, other=0.0).to(tl.float64), z
    else:
        return g, g, z


@kernel
def _sums(
    grad, x, weight, row_mean, row_rstd, of_rows, of_weight, of_bias, grad_stride, x_stride, M, N, height,
    CENTRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What BLOCK columns of ``height`` rows add up to: to the parameters' gradients a number a column, to a row's
    averages two numbers a program."""
    blocks = tl.cdiv(N, BLOCK)
    program = tl.program_id(0).to(tl.int64)
    block, group = program % blocks, program // blocks
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    weight_sums = tl.zeros([BLOCK], tl.float64)
    bias_sums = tl.zeros([BLOCK], tl.float64)
    for row in tl.range(group * height, tl.minimum(group * height + height, M)):
        g, gw, z = _flow(grad, x, weight, row, column, inside, row_mean, row_rstd, grad_stride, x_stride, CENTRED)
        tl.store(of_rows + row * blocks + block, tl.sum(gw * z, 0))
        if CENTRED:
            tl.store(of_rows + (M + row) * blocks + block, tl.sum(gw, 0))
        weight_sums += g * z
        bias_sums += g
    if of_weight is not None:
        tl.store(of_weight + group * N + column, weight_sums.to(tl.float32), mask=inside)
    if of_bias is not None:
        tl.store(of_bias + group * N + column, bias_sums.to(tl.float32), mask=inside)


@kernel
def _average(of_rows, means, N, blocks, JOINED: tl.constexpr):
    """The average of a row's numbers."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([JOINED], tl.float64)
    for first in tl.range(0, blocks, JOINED):
        block = first + tl.arange(0, JOINED)
        total += tl.load(of_rows + row * blocks + block, mask=block < blocks, other=0.0)
    tl.store(means + row, tl.sum(total, 0) / N)


@kernel
def _turn(
    grad, x, weight, grad_x, row_mean, row_rstd, means, grad_stride, x_stride, M, N,
    CENTRED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """grad_x = rstd (gw - mean(gw) - z mean(gw z)), from the end on, as in ``_write``."""
    blocks = tl.cdiv(N, BLOCK)
    program = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    column = program % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    begin = program // blocks * ROWS
    for row in tl.range(begin, tl.minimum(begin + ROWS, M)):
        _, d, z = _flow(grad, x, weight, row, column, inside, row_mean, row_rstd, grad_stride, x_stride, CENTRED)
        d -= z * tl.load(means + row)
        if CENTRED:
            d -= tl.load(means + M + row)
        d *= tl.load(row_rstd + row)
        tl.store(grad_x + row * N + column, d.to(tl.float32).to(grad_x.dtype.element_ty), mask=inside)


PART, JOIN, WRITE = Kernel(_part), Kernel(_join), Kernel(_write)
SUMS, AVERAGE, TURN = Kernel(_sums), Kernel(_average), Kernel(_turn)


def row_stride(rows: Tensor) -> int:
    """Between rows, of what ``as_rows`` gave."""
    return rows.stride(0) if rows.dim() == 2 else rows.shape[-1]


def _plain(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous()


class LongRows:
    """The passes of one op in its op package's configurations of the kernel ``triton_split``: ``part`` and ``sums``,
    whose PROGRAMS keep a GPU busy, ``write`` and ``turn``. ``names`` are the op's arguments in order, x and eps among
    them."""

    def __init__(self, op_package: str, names: tuple[str, ...], *, centred: bool) -> None:
        self.configs, self.names, self.centred = configs(op_package), names, centred
        self.part, self.over_columns = functools.cache(self._part), functools.cache(self._over_columns)

    def _part(self, dtype: torch.dtype) -> tuple[Any, int, int]:
        """The launch, the elements of a program's turn, and how many programs there should be."""
        chosen = self.configs.pick("part", op_kernel="triton_split", dtype=dtype)
        programs = chosen.pop("PROGRAMS")
        return PART.at(CENTRED=self.centred, **chosen), chosen["BLOCK"] * chosen["AHEAD"], programs

    def _over_columns(self, kernel: Kernel, name: str, dtype: torch.dtype) -> tuple[Any, int, int]:
        """The launch of a kernel over blocks of columns; its rows or how many programs there should be; the columns."""
        chosen = self.configs.pick(name, op_kernel="triton_split", dtype=dtype)
        high = chosen["ROWS"] if "ROWS" in chosen else chosen.pop("PROGRAMS")
        return kernel.at(CENTRED=self.centred, **chosen), high, chosen["BLOCK"]

    def statistics(self, rows: Tensor, m: int, n: int, eps: float) -> tuple[Tensor | None, Tensor]:
        """Mean (None where none is taken off) and 1 / spread of m rows of n, in float64."""
        launch, span, programs = self.part(rows.dtype)
        length = min(triton.cdiv(triton.cdiv(n, max(1, programs // m)), span) * span, LONGEST_PART)
        parts = triton.cdiv(n, length)
        squares, rstd = (rows.new_empty(size, dtype=torch.float64) for size in (m * parts, m))
        mean, row_mean = (torch.empty_like(t) if self.centred else None for t in (squares, rstd))
        launch((m * parts, 1, 1), rows, mean, squares, row_stride(rows), n, parts, length)
        join = JOIN.at(CENTRED=self.centred, JOINED=min(PARTS_AT_ONCE, triton.next_power_of_2(parts)), num_warps=4)
        join((m, 1, 1), squares if mean is None else mean, squares, row_mean, rstd, n, parts, length, float(eps))
        return row_mean, rstd

    def forward(self, *args: Any, out: Tensor | None = None) -> Tensor:
        have = dict(zip(self.names, args, strict=True))
        x = have["x"]
        output = x.new_empty(x.shape) if out is None else out
        if not x.numel():
            return output
        rows, n = as_rows(x), x.shape[-1]
        m = x.numel() // n
        mean, rstd = self.statistics(rows, m, n, have["eps"])
        launch, height, width = self.over_columns(WRITE, "write", x.dtype)
        weight, bias = (_plain(have.get(name)) for name in ("weight", "bias"))
        launch(
            (triton.cdiv(m, height) * triton.cdiv(n, width), 1, 1), rows, weight, bias, output, mean, rstd,
            row_stride(rows), m, n,
        )  # fmt: skip
        return output

    def backward(self, grad: Tensor, *args: Any, out: Any = None) -> tuple[Tensor, ...]:
        """``args``: the gradient of the sum, which there is none of, where the op may have a residual; the forward's
        arguments; the needs."""
        given = args[1:-1] if "residual" in self.names else args[:-1]
        have = dict(zip(self.names, given, strict=True))
        x, n = have["x"], have["x"].shape[-1]
        returns = [name for name in self.names if name != "eps"]
        made = {
            name: x.new_empty((n,) if name in ("weight", "bias") else x.shape)
            if name == "x" or (have[name] is not None and need) else x.new_empty(0)
            for name, need in zip(returns, args[-1], strict=True)
        }  # fmt: skip
        if out is not None:
            made["x"] = out[0]
        if not x.numel():
            return tuple(made[name].zero_() for name in returns)
        rows, grads, m, weight = as_rows(x), as_rows(grad), x.numel() // n, _plain(have["weight"])
        mean, rstd = self.statistics(rows, m, n, have["eps"])
        tensors, strides = (grads, rows, weight), (row_stride(grads), row_stride(rows), m, n)
        means = self._averages(made, tensors, mean, rstd, strides)
        launch, height, width = self.over_columns(TURN, "turn", x.dtype)
        grid = (triton.cdiv(m, height) * triton.cdiv(n, width), 1, 1)
        launch(grid, *tensors, made["x"], mean, rstd, means, *strides)
        return tuple(made[name] for name in returns)

    def _averages(
        self, made: dict[str, Tensor], tensors: tuple[Any, ...], mean: Tensor | None, rstd: Tensor,
        strides: tuple[int, ...],
    ) -> Tensor:  # fmt: skip
        """The averages of gw z, and of gw where a mean is taken off, of each row; the gradients of the parameters that
        are wanted."""
        m, n = strides[2:]
        launch, programs, width = self.over_columns(SUMS, "sums", tensors[1].dtype)
        blocks = triton.cdiv(n, width)
        height = triton.cdiv(m, min(m, max(1, programs // blocks)))
        groups = triton.cdiv(m, height)
        many = m * (2 if self.centred else 1)
        of_rows, means = (rstd.new_empty(size) for size in (many * blocks, many))
        wanted = {name: made[name] for name in ("weight", "bias") if name in made and made[name].numel()}
        found = {name: rstd.new_empty((groups, n), dtype=torch.float32) for name in wanted}
        launch(
            (blocks * groups, 1, 1), *tensors, mean, rstd, of_rows, found.get("weight"), found.get("bias"), *strides,
            height,
        )  # fmt: skip
        average = AVERAGE.at(JOINED=min(PARTS_AT_ONCE, triton.next_power_of_2(blocks)), num_warps=4)
        average((many, 1, 1), of_rows, means, n, blocks)
        for name, gradient in wanted.items():
            gradient.copy_(found[name].sum(0))
        return means
