"""The second step of a gradient that sums over rows: partial sums, one row a program, added in a fixed order."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from kernelworks.build.triton import Kernel


@triton.jit
def _column_sums(partial, out, beside, P, N, ROWS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    which = tl.program_id(1)
    rows = tl.arange(0, ROWS)
    total = tl.zeros([ROWS, BLOCK], tl.float64)
    at = partial + which.to(tl.int64) * P * N
    if EARLY:
        gdc_wait()
    for start in range(0, P, ROWS):
        p = start + rows
        mask = (p < P)[:, None] & (cols < N)[None, :]
        total += tl.load(at + p.to(tl.int64)[:, None] * N + cols[None, :], mask=mask, other=0.0).to(tl.float64)
    sums = tl.sum(total, 0).to(tl.float32)
    if beside is None or which == 0:
        tl.store(out + cols, sums.to(out.dtype.element_ty), mask=cols < N)
    else:
        tl.store(beside + cols, sums.to(beside.dtype.element_ty), mask=cols < N)


COLUMN_SUMS = Kernel(_column_sums)
