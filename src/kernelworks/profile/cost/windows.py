"""Work of ops that slide a window: convolutions, pools, interpolation. Taps that fall on padding are not counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kernelworks.profile.cost import Work
from kernelworks.profile.cost.operands import Arguments, Operand, name_of, total_bytes
from kernelworks.profile.cost.results import result_bytes, results

__all__ = [
    "adaptive_pool",
    "average_pool_backward",
    "convolution",
    "convolution_backward",
    "convolution_work",
    "grid_sample",
    "interpolation",
    "pool",
    "pool_backward",
    "taps",
]  # fmt: skip

Formula = Callable[[Arguments], Work | None]


def taps(windows: int, size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """How many taps of all windows along one dimension lie on the data: pairs of a window w and a tap t with
    ``0 <= w * stride - padding + t * dilation < size``."""
    total = 0
    for t in range(kernel):
        shift = padding - t * dilation
        first, last = max(0, -(-shift // stride)), min(windows - 1, (size - 1 + shift) // stride)
        total += max(0, last - first + 1)
    return total


def _per_dimension(value: Any, rank: int, default: int) -> list[int]:
    """An argument that says one number for all dimensions, or one for each."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [value] * rank
    if not isinstance(value, (list, tuple)) or not value:
        return [default] * rank
    return [int(v) for v in (list(value) * rank if len(value) == 1 else value)]


# ---------------------------------------------------------------- convolutions


class _Convolution:
    """The geometry of one: ``x`` [B, C, ...], ``weight`` [Cout, C / groups, ...], transposed [C, Cout / groups, ..].

    If it is transposed every element of x has a window on the result, else every result has one on x.
    """

    def __init__(self, a: Arguments, x: Operand, weight: Operand) -> None:
        rank = len(weight.shape) - 2
        self.x, self.weight, self.kernel = x, weight, weight.shape[2:]
        self.stride, self.dilation = (_per_dimension(a[name], rank, 1) for name in ("stride", "dilation"))
        self.padding = _per_dimension(a["padding"], rank, 0)
        self.extra = _per_dimension(a["output_padding"], rank, 0)
        self.groups = a["groups"] if isinstance(a["groups"], int) else 1
        self.transposed = a["transposed"] is True or "transpose" in a.name
        self.inner = x.shape[len(x.shape) - rank :]

    @property
    def outer(self) -> list[int]:
        """The sizes of the result beyond batch and channels."""
        sizes = zip(self.inner, self.kernel, self.stride, self.padding, self.dilation, self.extra, strict=True)
        if self.transposed:
            return [(n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, d, e in sizes]
        return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in sizes]

    @property
    def channels(self) -> int:
        """Of the result. A transposed weight may lie either way round (oneDNN's does)."""
        if not self.transposed:
            return self.weight.shape[0]
        return self.weight.shape[0] * self.weight.shape[1] * self.groups // max(1, self.x.shape[-len(self.kernel) - 1])

    @property
    def batch(self) -> int:
        return self.x.shape[0] if len(self.x.shape) == len(self.weight.shape) else 1

    def flop(self, outer: Sequence[int]) -> float:
        """A multiply-add for each tap on the data: the forward's, and that of each of the two backward products."""
        windows, line = (self.inner, outer) if self.transposed else (outer, self.inner)
        sides = zip(windows, line, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        pairs = math.prod(taps(*side) for side in sides)
        return 2.0 * self.batch * self.weight.shape[0] * self.weight.shape[1] * pairs


def convolution(a: Arguments) -> Work | None:
    """conv(x, weight, bias, ...), forward and transposed, in one to three dimensions."""
    return convolution_work(a, a[0], a["weight"], total_bytes(a.operands))


def convolution_work(a: Arguments, x: Any, weight: Any, read: float) -> Work | None:
    """The same of a call whose arguments have other names; ``read`` bytes."""
    if not (isinstance(x, Operand) and isinstance(weight, Operand)) or len(weight.shape) < 3:
        return None
    shape = _Convolution(a, x, weight)
    outer = shape.outer
    written = shape.batch * shape.channels * math.prod(outer) * x.dtype.itemsize
    return Work(shape.flop(outer), 0.0, float(read), written, name_of(x.dtype))


def convolution_backward(a: Arguments) -> Work | None:
    """A product of the forward's size for each gradient of x and of the weight that is asked for, a sum for the
    bias's."""
    grad, x, weight, mask = a["grad_output"], a["input"], a["weight"], a["output_mask"]
    if not all(isinstance(o, Operand) for o in (grad, x, weight)) or len(weight.shape) < 3:
        return None
    wanted = list(mask) if isinstance(mask, (list, tuple)) and len(mask) == 3 else [True, True, True]
    shape = _Convolution(a, x, weight)
    flop = shape.flop(grad.shape[len(grad.shape) - len(shape.kernel) :]) * (wanted[0] + wanted[1])
    bias = shape.channels * grad.dtype.itemsize if wanted[2] else 0
    used = [grad, *([weight] if wanted[0] else []), *([x] if wanted[1] else [])]
    written = (x.numel * wanted[0] + weight.numel * wanted[1]) * x.dtype.itemsize + bias
    return Work(flop + grad.numel * wanted[2], 0.0, total_bytes(used), written, name_of(x.dtype))


# ---------------------------------------------------------------- pools


def pool(a: Arguments) -> Work | None:
    """max_pool, avg_pool: one flop for each element under each window."""
    x, out = a[0], results(a)
    if not isinstance(x, Operand) or not out:
        return None
    rank = 1 if "1d" in a.name else 3 if "3d" in a.name else 2
    kernel = _per_dimension(a["kernel_size"], rank, 1)
    stride = a["stride"]
    steps = _per_dimension(stride if stride else kernel, rank, 1)
    padding, dilation = _per_dimension(a["padding"], rank, 0), _per_dimension(a["dilation"], rank, 1)
    sides = zip(out[0].shape[-rank:], x.shape[-rank:], kernel, steps, padding, dilation, strict=True)
    pairs = math.prod(taps(*side) for side in sides)
    return Work(float(math.prod(x.shape[:-rank]) * pairs), 0.0, x.bytes, sum(o.bytes for o in out))


def pool_backward(a: Arguments) -> Work | None:
    """max_pool_backward(grad, x, ..., indices): a sum for each window; x itself is not looked at."""
    grad, x, written = a[0], a[1], result_bytes(a)
    if not (isinstance(grad, Operand) and isinstance(x, Operand)):
        return None
    read = total_bytes(o for o in a.operands if o is not x)
    return Work(float(grad.numel), 0.0, read, written if written is not None else x.numel * x.dtype.itemsize)


def average_pool_backward(a: Arguments) -> Work | None:
    """avg_pool_backward(grad, x, ...): a sum for each element under each window."""
    grad, x = a[0], a[1]
    if not (isinstance(grad, Operand) and isinstance(x, Operand)):
        return None
    rank = 1 if "1d" in a.name else 3 if "3d" in a.name else 2
    if "adaptive" in a.name:
        pairs = math.prod(_shared(n, o) for n, o in zip(x.shape[-rank:], grad.shape[-rank:], strict=True))
    else:
        kernel = _per_dimension(a["kernel_size"], rank, 1)
        steps = _per_dimension(a["stride"] or kernel, rank, 1)
        padding = _per_dimension(a["padding"], rank, 0)
        sides = zip(grad.shape[-rank:], x.shape[-rank:], kernel, steps, padding, [1] * rank, strict=True)
        pairs = math.prod(taps(*side) for side in sides)
    planes = math.prod(grad.shape[:-rank])
    return Work(float(planes * pairs), 0.0, grad.bytes, x.numel * x.dtype.itemsize)


def _shared(size: int, windows: int) -> int:
    """The elements under all windows of an adaptive pool along one dimension; windows may overlap."""
    return sum(-(-(w + 1) * size // windows) - w * size // windows for w in range(windows))


def adaptive_pool(a: Arguments) -> Work | None:
    x, out = a[0], results(a)
    if not isinstance(x, Operand) or not out:
        return None
    rank = 1 if "1d" in a.name else 3 if "3d" in a.name else 2
    pairs = math.prod(_shared(n, o) for n, o in zip(x.shape[-rank:], out[0].shape[-rank:], strict=True))
    return Work(float(math.prod(x.shape[:-rank]) * pairs), 0.0, x.bytes, sum(o.bytes for o in out))


# ---------------------------------------------------------------- values between the elements


def interpolation(points: int) -> Formula:
    """upsample: a multiply-add for each of the ``points`` that a result lies between (1: a copy). Of x no more than
    those points is read."""

    def count(a: Arguments) -> Work | None:
        x, out = a[0], results(a)
        if not isinstance(x, Operand) or not out:
            return None
        results_, n = sum(o.bytes for o in out), float(max(out[0].numel, x.numel if "backward" in a.name else 0))
        read = x.bytes if "backward" in a.name else min(x.bytes, points * results_)
        return Work(2.0 * points * n if points > 1 else 0.0, 0.0, read, results_)

    return count


def grid_sample(a: Arguments) -> Work | None:
    """grid_sampler(x [B, C, ...], grid [B, ..., d], mode): a multiply-add for each corner of the cell (bilinear), of a
    cell's neighbours too (bicubic), or a copy (nearest)."""
    out, rank = results(a), 3 if "3d" in a.name else 2
    x, grid = next(((x, g) for x, g in ((a["input"], a["grid"]),)), (None, None))
    if not isinstance(x, Operand) or not isinstance(grid, Operand) or not out:
        return None
    mode = a["interpolation_mode"] if isinstance(a["interpolation_mode"], int) else 0
    points = {0: 2**rank, 1: 1, 2: 4**rank}.get(mode, 1)
    results_, n = sum(o.bytes for o in out), x.shape[1] * grid.numel // rank
    passes = 2 if "backward" in a.name else 1
    read = min(x.bytes, points * n * x.dtype.itemsize) + grid.bytes + (n * x.dtype.itemsize if passes == 2 else 0)
    return Work(2.0 * points * n * passes, 0.0, read, results_)
