"""The discrete Fourier transforms of complex lines, both directions."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor

from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.spectral.complex_fft.contract import TABLE
from kernelworks.ops.spectral.rfft.contract import at_once

__all__ = ["FFT", "IFFT", "fft", "ifft"]


@overload
def fft(
    x: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *,
    out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def fft(
    input: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *,
    out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@two_names
def fft(
    x: Any = ABSENT, n: Any = None, dim: Any = -1, norm: Any = None, *rest: Any, out: Any = None,
    kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The discrete Fourier transform of complex lines.

    ``output_k = scale * sum over j < N of x_j e^(-2 pi i j k / N)``

    Args:
        x: any shape of at least one dimension, complex64, any strides.
        n: the length N; a longer line is cut, a shorter one filled with zeros. By default the line's.
        dim: the dimension of the lines, also counted from the end.
        norm: the scale: "backward" or None for 1, "ortho" for 1 / sqrt(N), "forward" for 1 / N.
        out: where to write: a contiguous complex64 tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        complex64, of x's shape but for N numbers along ``dim``.

    Error bound of each part: ``u |part| + c(N) 2^-24 scale sum_j |x_j|``, c about 4.25 log2 N for powers of two.
    Cost: 5 N log2 N flop a line; reads x once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run (lengths above 2^20 and
        those with a prime factor above 7 are torch's).
    Source: Cooley and Tukey 1965, Math. Comp. 19; torch.fft.fft.
    """
    if torchs or rest:
        return FFT_SIGNATURE((x, n, dim, norm, *rest), torchs, {}, out, kernel)
    return FFT.call(x, n, dim, norm, out, kernel)


@overload
def ifft(
    x: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *,
    out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def ifft(
    input: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *,
    out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@two_names
def ifft(
    x: Any = ABSENT, n: Any = None, dim: Any = -1, norm: Any = None, *rest: Any, out: Any = None,
    kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The inverse discrete Fourier transform of complex lines.

    ``output_k = scale * sum over j < N of x_j e^(2 pi i j k / N)``

    Args:
        x: any shape of at least one dimension, complex64, any strides.
        n: the length N; a longer line is cut, a shorter one filled with zeros. By default the line's.
        dim: the dimension of the lines, also counted from the end.
        norm: the scale: "backward" or None for 1 / N, "ortho" for 1 / sqrt(N), "forward" for 1.
        out: where to write: a contiguous complex64 tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        complex64, of x's shape but for N numbers along ``dim``.

    Error bound of each part: ``u |part| + c(N) 2^-24 scale sum_j |x_j|``, c about 4.25 log2 N for powers of two.
    Cost: 5 N log2 N flop a line; reads x once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run (lengths above 2^20 and
        those with a prime factor above 7 are torch's).
    Source: Cooley and Tukey 1965, Math. Comp. 19; torch.fft.ifft.
    """
    if torchs or rest:
        return IFFT_SIGNATURE((x, n, dim, norm, *rest), torchs, {}, out, kernel)
    return IFFT.call(x, n, dim, norm, out, kernel)


def _ours(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> tuple[Any, ...] | str:
    if not getattr(input, "is_complex", lambda: True)():
        return "takes complex numbers, got real ones"
    return input, n, dim, norm


FFT = TABLE.entries["fft"].op(passthrough=at_once(torch.fft.fft))
IFFT = TABLE.entries["ifft"].op(passthrough=at_once(torch.fft.ifft))
FFT_SIGNATURE = TorchSignature(FFT, torch.fft.fft, _ours, {"input": "x"}, operator="fft_fft")
IFFT_SIGNATURE = TorchSignature(IFFT, torch.fft.ifft, _ours, {"input": "x"}, operator="fft_ifft")
