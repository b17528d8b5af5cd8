"""The discrete Fourier transform of lines of a power of two, in registers: a program takes some lines whole.

Stockham's radix 2: of n numbers the halves meet, and what comes of them is woven together. A real line is taken for
complex numbers: to make half as many of it, each would have to meet the one across, which lies in another thread's
registers. Twiddle factors are read from a table of e^(-2 pi i k / N).
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Configs, Kernel, Launch, kernel
from kernelworks.contract.complex_numbers import as_parts
from kernelworks.contract.row_layout import Lines

__all__ = ["Fourier"]


@kernel
def _transform(re, im, turns, LINES: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr, INVERSE: tl.constexpr):
    """The transform of each row of [LINES, N], N = 2^STAGES."""
    for s in tl.static_range(STAGES):
        at = tl.arange(0, N // 2) // (1 << s) * (1 << s)
        w_re, w_im = tl.load(turns + at)[None, :], tl.load(turns + N + at)[None, :]
        if INVERSE:
            w_im = -w_im
        a_re, b_re = tl.split(tl.permute(tl.reshape(re, [LINES, 2, N // 2]), (0, 2, 1)))
        a_im, b_im = tl.split(tl.permute(tl.reshape(im, [LINES, 2, N // 2]), (0, 2, 1)))
        d_re, d_im = a_re - b_re, a_im - b_im
        re = _woven(a_re + b_re, d_re * w_re - d_im * w_im, LINES, N, 1 << s)
        im = _woven(a_im + b_im, d_re * w_im + d_im * w_re, LINES, N, 1 << s)
    return re, im


@kernel
def _woven(a, b, LINES: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr):
    """``STEP`` numbers of the one, as many of the other, and so on."""
    both = tl.reshape(tl.join(a, b), [LINES, N // 2 // STEP, STEP, 2])
    return tl.reshape(tl.permute(both, (0, 1, 3, 2)), [LINES, N])


@kernel
def _line_places(lines, inner, outer_stride, out_n, LINES: tl.constexpr):
    """Which lines a program takes, and where they begin in input and output; in 64 bits."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    outer, beside = line // inner, line % inner
    return (line < lines)[:, None], (outer * outer_stride + beside)[:, None], (outer * out_n * inner + beside)[:, None]


@triton.jit
def real_to_complex(
    out, x, turns, lines, n, inner, outer_stride, stride, out_n, scale, middle, N: tl.constexpr, LINES: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Arguments as ``fft.hpp`` has them. What comes beyond the transform's end hangs on no input."""
    here, first, to = _line_places(lines, inner, outer_stride, out_n, LINES)
    k = tl.arange(0, N)[None, :].to(tl.int64)
    re = tl.load(x + first + k * stride, mask=here & (k < n), other=0.0)
    re, im = _transform(re, tl.zeros_like(re), turns, LINES, N, STAGES, False)
    ends = (k == 0) | (2 * k == N)
    factor = tl.where(2 * k > N, 0.0, tl.where(ends, scale, scale * middle))
    at = out + 2 * (to + k * inner)
    tl.store(at, tl.where(2 * k > N, 0.0, re * factor), mask=here & (k < out_n))
    tl.store(at + 1, tl.where(ends | (2 * k > N), 0.0, im * factor), mask=here & (k < out_n))
    for more in range(N, out_n, N):
        beyond = out + 2 * (to + (k + more) * inner)
        tl.store(beyond, tl.zeros_like(re), mask=here & (k + more < out_n))
        tl.store(beyond + 1, tl.zeros_like(re), mask=here & (k + more < out_n))


@triton.jit
def complex_to_real(
    out, x, turns, lines, n, inner, outer_stride, stride, out_n, scale, middle, N: tl.constexpr, LINES: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    here, first, to = _line_places(lines, inner, outer_stride, out_n, LINES)
    j = tl.arange(0, N)[None, :].to(tl.int64)
    k = tl.where(2 * j > N, N - j, j)  # the frequency whose number, or its conjugate, stands here
    ends = (k == 0) | (2 * k == N)
    factor = tl.where(ends, 1.0, middle)
    at = x + 2 * (first + k * stride)
    re = tl.load(at, mask=here & (k < n), other=0.0) * factor
    im = tl.load(at + 1, mask=here & (k < n) & (k > 0) & (2 * k < N), other=0.0) * factor
    re, im = _transform(re, tl.where(2 * j > N, -im, im), turns, LINES, N, STAGES, True)
    tl.store(out + to + j * inner, re * scale, mask=here & (j < out_n))
    for more in range(N, out_n, N):
        tl.store(out + to + (j + more) * inner, tl.zeros_like(re), mask=here & (j + more < out_n))


FORWARD, INVERSE = Kernel(real_to_complex), Kernel(complex_to_real)


class Fourier:
    """Launches both kernels, by the configurations of an op package."""

    def __init__(self, configs: Configs) -> None:
        self.configs = configs

    @functools.cache  # noqa: B019  an op package holds one for good
    def _at(self, inverse: bool, N: int) -> tuple[Launch, int]:
        chosen = self.configs.pick("lines", dtype=torch.float32, N=N)
        lines = max(1, chosen.pop("NUMBERS") // N)
        of = INVERSE if inverse else FORWARD
        return of.at(N=N, LINES=lines, STAGES=N.bit_length() - 1, **chosen), lines

    def __call__(
        self, out: Tensor, where: Lines, turns: Tensor, N: int, scale: float, middle: float, *, inverse: bool
    ) -> None:
        """``where`` are the input's lines; ``turns`` the table of e^(-2 pi i k / N), [2, N]."""
        count = where.outer * where.inner
        if not out.numel():
            return
        launch, lines = self._at(inverse, N)
        launch(
            (triton.cdiv(count, lines), 1, 1), as_parts(out), as_parts(where.tensor), turns, count, *where[2:],
            out.numel() // count, float(scale), float(middle),
        )  # fmt: skip
