"""The discrete Fourier transform of real lines."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor

from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.spectral.rfft.contract import TEMPLATE, at_once
from kernelworks.ops.spectral.rfft.mutants import MUTANTS

__all__ = ["OP", "rfft"]


@overload
def rfft(
    x: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *,
    out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def rfft(
    input: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *,
    out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@two_names
def rfft(
    x: Any = ABSENT, n: Any = None, dim: Any = -1, norm: Any = None, *rest: Any, out: Any = None,
    kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The discrete Fourier transform of real lines: the frequencies from 0 to N / 2.

    ``output_k = scale * sum_j x_j e^(-2 pi i j k / N)``. The other frequencies are the conjugates of these.

    Args:
        x: any shape of at least one dimension, float32, any strides.
        n: the length N; a longer line is cut, a shorter one filled with zeros. By default the line's.
        dim: the dimension of the lines, also counted from the end.
        norm: the scale: "backward" or None for 1, "ortho" for 1 / sqrt(N), "forward" for 1 / N.
        out: where to write: a contiguous complex64 tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        complex64, of x's shape but for N // 2 + 1 numbers along ``dim``. The first number, and of an even N the
        last, have no imaginary part.

    Error bound of each part: ``u |part| + c(N) 2^-24 scale sum_j |x_j|``, c about 8.5 log2 N for powers of two.
    Cost: 2.5 N log2 N flop a line; reads x once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run (lengths above 2^20 and
        those with a prime factor above 7 are torch's).
    Source: Cooley and Tukey 1965, Math. Comp. 19; torch.fft.rfft.
    """
    if torchs or rest:
        return TORCH_SIGNATURE((x, n, dim, norm, *rest), torchs, {}, out, kernel)
    return OP.call(x, n, dim, norm, out, kernel)


def _ours(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> tuple[Any, ...] | str:
    return input, n, dim, norm


OP = TEMPLATE.op(MUTANTS, passthrough=at_once(torch.fft.rfft))
TORCH_SIGNATURE = TorchSignature(OP, torch.fft.rfft, _ours, {"input": "x"}, operator="fft_rfft")
