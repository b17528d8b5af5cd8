"""The discrete Fourier transform of lines of a power of two, in registers: a program takes some lines whole.

Stockham's radix 2, as in ``simd/fft.hpp``: of n numbers the halves meet, and what comes of them is woven together. A
real line is half as many complex numbers. Twiddle factors are read from a table of e^(-2 pi i k / N).
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
def _transform(re, im, turns, N, LINES: tl.constexpr, M: tl.constexpr, STAGES: tl.constexpr, INVERSE: tl.constexpr):
    """The transform of each row of [LINES, M], M = 2^STAGES; ``turns`` is the table of the whole, N = 2 M."""
    for s in tl.static_range(STAGES):
        step: tl.constexpr = 1 << s
        at = tl.arange(0, M // 2) // step * step * 2
        w_re, w_im = tl.load(turns + at)[None, :], tl.load(turns + N + at)[None, :]
        if INVERSE:
            w_im = -w_im
        a_re, b_re = tl.split(tl.permute(tl.reshape(re, [LINES, 2, M // 2]), (0, 2, 1)))
        a_im, b_im = tl.split(tl.permute(tl.reshape(im, [LINES, 2, M // 2]), (0, 2, 1)))
        d_re, d_im = a_re - b_re, a_im - b_im
        c_re, c_im = d_re * w_re - d_im * w_im, d_re * w_im + d_im * w_re
        re = _woven(a_re + b_re, c_re, LINES, M, step)
        im = _woven(a_im + b_im, c_im, LINES, M, step)
    return re, im


@kernel
def _woven(a, b, LINES: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr):
    """``STEP`` numbers of the one, as many of the other, and so on."""
    both = tl.reshape(tl.join(a, b), [LINES, M // 2 // STEP, STEP, 2])
    return tl.reshape(tl.permute(both, (0, 1, 3, 2)), [LINES, M])


@kernel
def _line_places(lines, inner, outer_stride, out_n, LINES: tl.constexpr):
    """Which lines a program takes, and where they begin in input and output; in 64 bits."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    return (line < lines)[:, None], line // inner * outer_stride + line % inner, line // inner * out_n * inner + line % inner


@triton.jit
def real_to_complex(
    out, x, turns, lines, n, inner, outer_stride, stride, out_n, scale, middle, N: tl.constexpr, LINES: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """``out`` and strides as ``fft.hpp`` has them. ``out`` has a place for the two parts of each number."""
    M: tl.constexpr = N // 2
    here, first, to = _line_places(lines, inner, outer_stride, out_n, LINES)
    j = tl.arange(0, M)[None, :].to(tl.int64)
    p = x + first[:, None]
    re = tl.load(p + 2 * j * stride, mask=here & (2 * j < n), other=0.0)
    im = tl.load(p + (2 * j + 1) * stride, mask=here & (2 * j + 1 < n), other=0.0)
    re, im = _transform(re, im, turns, N, LINES, M, STAGES, False)
    index = tl.broadcast_to(((M - j) % M).to(tl.int32), [LINES, M])  # the numbers k and M - k make a frequency
    r_re, r_im = tl.gather(re, index, 1), -tl.gather(im, index, 1)
    k = tl.arange(0, M)
    w_re, w_im = tl.load(turns + k)[None, :], tl.load(turns + N + k)[None, :]
    o_re, o_im = im - r_im, r_re - re  # -i (z - conj z')
    half = tl.where(j == 0, 0.5 * scale, 0.5 * scale * middle)
    y_re = (re + r_re + (o_re * w_re - o_im * w_im)) * half
    y_im = tl.where(j == 0, 0.0, (im + r_im + (o_re * w_im + o_im * w_re)) * half)
    at = out + 2 * (to[:, None] + j * inner)
    kept = here & (j < out_n)
    tl.store(at, y_re, mask=kept)
    tl.store(at + 1, y_im, mask=kept)
    # The last frequency: of the number 0 alone.
    last = (re + r_re - (o_re * w_re - o_im * w_im)) * half
    end = out + 2 * (to[:, None] + (j + M) * inner)
    tl.store(end, last, mask=here & (j == 0) & (M < out_n))
    tl.store(end + 1, tl.zeros_like(last), mask=here & (j == 0) & (M < out_n))


@triton.jit
def complex_to_real(
    out, x, turns, lines, n, inner, outer_stride, stride, out_n, scale, middle, N: tl.constexpr, LINES: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    M: tl.constexpr = N // 2
    here, first, to = _line_places(lines, inner, outer_stride, out_n, LINES)
    k = tl.arange(0, M)[None, :].to(tl.int64)
    p = x + 2 * first[:, None]
    ends = k == 0
    factor = tl.where(ends, 1.0, middle)
    a_re = tl.load(p + 2 * k * stride, mask=here & (k < n), other=0.0) * factor
    a_im = tl.load(p + 2 * k * stride + 1, mask=here & (k < n) & (k > 0), other=0.0) * factor
    b_re = tl.load(p + 2 * (M - k) * stride, mask=here & (M - k < n), other=0.0) * factor
    b_im = -tl.load(p + 2 * (M - k) * stride + 1, mask=here & (M - k < n) & (k > 0), other=0.0) * factor
    at = tl.arange(0, M)
    w_re, w_im = tl.load(turns + at)[None, :], -tl.load(turns + N + at)[None, :]
    d_re, d_im = a_re - b_re, a_im - b_im
    o_re, o_im = d_re * w_re - d_im * w_im, d_re * w_im + d_im * w_re
    re, im = _transform(a_re + b_re - o_im, a_im + b_im + o_re, turns, N, LINES, M, STAGES, True)
    q = out + to[:, None]
    tl.store(q + 2 * k * inner, re * scale, mask=here & (2 * k < out_n))
    tl.store(q + (2 * k + 1) * inner, im * scale, mask=here & (2 * k + 1 < out_n))


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
        return of.at(N=N, LINES=lines, STAGES=N.bit_length() - 2, **chosen), lines

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
