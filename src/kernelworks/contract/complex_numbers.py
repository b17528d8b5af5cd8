"""Complex numbers as a contract, a judge and a kernel take them: two real numbers side by side.

What is said of a complex dtype is said of the dtype of its parts: float32 is the precision of complex64. A complex
result is judged **by its parts**, each as a real number is. A kernel rounds, overflows and writes the parts one by one,
and some parts are exact (a real transform's first has no imaginary part), which a bound on the modulus of the error
cannot say. So a bound on complex numbers is complex: its parts bound the errors of the parts. Where a derivation gives
a bound e on the modulus, e holds for both parts (``both_parts``), and is wider than on the modulus by at most the root
of 2.

Gradients are torch's: of a real L by a complex z = a + ib, dL/da + i dL/db. So ``z = c x`` carries G back as conj(c) G.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = [
    "as_parts", "both_parts", "complex_of", "from_parts", "is_inexact", "number_kind", "part_dtype", "wide_dtype",
]  # fmt: skip

COMPLEX = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}
PARTS = {whole: part for part, whole in COMPLEX.items()}


def complex_of(dtype: torch.dtype) -> torch.dtype:
    """The complex dtype whose parts are of this one. Raises KeyError if torch has none (bfloat16)."""
    return COMPLEX.get(dtype) or (dtype if dtype.is_complex else COMPLEX[dtype])


def part_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a complex dtype's parts; any other as it is."""
    return PARTS.get(dtype, dtype)


def is_inexact(dtype: torch.dtype) -> bool:
    """Whether numbers of a dtype are rounded: floating-point and complex ones, which alone have gradients."""
    return dtype.is_floating_point or dtype.is_complex


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """What a reference computes in: float64, complex128, integers as they are."""
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


def number_kind(dtype: torch.dtype) -> str:
    """What kind of number a dtype holds; one of another kind is no answer."""
    return "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "exact"


def as_parts(value: Any) -> Any:
    """A complex tensor as real and imaginary parts along one more dimension, the last; anything else as it is."""
    return torch.view_as_real(value.resolve_conj()) if isinstance(value, Tensor) and value.is_complex() else value


def from_parts(parts: Tensor, like: Tensor) -> Tensor:
    """The inverse of ``as_parts``, for what came of ``like``."""
    return torch.view_as_complex(parts.contiguous()) if like.is_complex() else parts


def both_parts(bound: Tensor) -> Tensor:
    """A bound on the modulus of an error as one on both parts."""
    return torch.complex(bound, bound)
