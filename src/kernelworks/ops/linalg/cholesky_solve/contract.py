"""What cholesky_solve promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import (
    UNIT_ROUNDOFF,
    Case,
    Contract,
    Cost,
    Request,
    need_dtype,
    need_same,
    need_tensor,
    rounding,
)
from kernelworks.contract.cases import normal
from kernelworks.contract.results import Result

__all__ = ["CONTRACT", "MOST", "SOLVE", "apply_factor", "batch_of", "decline"]

U32 = UNIT_ROUNDOFF[torch.float32]
F32 = (torch.float32,)
MOST = 32  # rows of a matrix; a lane's share of larger ones leaves the first cache
SOLVE: Callable[..., Tensor] = torch.cholesky_solve


def check(B: Any, L: Any, upper: Any) -> None:
    need_tensor("B", B)
    need_dtype("B", B, F32)
    if len(B.shape) < 2:
        raise ValueError(f"B must have shape [..., N, K], got {list(B.shape)}")
    need_tensor("L", L)
    need_same("L", L, "B", B)
    N = B.shape[-2]
    if len(L.shape) < 2 or tuple(L.shape[-2:]) != (N, N):
        raise ValueError(f"L must have shape [..., {N}, {N}] for B of {list(B.shape)}, got {list(L.shape)}")
    try:
        torch.broadcast_shapes(B.shape[:-2], L.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"L must have a batch that broadcasts with B's {list(B.shape[:-2])}, got {list(L.shape[:-2])}"
        ) from None
    if not isinstance(upper, bool):
        raise TypeError(f"upper must be a bool, got {type(upper).__name__}")


def batch_of(args: Any) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(args["B"].shape[:-2], args["L"].shape[:-2]))


def reference(B: Tensor, L: Tensor, upper: bool) -> tuple[Tensor, ...]:
    return (SOLVE(B, L, upper),)


def apply_factor(S: Tensor, L: Tensor, upper: bool) -> Tensor:
    """What a change S of the matrix L L^T, or L^T L, is to the factor: see README.md."""
    return L @ S if upper else S @ L


# ---------------------------------------------------------------- bounds


def _gamma(n: int) -> float:
    return n * U32 / (1 - n * U32)


def _solved(L: Tensor, upper: bool, x: Tensor) -> Tensor:
    """How far off a right solution may be of the system whose solution is ``x``; infinite where float32 cannot say."""
    M = (L.triu().mT if upper else L.tril()).contiguous()
    N = M.shape[-1]
    inverse = torch.cholesky_inverse(M) if M.dim() == 2 else torch.linalg.inv(M @ M.mT)
    W = 2 * _gamma(N + 1) * (inverse.abs() @ (M.abs() @ M.abs().mT))
    rest = torch.eye(N, dtype=W.dtype) - W
    error = torch.linalg.solve(rest, W @ x.abs()) if N else x.abs()
    lost = torch.linalg.eigvals(W).abs().amax(-1) >= 1 if N else torch.zeros(W.shape[:-2], dtype=torch.bool)
    return torch.where(lost[..., None, None], torch.inf, error)


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    (x,) = outputs
    return (rounding(x, dtype) + _solved(args["L"], args["upper"], x),)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    B, L, upper = args["B"], args["L"], args["upper"]
    x, g = SOLVE(B, L, upper), SOLVE(grads[0], L, upper)
    e, d = _solved(L, upper, x), _solved(L, upper, g)
    off = d @ x.abs().mT + g.abs() @ e.mT + d @ e.mT
    off, terms = off + off.mT, g.abs() @ x.abs().mT + x.abs() @ g.abs().mT
    sums = _gamma(2 * B.shape[-1] + B.shape[-2] + 3)
    changed = apply_factor(off + sums * (terms + off), L.abs(), upper)
    return {
        "B": rounding(gradients["B"], dtype) + d.sum_to_size(B.shape) * (1 + _gamma(math.prod(batch_of(args)))),
        "L": rounding(gradients["L"], dtype) + changed.sum_to_size(L.shape),
    }


# ---------------------------------------------------------------- cost and sizes


def cost(request: Request) -> Cost:
    args = request.args
    N, K = args["B"].shape[-2:]
    batch = math.prod(batch_of(args))
    if request.pass_ == "backward":
        both = args["needs"][1] if isinstance(args.get("needs"), (tuple, list)) else True
        read = args["grad_output"].nbytes + args["L"].nbytes + both * args["output"].nbytes
        written = args["B"].nbytes + both * args["L"].nbytes
        return Cost(batch * K * N * N * (2.0 + 8.0 * both), 0.0, read, written)
    return Cost(2.0 * batch * N * N * K, 0.0, args["B"].nbytes + args["L"].nbytes, 4 * batch * N * K)


def dims(request: Request) -> dict[str, int]:
    N, K = request.args["B"].shape[-2:]
    return {"M": math.prod(batch_of(request.args)), "N": N, "K": K}


def decline(request: Request) -> str | None:
    if not request.args:
        return None
    B, L = request.args["B"], request.args["L"]
    if B.shape[-2] > MOST:
        return f"takes matrices of at most {MOST} rows, got {B.shape[-2]}"
    if B.shape[:-2] != L.shape[:-2]:
        return f"takes as many matrices as right-hand sides, got {list(L.shape[:-2])} and {list(B.shape[:-2])}"
    return None


# ---------------------------------------------------------------- cases


def _factor(generator: Generator, batch: tuple[int, ...], N: int, kind: str) -> Tensor:
    """A lower factor: of a matrix that is far from singular, or near."""
    if kind == "hilbert":  # of a condition of 1.5e4 for N = 4
        i = torch.arange(N, dtype=torch.float64)
        whole: Tensor = torch.linalg.cholesky(1 / (i[:, None] + i[None, :] + 1))
        return whole.expand(*batch, N, N)
    below = torch.randn((*batch, N, N), generator=generator, dtype=torch.float64).tril(-1) / max(1, N) ** 0.5
    if kind == "ill-conditioned":
        diagonal = 10 ** torch.linspace(0, -2, N, dtype=torch.float64)
        near: Tensor = diagonal.diag() + below * 0.3 * diagonal[:, None]
        return near
    far: Tensor = torch.diag_embed(1 + torch.rand((*batch, N), generator=generator, dtype=torch.float64)) + below
    return far


def _make(
    generator: Generator, dtype: torch.dtype, batch: tuple[int, ...], N: int, K: int, *, upper: bool = False,
    kind: str = "", rest: float = 0.0, of_L: tuple[int, ...] | None = None, scale: float = 1.0,
) -> dict[str, Any]:  # fmt: skip
    """``rest`` stands in the triangle that is not read."""
    L = _factor(generator, batch if of_L is None else of_L, N, kind).to(dtype) * scale
    if rest:
        L = torch.where(torch.ones(N, N, dtype=torch.bool).tril(), L, rest)
    return {"B": normal(generator, dtype, *batch, N, K), "L": (L.mT if upper else L).contiguous(), "upper": upper}


def _case(
    name: str, batch: tuple[int, ...], N: int, K: int, *, layouts: bool = False, gradients: bool = True, **said: Any
) -> Case:
    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        return _make(generator, dtype, batch, N, K, **said)

    return Case(name, make, dtypes=F32, layouts=layouts, gradients=gradients)


SIZES = (
    (1, 1), (2, 1), (3, 2), (4, 1), (5, 3), (7, 7), (8, 1), (9, 17), (12, 4), (15, 1), (16, 2), (17, 5), (31, 1),
    (32, 3),
)  # fmt: skip
CASES = (
    *(_case(f"{N}x{N}, {K}", (19,), N, K, upper=N % 2 == 0) for N, K in SIZES),
    *(_case(f"{N}x{N}, {K}, the other triangle", (5,), N, K, upper=N % 2 == 1) for N, K in SIZES[1:8:3]),
    *(_case(f"{count} of 6x6", (count,), 6, 2, layouts=count == 17) for count in (1, 16, 17, 130)),
    _case("one matrix without a batch", (), 8, 3, layouts=True),
    _case("two dimensions of batch", (2, 3), 5, 4, layouts=True, upper=True),
    *(
        _case(f"{kind} {N}x{N}", (17,), N, 2, kind=kind, upper=upper)
        for kind, N in (("ill-conditioned", 4), ("ill-conditioned", 16), ("hilbert", 4)) for upper in (False, True)
    ),
    *(_case(f"scaled by {scale:g}", (17,), 6, 2, scale=scale) for scale in (1e-6, 1e6)),
    _case("nan in the triangle that is not read", (17,), 6, 2, rest=math.nan, gradients=False),
    _case("nan in the triangle that is not read, upper", (17,), 6, 2, rest=math.nan, gradients=False, upper=True),
    _case("5 in the triangle that is not read", (17,), 6, 2, rest=5.0),
    _case("no matrices", (0,), 4, 2),
    _case("no right-hand sides", (3,), 4, 0),
    _case("one matrix for all", (7,), 5, 2, of_L=()),
    _case("33x33", (3,), 33, 2),
)  # fmt: skip


def _sized(*sizes: tuple[int, int, int]) -> tuple[Case, ...]:
    return tuple(_case(f"{count} of {N}x{N}, {K}", (count,), N, K) for count, N, K in sizes)


BENCH_CASES = _sized((4096, 4, 1), (4096, 8, 1), (4096, 16, 1), (4096, 32, 1), (1024, 16, 16), (64, 16, 1))
DEVICE = _sized((4099, 4, 1), (513, 16, 3), (131, 32, 17))
DEVICE_BENCH = _sized((262144, 4, 1), (65536, 16, 1), (16384, 32, 8))


def _wrong(**changed: Any) -> Any:
    return lambda: {"B": torch.ones(3, 4, 2), "L": torch.ones(3, 4, 4), "upper": False} | changed


ERRORS = (
    ("B is None", _wrong(B=None), TypeError, "B must be a torch.Tensor"),
    ("B is float64", _wrong(B=torch.ones(3, 4, 2).double()), TypeError, "B must have dtype float32"),
    ("B is a vector", _wrong(B=torch.ones(4)), ValueError, "B must have shape [..., N, K]"),
    ("L is None", _wrong(L=None), TypeError, "L must be a torch.Tensor"),
    ("L is float64", _wrong(L=torch.ones(3, 4, 4).double()), TypeError, "L must have B's dtype"),
    ("L is complex", _wrong(L=torch.ones(3, 4, 4, dtype=torch.complex64)), TypeError, "L must have B's dtype"),
    ("L is not square", _wrong(L=torch.ones(3, 4, 5)), ValueError, "L must have shape [..., 4, 4]"),
    ("L of another size", _wrong(L=torch.ones(3, 5, 5)), ValueError, "L must have shape [..., 4, 4]"),
    ("L of another batch", _wrong(L=torch.ones(2, 4, 4)), ValueError, "L must have a batch that broadcasts"),
    ("upper is a number", _wrong(upper=1), TypeError, "upper must be a bool"),
)

CONTRACT = Contract(
    name="cholesky_solve",
    family="linalg",
    formula="output = A^-1 B with A = L L^T, or L^T L if upper; of each matrix of a batch",
    source="LAPACK potrs; torch.cholesky_solve",
    outputs=("output",),
    results={"output": Result(shape=lambda args: (*batch_of(args), *args["B"].shape[-2:]))},
    differentiable=("B", "L"),
    check=check,
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    cases=CASES,
    bench_cases=BENCH_CASES,
    device_cases=DEVICE,
    device_bench_cases=DEVICE_BENCH,
    dtypes=F32,
    errors=ERRORS,
)
