"""hadamard_transform on the GPU: a program keeps some lines in registers."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.contract.row_layout import lines_along
from kernelworks.ops.spectral.hadamard_transform.contract import padded_length

CONFIGS = configs(__file__)


@triton.jit
def _hadamard(out, x, count, N, stride, scale, P: tl.constexpr, LINES: tl.constexpr, LEVELS: tl.constexpr):
    line = (tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES))[:, None]
    j = tl.arange(0, P)[None, :]
    here = (line < count) & (j < N)
    y = tl.load(x + line * stride + j, mask=here, other=0.0).to(tl.float32)
    for s in tl.static_range(LEVELS):
        pairs = tl.permute(tl.reshape(y, [LINES, P >> (s + 1), 2, 1 << s]), (0, 1, 3, 2))
        a, b = tl.split(pairs)
        y = tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 1, 3, 2)), [LINES, P])
    tl.store(out + line * N + j, (y * scale).to(out.dtype.element_ty), mask=here)


HADAMARD = Kernel(_hadamard)


@functools.cache
def _at(P: int, dtype: torch.dtype) -> tuple[Launch, int]:
    chosen = CONFIGS.pick("lines", dtype=dtype, N=P)
    together = max(1, chosen.pop("NUMBERS") // P)
    return HADAMARD.at(P=P, LINES=together, LEVELS=P.bit_length() - 1, **chosen), together


def forward(x: Tensor, scale: float, out: Any = None) -> Tensor:
    made = x.new_empty(x.shape) if out is None else out
    if made.numel():
        where = lines_along(x, -1)
        launch, together = _at(padded_length({"x": x}), x.dtype)
        grid = (triton.cdiv(where.outer, together), 1, 1)
        launch(grid, made, where.tensor, where.outer, where.n, where.outer_stride, float(scale))
    return made


def backward(grad: Tensor, x: Tensor, scale: float, out: Any = None) -> Tensor:
    return forward(grad, scale, out)
