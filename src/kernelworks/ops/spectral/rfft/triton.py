"""rfft on the GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.build.triton import configs
from kernelworks.contract.row_layout import lines_along
from kernelworks.ops.spectral.rfft.contract import length_of, shape_of
from kernelworks.ops.spectral.rfft.plan import circle, scale_of
from kernelworks.tile.fft import Fourier

FOURIER = Fourier(configs(__file__))


def forward(x: Tensor, n: int | None, dim: int, norm: str | None, out: Any = None) -> Tensor:
    said = {"x": x, "n": n, "dim": dim}
    made = x.new_empty(shape_of(said), dtype=torch.complex64) if out is None else out
    N = length_of(said)
    where, turns = lines_along(x, dim), circle(N, str(x.device))
    FOURIER(made, where, turns, N, scale_of(norm, N, False), 1.0, inverse=False)
    return made


def backward(grad: Tensor, x: Tensor, n: int | None, dim: int, norm: str | None, out: Any = None) -> Tensor:
    made = x.new_empty(x.shape) if out is None else out
    N = length_of({"x": x, "n": n, "dim": dim})
    where, turns = lines_along(grad, dim), circle(N, str(x.device))
    FOURIER(made, where, turns, N, scale_of(norm, N, False), 0.5, inverse=True)
    return made
