"""What reductions along any dimensions promise: the table of them, an entry each. Nothing else is written by hand."""

import math
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract.cases import VALUES
from kernelworks.contract.numbers import Real
from kernelworks.dispatch.aten import aten
from kernelworks.templates.reduction_stages import torch_signatures as signatures
from kernelworks.templates.reduction_stages.entry import (
    U64,
    OneOf,
    ReductionEntry,
    Stage,
    Variant,
    count_along,
    in_double,
)
from kernelworks.templates.reduction_stages.op_table import ReductionTable

__all__ = ["TABLE"]

EVERY = tuple(VALUES)
FINITE = tuple(kind for kind in VALUES if kind not in ("inf", "negative_inf", "nan"))
EXPONENTIAL = 2.0**-22  # how far an exponential may be off, relatively
MEAN = Stage("mean", "x", finish="s / n")
SQUARES = "(x - mean) * (x - mean)"
FREE = "where(n > correction, n - correction, 0.0)"  # degrees of freedom, from where infinities come
SIGNED_COEFFICIENT = "where(x > 0.0, coefficient, where(x < 0.0, -coefficient, 0.0 * x))"


def _as_tuple(dim: Any) -> tuple[int, ...]:
    return () if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)


# ---------------------------------------------------------------- bounds


def _mean_error(x: Tensor, dims: Any) -> Tensor:
    """A rounding of float64 for each addition and the division."""
    return (count_along(x, dims) + 2) * U64 * torch.mean(x.abs(), dims, keepdim=True)


def _share_error(grad: Tensor, x: Tensor, dims: Any) -> Tensor:
    """A share of what flows in rounds once in float64, or in float32."""
    return 2.0**-23 * grad.abs()


def _var_error(x: Tensor, dims: Any, correction: float) -> Tensor:
    """Of n squares and their sum; the mean that they are taken from adds n times the square of its own error."""
    n = count_along(x, dims)
    squares = (x - x.mean(dims, keepdim=True)).square().sum(dims, keepdim=True)
    return ((n + 8) * U64 * squares + n * _mean_error(x, dims).square()) / max(n - correction, 0.0)


def _std_error(x: Tensor, dims: Any, correction: float) -> Tensor:
    error = _var_error(x, dims, correction)
    std = torch.std(x, dims, correction=correction, keepdim=True)
    return torch.minimum(error / std, error.sqrt()).nan_to_num(0.0) + 2 * U64 * std


def _var_slope_error(grad: Tensor, x: Tensor, dims: Any, correction: float) -> Tensor:
    n = count_along(x, dims)
    distance = (x - x.mean(dims, keepdim=True)).abs()
    return 2.0 * grad.abs() / abs(n - correction) * (_mean_error(x, dims) + 8 * U64 * distance)


def _std_slope_error(grad: Tensor, x: Tensor, dims: Any, correction: float) -> Tensor:
    std = torch.std(x, dims, correction=correction, keepdim=True)
    distance = (x - x.mean(dims, keepdim=True)).abs()
    relative = _std_error(x, dims, correction) / std + 8 * U64
    slope = grad.abs() / (abs(count_along(x, dims) - correction) * std)
    return (slope * (_mean_error(x, dims) + relative * distance)).nan_to_num(0.0, posinf=math.inf)


def _logsumexp_error(x: Tensor, dims: Any) -> Tensor:
    """The logarithm turns the relative error of a sum of exponentials into an absolute one."""
    most = torch.linalg.vector_norm(x, math.inf, dims, keepdim=True) if x.numel() else x.sum(dims, keepdim=True)
    return EXPONENTIAL + count_along(x, dims) * U64 + 4 * U64 * torch.where(most.isfinite(), most, 0.0)


def _softmax_error(grad: Tensor, x: Tensor, dims: Any) -> Tensor:
    """A softmax: two exponentials' errors, and what a float32 result may underflow by."""
    probability = (x - torch.logsumexp(x, dims, keepdim=True)).exp()
    return (2 * EXPONENTIAL + count_along(x, dims) * U64) * grad.abs() * probability + 2.0**-149 * (grad.abs() + 1.0)


def _norm_error(x: Tensor, dims: Any, p: float) -> Tensor:
    """A rounding of float64 for each addition, each square and the root; a largest element is what it is."""
    norm: Tensor = torch.linalg.vector_norm(x, p, dims, keepdim=True)
    return torch.zeros_like(norm) if p == math.inf else (count_along(x, dims) + 4) * U64 * norm


# ---------------------------------------------------------------- what readers would mix up


def _float32_chain(x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """The mean of which the sum is kept in float32, and grows element by element."""
    dims = _as_tuple(dim)
    if len(dims) != 1 or not x.dim() or not 0 < x.shape[dims[0]] < 2048:
        return in_double(torch.mean)(x, dim, keepdim)
    n = x.shape[dims[0]]
    last = x.float().cumsum(dims[0]).narrow(dims[0], n - 1, 1) / n
    return (last if keepdim else last.squeeze(dims[0])).to(x.dtype)


def _one_pass(x: Tensor, dim: Any, keepdim: bool, correction: float) -> Tensor:
    """A variance as the mean of squares less the square of the mean, in float32: it cancels."""
    dims = _as_tuple(dim) or tuple(range(x.dim()))
    y = x.float()
    squares = torch.mean(y * y, dims, keepdim=keepdim) - torch.mean(y, dims, keepdim=keepdim).square()
    n = count_along(x, dims)
    return (squares * n / max(n - correction, 0.0)).to(x.dtype)


def _naive_logsumexp(x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    dims = _as_tuple(dim) or tuple(range(x.dim()))
    return x.float().exp().sum(dims, keepdim=keepdim).log().to(x.dtype)


def _naive_norm(x: Tensor, dim: Any, keepdim: bool, p: float) -> Tensor:
    """Squares in float32: they overflow and vanish."""
    if p != 2.0:
        return in_double(torch.linalg.vector_norm)(x, p, _as_tuple(dim) or None, keepdim)
    dims = _as_tuple(dim) or tuple(range(x.dim()))
    return (x.float() * x.float()).sum(dims, keepdim=keepdim).sqrt().to(x.dtype)


# ---------------------------------------------------------------- the table


def _extremum(name: str, other: str, combine: str, function: Any) -> ReductionEntry:
    top = Stage("top", "x", combine)
    return ReductionEntry(
        name=name,
        function=function,
        call="function(x, () if dim is None else dim, keepdim)",
        operator=lambda x, dim, keepdim: aten(name, x, _as_tuple(dim), keepdim),
        formula=f"output = {combine} over dim of x; NaN where there is one",
        source=f"torch.{name}",
        describe=f"The {'largest' if combine == 'max' else 'smallest'} element along dimensions, or of all.",
        torchs=signatures.extremum,
        variants={
            "": Variant(
                stages=(top,),
                back=(top, Stage("ties", "where(x == top, 1.0, 0.0)")),
                coefficient="grad / ties",
                gradient="where(x == top, coefficient, 0.0 * coefficient)",
            )
        },
        slope_error=_share_error,
        gradient_kinds=FINITE,
        mutants={
            other: (lambda x, dim, k: getattr(torch, other)(x, _as_tuple(dim), k), "the other end"),
            "magnitudes": (lambda x, dim, k: function(x.abs(), _as_tuple(dim), k), "signs are lost"),
            "from 0": (
                lambda x, dim, k: (function(x, _as_tuple(dim), k) * 1).clamp(
                    **{"min" if combine == "max" else "max": 0.0}
                ),
                "a line begins at 0",
            ),
            "rounded": (lambda x, dim, k: function(x.bfloat16(), _as_tuple(dim), k).to(x.dtype), "bfloat16 inside"),
        },
    )


ENTRIES = (
    _extremum("amax", "amin", "max", torch.amax),
    _extremum("amin", "amax", "min", torch.amin),
    ReductionEntry(
        name="mean",
        function=torch.mean,
        call="function(x, dim, keepdim)",
        operator=lambda x, dim, keepdim: aten("mean.dim", x, _as_tuple(dim) or None, keepdim),
        formula="output = (sum over dim of x) / n",
        source="torch.mean",
        describe="The mean of the elements along dimensions, or of all.",
        torchs=signatures.with_dtype,
        variants={"": Variant(stages=(Stage("output", "x", finish="s / n"),), coefficient="grad / n")},
        empty=math.nan,
        bounded="u |output| + (n + 2) 2^-53 mean |x|",
        error=_mean_error,
        slope_error=lambda grad, x, dims: 2.0**-23 * grad.abs() / max(count_along(x, dims), 1),
        gradient_kinds=EVERY,
        mutants={
            "sum": (lambda x, dim, k: in_double(torch.sum)(x, dim, k), "not divided by n"),
            "float32 chain": (_float32_chain, "one float32 addition after the other"),
            "magnitudes": (lambda x, dim, k: in_double(torch.mean)(x.abs(), dim, k), "signs are lost"),
        },
    ),
    ReductionEntry(
        name="var",
        function=torch.var,
        call="function(x, dim, correction=correction, keepdim=keepdim)",
        operator=lambda x, dim, keepdim, correction: aten(
            "var.correction", x, _as_tuple(dim) or None, correction=correction, keepdim=keepdim
        ),
        formula="output = (sum over dim of (x - mean)^2) / max(n - correction, 0)",
        source="Chan, Golub and LeVeque, Algorithms for Computing the Sample Variance, Am. Stat. 37(3), 1983",
        describe="The variance of the elements along dimensions, or of all.",
        torchs=signatures.moment,
        variants={
            "": Variant(
                stages=(
                    MEAN,
                    Stage("output", SQUARES, finish=f"s / {FREE}"),
                ),
                back=(MEAN,),
                coefficient="2.0 / (n - correction) * grad",
                gradient="coefficient * (x - mean)",
            )
        },
        numbers={"correction": Real(1.0)},
        presets={"correction": 1.0},
        empty=math.nan,
        bounded="u |output| + ((n + 8) 2^-53 sum (x - mean)^2 + n ((n + 2) 2^-53 mean |x|)^2) / (n - correction)",
        error=_var_error,
        slope_error=_var_slope_error,
        tries=((0.0,), (2.0,), (0.5,)),
        flop=4.0,
        nanoseconds=0.5,
        mutants={
            "population": (
                lambda x, dim, k, c: in_double(torch.var)(x, dim, correction=0.0, keepdim=k),
                "no correction",
            ),
            "sample": (lambda x, dim, k, c: in_double(torch.var)(x, dim, correction=1.0, keepdim=k), "always 1"),
            "std": (lambda x, dim, k, c: in_double(torch.std)(x, dim, correction=c, keepdim=k), "the root of it"),
            "one pass": (_one_pass, "the mean of squares less the square of the mean"),
        },
    ),
    ReductionEntry(
        name="std",
        function=torch.std,
        call="function(x, dim, correction=correction, keepdim=keepdim)",
        operator=lambda x, dim, keepdim, correction: aten(
            "std.correction", x, _as_tuple(dim) or None, correction=correction, keepdim=keepdim
        ),
        formula="output = sqrt((sum over dim of (x - mean)^2) / max(n - correction, 0))",
        source="torch.std",
        describe="The standard deviation of the elements along dimensions, or of all.",
        torchs=signatures.moment,
        variants={
            "": Variant(
                stages=(
                    MEAN,
                    Stage("output", SQUARES, finish=f"sqrt(s / {FREE})"),
                ),
                back=(
                    MEAN,
                    Stage("std", SQUARES, finish=f"sqrt(s / {FREE})"),
                ),
                coefficient="where(std == 0.0, 0.0, grad / (std * (n - correction)))",
                gradient="coefficient * (x - mean)",
            )
        },
        numbers={"correction": Real(1.0)},
        presets={"correction": 1.0},
        empty=math.nan,
        bounded="u |output| + min(e / output, sqrt(e)), e the variance's",
        error=_std_error,
        slope_error=_std_slope_error,
        tries=((0.0,), (2.0,)),
        flop=4.0,
        nanoseconds=0.5,
        mutants={
            "population": (
                lambda x, dim, k, c: in_double(torch.std)(x, dim, correction=0.0, keepdim=k),
                "no correction",
            ),
            "sample": (lambda x, dim, k, c: in_double(torch.std)(x, dim, correction=1.0, keepdim=k), "always 1"),
            "variance": (
                lambda x, dim, k, c: in_double(torch.var)(x, dim, correction=c, keepdim=k),
                "no root is taken",
            ),
            "one pass": (lambda *args: _one_pass(*args).sqrt(), "the mean of squares less the square of the mean"),
        },
    ),
    ReductionEntry(
        name="logsumexp",
        function=torch.logsumexp,
        call="function(x, tuple(range(x.dim())) if dim is None else dim, keepdim)",
        operator=lambda x, dim, keepdim: (  # torch's operator of no dimension mistakes the shape
            aten("logsumexp", x, _as_tuple(dim), keepdim) if _as_tuple(dim) else None
        ),
        formula="output = log(sum over dim of e^x)",
        source="Blanchard, Higham and Higham, Accurately Computing the Log-Sum-Exp, IMA J. Numer. Anal. 41(4), 2021",
        describe="The logarithm of the sum of exponentials along dimensions.",
        torchs=signatures.along,
        variants={
            "": Variant(
                stages=(
                    Stage("top", "x", "max", "where(abs(s) == INFINITY, 0.0, s)"),
                    Stage("output", "exp(x - top)", finish="log(s) + top"),
                ),
                back=(
                    Stage("top", "x", "max", "where(abs(s) == INFINITY, 0.0, s)"),
                    Stage("sum", "exp(x - top)"),
                ),
                coefficient="grad / sum",
                gradient="coefficient * exp(x - top)",
            )
        },
        every=False,
        empty=-math.inf,
        bounded="u |output| + 2^-22 + n 2^-53 + 2^-51 max |x|",
        error=_logsumexp_error,
        slope_error=_softmax_error,
        flop=4.0,
        exponentials=1.0,
        nanoseconds=1.0,
        mutants={
            "naive": (_naive_logsumexp, "exponentials overflow"),
            "maximum": (lambda x, dim, k: torch.amax(x, _as_tuple(dim), k), "the sum is left out"),
            "sum": (lambda x, dim, k: in_double(torch.logsumexp)(x, dim, k).exp(), "no logarithm is taken"),
        },
    ),
    ReductionEntry(
        name="norm",
        function=torch.linalg.vector_norm,
        call="function(x, p, dim, keepdim)",
        operator=lambda x, dim, keepdim, p: aten("linalg_vector_norm", x, p, _as_tuple(dim) or None, keepdim),
        formula="output = (sum over dim of |x|^p)^(1 / p); max |x| where p is infinite",
        source="torch.linalg.vector_norm",
        describe="The norm of the elements along dimensions, or of all.",
        torchs=signatures.norm,
        written=torch.norm,
        alone='p == "fro"',
        torch_operator="linalg_vector_norm",
        variants={
            "one": Variant(
                stages=(Stage("output", "abs(x)"),),
                gradient=SIGNED_COEFFICIENT,
            ),
            "two": Variant(
                stages=(Stage("output", "x * x", finish="sqrt(s)"),),
                back=(Stage("length", "x * x", finish="sqrt(s)"),),
                coefficient="where(length == 0.0, 0.0, grad / length)",
                gradient="coefficient * x",
            ),
            "inf": Variant(
                stages=(Stage("output", "abs(x)", "max"),),
                back=(Stage("top", "abs(x)", "max"), Stage("ties", "where(abs(x) == top, 1.0, 0.0)")),
                coefficient="grad / ties",
                gradient=f"where(abs(x) == top, {SIGNED_COEFFICIENT}, 0.0)",
            ),
        },
        by_number={1.0: "one", 2.0: "two", math.inf: "inf"},
        numbers={"p": OneOf(2.0, 1.0, math.inf)},
        presets={"p": 2.0},
        before_dim=True,
        empty=0.0,
        bounded="u output + (n + 4) 2^-53 output; nothing where p is infinite",
        error=_norm_error,
        slope_error=lambda grad, x, dims, p: 2.0**-23 * grad.abs(),
        tries=((1.0,), (math.inf,)),
        flop=2.0,
        mutants={
            "naive": (_naive_norm, "squares in float32"),
            "square": (
                lambda x, dim, k, p: in_double(torch.linalg.vector_norm)(x, p, dim, k).square(),
                "no root is taken",
            ),
            "always 2": (
                lambda x, dim, k, p: in_double(torch.linalg.vector_norm)(x, 2.0, dim, k),
                "p is not looked at",
            ),
            "always 1": (
                lambda x, dim, k, p: in_double(torch.linalg.vector_norm)(x, 1.0, dim, k),
                "p is not looked at",
            ),
        },
    ),
)

TABLE = ReductionTable.of(__file__, ENTRIES)
