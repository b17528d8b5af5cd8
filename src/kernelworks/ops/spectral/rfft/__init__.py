"""The discrete Fourier transform of real lines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.dispatch.signature import Array, TorchSignature
from kernelworks.ops.spectral.rfft.contract import TEMPLATE, at_once
from kernelworks.ops.spectral.rfft.mutants import MUTANTS

__all__ = ["OP", "rfft"]


def rfft(
    input: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *,
    out: Array | None = None, kernel: str | None = None,
) -> Array:  # fmt: skip
    """The discrete Fourier transform of real lines: the frequencies from 0 to N / 2.

    ``output_k = scale * sum_j input_j e^(-2 pi i j k / N)``. The other frequencies are the conjugates of these.

    Args:
        input: any shape of at least one dimension, float32, any strides.
        n: the length N; a longer line is cut, a shorter one filled with zeros. By default the line's.
        dim: the dimension of the lines, also counted from the end.
        norm: the scale: "backward" or None for 1, "ortho" for 1 / sqrt(N), "forward" for 1 / N.
        out: where to write: a contiguous complex64 tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        complex64, of input's shape but for N // 2 + 1 numbers along ``dim``. The first number, and of an even N the
        last, have no imaginary part.

    Error bound of each part: ``u |part| + c(N) 2^-24 scale sum_j |input_j|``, c about 8.5 log2 N for powers of two.
    Cost: 2.5 N log2 N flop a line; reads input once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Cooley and Tukey 1965, Math. Comp. 19; torch.fft.rfft.
    """
    result: Array = OP.call(input, n, dim, norm, out, kernel)
    return result


def _ours(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> tuple[Any, ...] | str:
    return input, n, dim, norm


OP = TEMPLATE.op(MUTANTS, passthrough=at_once(torch.fft.rfft))
TORCH_SIGNATURE = TorchSignature(OP, torch.fft.rfft, _ours, {}, operator="fft_rfft")
