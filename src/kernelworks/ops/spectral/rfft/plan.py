"""What transforms of one length have in common: how the length is cut, and the twiddle factors.

Tables are made in float64 and rounded once. They are kept by length, so that calls of another length in between change
nothing; whoever reads one holds it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelworks.build.sharing import choose_threads
from kernelworks.contract.complex_numbers import as_parts
from kernelworks.contract.row_layout import lines_along

__all__ = [
    "IRFFT", "MOST", "RFFT", "Plan", "circle", "launch", "plan_of", "prime_factors", "scale_of",
]  # fmt: skip

RFFT: Callable[..., Tensor] = torch.fft.rfft
IRFFT: Callable[..., Tensor] = torch.fft.irfft

MOST = 2**20  # numbers of a line; with more the tables would not be small beside it
MULTIPLE = 16  # of both factors of a row that is cut: the widest vectors
IN_LANES = 2048  # complex numbers of a line that is a lane; two buffers of 16 such lines stay in L2
NANOSECONDS = 0.1  # about what a number takes at each doubling of the length, one thread of a CPU


def prime_factors(n: int) -> list[int]:
    found, p = [], 2
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1 if p * p <= n else n - p
    return found


def scale_of(norm: str | None, N: int, inverse: bool) -> float:
    """What ``norm`` multiplies a transform of N numbers by."""
    if norm == "ortho":
        return 1 / math.sqrt(N)
    return 1 / N if (norm == "forward") != inverse else 1.0


def _turns(at: Tensor, n: int) -> Tensor:
    """e^(-2 pi i k / n) of integers k, as [2, ...]: the real parts and the imaginary ones."""
    angle = (at % n).double() * (2 * math.pi / n)
    both = torch.stack((angle.cos(), -angle.sin()))
    return torch.where(both.abs() < 1e-15, 0.0, both).float()


@functools.lru_cache(maxsize=64)
def circle(n: int, device: str = "cpu") -> Tensor:
    return _turns(torch.arange(n, device="cpu"), n).to(device)


class Plan(NamedTuple):
    """Of a complex transform's length M = N1 N2, or of N1 = 0 for one that is not cut: see ``simd/fft.hpp``."""

    circle: Tensor
    second: Tensor
    whole: Tensor
    twist: Tensor
    N1: int
    N2: int


@functools.lru_cache(maxsize=64)
def plan_of(N: int, cut: bool) -> Plan:
    M, none = N if N % 2 else N // 2, circle(1)
    N1 = 0
    if cut and M % MULTIPLE**2 == 0:
        whole = M // MULTIPLE**2
        N1 = MULTIPLE * max(d for d in range(1, math.isqrt(whole) + 1) if whole % d == 0)
    if not N1:
        return Plan(circle(M), none, circle(N), none, 0, 0)
    N2 = M // N1
    twist = _turns(torch.outer(torch.arange(N1, device="cpu"), torch.arange(N2, device="cpu")), M)
    return Plan(circle(N1), circle(N2), circle(N), twist, N1, N2)


def launch(kernel: Any, out: Tensor, x: Tensor, dim: int, N: int, scale: float, middle: float) -> Tensor:
    """Runs one of the C++ functions. ``middle`` is a factor of the frequencies that stand for two: all but the first
    and, of an even length, the last."""
    where = lines_along(x, dim)
    count = where.outer * where.inner
    if out.numel():
        M = N if N % 2 else N // 2
        plan = plan_of(N, where.inner == 1 and (where.outer < MULTIPLE or M > IN_LANES))
        run, threads = choose_threads(kernel, NANOSECONDS * count * N * max(1, N.bit_length()))
        run(as_parts(out), as_parts(where.tensor), *where[1:], N, scale, middle, *plan, threads)
    return out
