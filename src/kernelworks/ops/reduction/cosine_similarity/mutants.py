"""Known-wrong versions of cosine_similarity. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.reduction.cosine_similarity.contract import ARGUMENTS, reference
from kernelworks.templates.mutants import VECTOR, generic, shift_elements

__all__ = ["MUTANTS"]


def _made(how: Callable[[Tensor, Tensor, Tensor, float], Tensor]) -> Any:
    """A function of the product and both norms, in float64."""

    def run(x: Tensor, y: Tensor, dim: int, eps: float) -> Tensor:
        one, other = x.double(), y.double()
        return how((one * other).sum(dim), one.norm(dim=dim), other.norm(dim=dim), eps).to(x.dtype)

    return run


def _called(how: Callable[[Tensor, Tensor, int, float], tuple[Any, ...]]) -> Any:
    """The definition of other arguments, in float64."""
    return lambda x, y, dim, eps: reference(*how(x.double(), y.double(), dim, eps))[0].to(x.dtype)


def _without_tail(x: Tensor, y: Tensor, dim: int, eps: float) -> tuple[Any, ...]:
    n = x.shape[dim] if x.dim() else 1
    if n <= VECTOR:
        return x, y, dim, eps
    whole = n // VECTOR * VECTOR
    return x.narrow(dim, 0, whole), y.narrow(dim, 0, whole), dim, eps


def _in_float32(x: Tensor, y: Tensor, dim: int, eps: float) -> Tensor:
    one, other = x.float(), y.float()
    squares = one.square().sum(dim) * other.square().sum(dim)
    return ((one * other).sum(dim) / squares.sqrt().clamp_min(eps)).to(x.dtype)


MUTANTS = (
    *generic(reference, ("x",), tuple(ARGUMENTS)),
    Mutant("y one aside", _called(lambda x, y, d, e: (x, shift_elements(y), d, e)), "y is read one element aside"),
    Mutant("off by one tile", _called(_without_tail), "what is left of a line behind its tiles is left out"),
    Mutant("first dimension", _called(lambda x, y, d, e: (x, y, 0, e)), "always along the first dimension"),
    Mutant("last dimension", _called(lambda x, y, d, e: (x, y, -1, e)), "always along the last dimension"),
    Mutant("eps added", _made(lambda p, a, b, e: p / ((a + e) * (b + e))), "eps joins the norms"),
    Mutant("eps of the product", _made(lambda p, a, b, e: p / (a * b).clamp_min(e)), "norms are limited together"),
    Mutant("no eps", _made(lambda p, a, b, e: (p / (a * b)).nan_to_num(0.0)), "norms below eps are divided by"),
    Mutant("dot product", _made(lambda p, a, b, e: p), "nothing is divided"),
    Mutant("one norm", _made(lambda p, a, b, e: p / a.clamp_min(e)), "y's norm is left out"),
    Mutant("distance", _made(lambda p, a, b, e: 1.0 - p / (a.clamp_min(e) * b.clamp_min(e))), "1 less the cosine"),
    Mutant("squares", _made(lambda p, a, b, e: p / (a.clamp_min(e) * b.clamp_min(e)).square()), "no root is taken"),
    Mutant("magnitude", _made(lambda p, a, b, e: p.abs() / (a.clamp_min(e) * b.clamp_min(e))), "the sign is lost"),
    Mutant("float32 squares", _in_float32, "squares overflow and vanish"),
)  # fmt: skip
