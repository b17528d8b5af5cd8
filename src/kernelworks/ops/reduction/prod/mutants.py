"""Known-wrong versions of prod. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import in_float64
from kernelworks.contract import Mutant
from kernelworks.contract.reduced_dims import dims_of
from kernelworks.ops.reduction.prod.contract import ARGUMENTS, reference
from kernelworks.templates.mutants import VECTOR, generic

__all__ = ["MUTANTS"]

RIGHT = in_float64(reference)


def _of(how: Callable[[Tensor], Tensor]) -> Any:
    """The product of other elements."""
    return lambda x, dim, keepdim: RIGHT(how(x), dim, keepdim)


def _without_tail(x: Tensor, dim: Any, keepdim: bool) -> Any:
    dims = dims_of(tuple(x.shape), dim)
    if dims is not None and len(dims) == 1 and x.shape[dims[0]] > VECTOR:
        x = x.narrow(dims[0], 0, x.shape[dims[0]] // VECTOR * VECTOR)
    return RIGHT(x, dim, keepdim)


def _padded_with_zeros(x: Tensor, dim: Any, keepdim: bool) -> Any:
    """A tail whose lanes beyond the end are 0 and not 1."""
    made = RIGHT(x, dim, keepdim)
    dims = dims_of(tuple(x.shape), dim)
    n = x.shape[dims[0]] if dims else x.numel()
    return torch.zeros_like(made) if n % VECTOR else made


def _by_logarithms(x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """The exponential of a sum of logarithms in float32, with the sign of the product."""
    dims = dims_of(tuple(x.shape), dim) or tuple(range(x.dim()))
    magnitude = x.float().abs().log().sum(dims, keepdim=keepdim).exp()
    sign: Tensor = reference(x.float().sign(), dim, keepdim)[0]
    return (sign * magnitude).to(x.dtype)


def _one_dimension(x: Tensor, dim: Any, keepdim: bool) -> Any:
    return RIGHT(x, dim[0] if isinstance(dim, (tuple, list)) and dim else dim, keepdim)


def _sum(x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    return x.double().sum(dims_of(tuple(x.shape), dim) or (), keepdim=keepdim).to(x.dtype)


MUTANTS = (
    *generic(reference, ("x",), tuple(ARGUMENTS)),
    Mutant("off by one tile", _without_tail, "what is left of a line behind its tiles is left out"),
    Mutant("padded with zeros", _padded_with_zeros, "lanes behind the end of a line are 0"),
    Mutant("first dimension", lambda x, dim, k: RIGHT(x, 0, k), "always along the first dimension"),
    Mutant("last dimension", lambda x, dim, k: RIGHT(x, -1, k), "always along the last dimension"),
    Mutant("one dimension", _one_dimension, "of several dimensions the first alone"),
    Mutant("dimension kept", lambda x, dim, k: RIGHT(x, dim, True), "keepdim whatever is asked"),
    Mutant("zeros left out", _of(lambda x: torch.where(x == 0, 1.0, x).to(x.dtype)), "the product of what is not 0"),
    Mutant("magnitude", _of(torch.abs), "the sign is lost"),
    Mutant("by logarithms", _by_logarithms, "a sum of logarithms in float32"),
    Mutant("sum", _sum, "elements are added"),
)  # fmt: skip
