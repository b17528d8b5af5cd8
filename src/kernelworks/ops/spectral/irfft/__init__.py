"""The inverse of the discrete Fourier transform of real lines."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor

from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.spectral.irfft.contract import TEMPLATE
from kernelworks.ops.spectral.irfft.mutants import MUTANTS
from kernelworks.ops.spectral.rfft.contract import at_once

__all__ = ["OP", "irfft"]


@overload
def irfft(
    x: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *,
    out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def irfft(
    input: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *,
    out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@two_names
def irfft(
    x: Any = ABSENT, n: Any = None, dim: Any = -1, norm: Any = None, *rest: Any, out: Any = None,
    kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The inverse of ``rfft``: real lines from their frequencies 0 to N / 2.

    ``output_j = scale * sum over |k| <= N / 2 of x_k e^(2 pi i j k / N)``, with ``x_-k = conj(x_k)``. The
    imaginary part of the first frequency counts for nothing, nor that of the last of an even N.

    Args:
        x: any shape of at least one dimension, complex64, any strides. It is not written to.
        n: the length N of the result; more frequencies than N // 2 + 1 are cut, fewer filled with zeros. By default
            2 (K - 1) of K frequencies.
        dim: the dimension of the lines, also counted from the end.
        norm: the scale: "backward" or None for 1 / N, "ortho" for 1 / sqrt(N), "forward" for 1.
        out: where to write: a contiguous float32 tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        float32, of x's shape but for N numbers along ``dim``.

    Error bound: ``u |output| + c(N) 2^-24 scale sum over |k| <= N / 2 of |x_k|``, c as of ``rfft``.
    Cost: 2.5 N log2 N flop a line; reads x once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run (lengths above 2^20 and
        those with a prime factor above 7 are torch's).
    Source: Cooley and Tukey 1965, Math. Comp. 19; torch.fft.irfft.
    """
    if torchs or rest:
        return TORCH_SIGNATURE((x, n, dim, norm, *rest), torchs, {}, out, kernel)
    return OP.call(x, n, dim, norm, out, kernel)


def _ours(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> tuple[Any, ...] | str:
    return input, n, dim, norm


OP = TEMPLATE.op(MUTANTS, passthrough=at_once(torch.fft.irfft))
TORCH_SIGNATURE = TorchSignature(OP, torch.fft.irfft, _ours, {"input": "x"}, operator="fft_irfft")
