"""Flop of factorisations and of Fourier transforms: the textbook's leading terms, each matrix of a batch alike."""

from __future__ import annotations

import math
from collections.abc import Callable

from kernelworks.profile.cost import Work
from kernelworks.profile.cost.operands import Arguments, Operand, name_of, total_bytes
from kernelworks.profile.cost.results import result_bytes, results

__all__ = ["factorization", "fourier", "linear_solve"]

Formula = Callable[[Arguments], Work | None]


def _matrix(a: Arguments) -> tuple[Operand, int, int, int] | None:
    x = a[0]
    if not isinstance(x, Operand) or len(x.shape) < 2:
        return None
    return x, math.prod(x.shape[:-2]), x.shape[-2], x.shape[-1]


def factorization(cubic: float, slender: float = 0.0) -> Formula:
    """A factorisation of [.., m, n]: ``slender`` m n^2 + ``cubic`` n^3 flop a matrix, n the smaller side.

    Sources: Golub and Van Loan, Matrix Computations: LU 2/3 n^3, Cholesky 1/3 n^3, QR 2 m n^2 - 2/3 n^3 and as much for
    Q itself, symmetric eigenvalues 4/3 n^3 and with vectors 9 n^3, eigenvalues 10 n^3 and with vectors 25 n^3, singular
    values 4 m n^2 - 4/3 n^3 and with vectors 4 m n^2 + 8 n^3, exponential 14 n^3 at the least.
    The polar decomposition is that of singular values and two products, 2 m n^2 and 2 n^3.
    """

    def count(a: Arguments) -> Work | None:
        found, written = _matrix(a), result_bytes(a)
        if found is None or written is None:
            return None
        x, batch, rows, columns = found
        m, n = max(rows, columns), min(rows, columns)
        flop = batch * (slender * m * n * n + cubic * n**3)
        return Work(
            max(flop, 0.0),
            0.0,
            total_bytes(a.all_operands),
            written + total_bytes(a.mutated_operands),
            name_of(x.dtype),
        )

    return count


def linear_solve(square: float, cubic: float = 0.0) -> Formula:
    """Systems of n unknowns for k right-hand sides: ``cubic`` n^3 for the factors, ``square`` n^2 k to solve."""

    def count(a: Arguments) -> Work | None:
        out = results(a)
        tensors = [o for o in a.operands if len(o.shape) >= 2]
        if not tensors or not out:
            return None
        n = min(max(o.shape[-2:]) for o in tensors if o.shape[-2] == o.shape[-1]) if _squares(tensors) else 0
        x = max(out, key=lambda o: o.numel)
        batch_and_columns = x.numel / max(n, 1)
        batch = math.prod(x.shape[:-2])
        flop = square * n * n * batch_and_columns + cubic * n**3 * batch
        return Work(flop, 0.0, total_bytes(a.all_operands), sum(o.bytes for o in out), name_of(x.dtype))

    return count


def _squares(tensors: list[Operand]) -> bool:
    return any(o.shape[-2] == o.shape[-1] for o in tensors)


def fourier(a: Arguments) -> Work | None:
    """A transform of complex numbers over N = the sizes of ``dim``: 5 N log2 N flop each, half
    if one side is real."""
    x, out = a[0], results(a)
    if not isinstance(x, Operand) or not out or not x.shape:
        return None
    real = "c2c" not in a.name
    line = out[0] if "c2r" in a.name else x  # the side whose dimensions have their whole length
    dims = a.dims("dim", len(line.shape))
    length = math.prod(line.shape[d] for d in dims)
    flop = (2.5 if real else 5.0) * line.numel * math.log2(max(length, 2))
    return Work(flop, 0.0, x.bytes, out[0].bytes, "float64" if "128" in name_of(line.dtype) else "float32")
