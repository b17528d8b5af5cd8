"""What reductions along any dimensions promise: the table of them, an entry each. Nothing else is written by hand."""

from typing import Any

import torch
from torch import Tensor

from kernelworks.contract.cases import VALUES
from kernelworks.dispatch.aten import aten
from kernelworks.templates.reduction_entry import U64, ReductionEntry, Stage, Variant
from kernelworks.templates.reduction_table import ReductionTable

__all__ = ["TABLE"]

EVERY = tuple(VALUES)
FINITE = tuple(kind for kind in VALUES if kind not in ("inf", "negative_inf", "nan"))


def _as_list(dim: Any) -> Any:
    return [] if dim is None else [dim] if isinstance(dim, int) else list(dim)


def _mean_error(x: Tensor, dims: Any) -> Tensor:
    """A rounding of float64 for each addition and the division: how far a mean may be off."""
    n = x[(0,) * x.dim()].numel() if not x.dim() else torch.tensor([x.shape[d] for d in dims]).prod().item()
    return (n + 2) * U64 * torch.mean(x.abs(), dims, keepdim=True)


# ---------------------------------------------------------------- torch's signatures


def _with_dtype(
    input: Tensor, dim: int | tuple[int, ...] | list[int] | None = None, keepdim: bool = False, *,
    dtype: torch.dtype | None = None,
) -> tuple[Any, ...] | str:  # fmt: skip
    if dtype is not None and dtype != input.dtype:
        return "dtype asks for another result than the input's"
    return input, dim, keepdim


def _extreme(
    input: Tensor, dim: int | tuple[int, ...] | list[int] = (), keepdim: bool = False
) -> tuple[Any, ...] | str:  # fmt: skip
    return input, dim, keepdim


def _evenly(grad: Tensor, x: Tensor, dims: Any) -> Tensor:
    """A share of what flows in is exact but for its own rounding."""
    return 2.0**-52 * grad.abs()


# ---------------------------------------------------------------- the table


def _extremum(name: str, other: str, combine: str, function: Any) -> ReductionEntry:
    top = Stage("top", "x", combine)
    return ReductionEntry(
        name=name,
        function=function,
        call="function(x, () if dim is None else dim, keepdim)",
        operator=lambda x, dim, keepdim: aten(name, x, _as_list(dim), keepdim),
        formula=f"output = {combine} over dim of x; NaN where there is one",
        source=f"torch.{name}",
        describe=f"The {'largest' if combine == 'max' else 'smallest'} element along dimensions, or of all.",
        torchs=_extreme,
        variants={
            "": Variant(
                stages=(top,),
                back=(top, Stage("ties", "where(x == top, 1.0, 0.0)")),
                coefficient="grad / ties",
                gradient="where(x == top, coefficient, 0.0 * coefficient)",
            )
        },
        slope_error=_evenly,
        gradient_kinds=FINITE,
        mutants={
            "the other end": (lambda x, dim, k: getattr(torch, other)(x, _as_list(dim), k), f"{other}"),
            "magnitudes": (lambda x, dim, k: function(x.abs(), _as_list(dim), k), "signs are lost"),
            "from 0": (lambda x, dim, k: function(torch.cat([x.reshape(-1), x.new_zeros(1)]) if dim is None else
                       torch.cat([x, x.new_zeros(x.shape)], _as_list(dim)[0]) if x.dim() and _as_list(dim) else x,
                       _as_list(dim), k), "a line begins at 0"),
            "rounded": (lambda x, dim, k: function(x.bfloat16(), _as_list(dim), k).to(x.dtype), "bfloat16 inside"),
        },
    )  # fmt: skip


ENTRIES = (
    _extremum("amax", "amin", "max", torch.amax),
    _extremum("amin", "amax", "min", torch.amin),
    ReductionEntry(
        name="mean",
        function=torch.mean,
        call="function(x, dim, keepdim)",
        operator=lambda x, dim, keepdim: aten("mean.dim", x, _as_list(dim) or None, keepdim),
        formula="output = (sum over dim of x) / n",
        source="torch.mean",
        describe="The mean of the elements along dimensions, or of all.",
        torchs=_with_dtype,
        variants={"": Variant(stages=(Stage("output", "x", finish="s / n"),), coefficient="grad / n")},
        empty=float("nan"),
        bounded="u |output| + (n + 2) 2^-53 mean |x|",
        error=_mean_error,
        slope_error=lambda grad, x, dims: 2.0**-23 * grad.abs() / max(x.numel() // max(grad.numel(), 1), 1),
        gradient_kinds=EVERY,
        mutants={
            "sum": (lambda x, dim, k: torch.sum(x.double(), _as_list(dim), k).to(x.dtype), "not divided by n"),
            "one fewer": (lambda x, dim, k: torch.mean(x.double(), _as_list(dim), k).to(x.dtype) * 1.02, "divided wrongly"),
            "float32 chain": (lambda x, dim, k: _chain(x, dim, k), "one float32 addition after the other"),
            "float16 inside": (lambda x, dim, k: torch.mean(x.half().double(), _as_list(dim), k).to(x.dtype), "float16"),
        },
    ),
)


def _chain(x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """The mean of which the sum is kept in float32, and grows element by element."""
    dims = _as_list(dim) or list(range(x.dim()))
    line = x.float().cumsum(dims[0]) if x.dim() and len(dims) == 1 and 0 < x.shape[dims[0]] < 2048 else None
    if line is None:
        return torch.mean(x.double(), dims, keepdim).to(x.dtype)
    last = line.narrow(dims[0], line.shape[dims[0]] - 1, 1) / x.shape[dims[0]]
    return (last if keepdim else last.squeeze(dims[0])).to(x.dtype)


TABLE = ReductionTable.of(__file__, ENTRIES)
