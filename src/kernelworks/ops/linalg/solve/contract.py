"""What solve promises."""

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
from kernelworks.contract.cases import draw, normal
from kernelworks.contract.results import Result

__all__ = ["CONTRACT", "MOST", "SINGULAR_ERROR", "SOLVE", "as_columns", "decline", "is_vector", "result_shape"]

U32 = UNIT_ROUNDOFF[torch.float32]
F32 = (torch.float32,)
MOST = 32  # rows of a matrix; a lane's share of larger ones leaves the first cache
SOLVE: Callable[..., Tensor] = torch.linalg.solve
SINGULAR_ERROR: Any = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # torch does not say that it exports it


def is_vector(A: Any, B: Any) -> bool:
    """Whether B holds one right-hand side for each matrix, without a dimension of columns: torch's rule."""
    shape, sides = tuple(A.shape), tuple(B.shape)
    return len(sides) == 1 or sides == shape[:-1]


def as_columns(A: Any, B: Tensor) -> Tensor:
    """[..., N, K]"""
    return B.unsqueeze(-1) if is_vector(A, B) else B


def _batches(A: Any, B: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(A.shape[:-2]), tuple(B.shape[: -1 if is_vector(A, B) else -2])


def result_shape(A: Any, B: Any) -> tuple[int, ...]:
    batch = tuple(torch.broadcast_shapes(*_batches(A, B)))
    return (*batch, *(B.shape[-1:] if is_vector(A, B) else B.shape[-2:]))


def check(A: Any, B: Any) -> None:
    need_tensor("A", A)
    need_dtype("A", A, F32)
    if len(A.shape) < 2 or A.shape[-1] != A.shape[-2]:
        raise ValueError(f"A must have shape [..., N, N], got {list(A.shape)}")
    need_tensor("B", B)
    need_same("B", B, "A", A)
    N = A.shape[-1]
    rows = -1 if len(B.shape) == 0 else B.shape[-1 if is_vector(A, B) else -2]
    if rows != N:
        raise ValueError(f"B must have shape [..., {N}, K] or [..., {N}] for A of {list(A.shape)}, got {list(B.shape)}")
    try:
        result_shape(A, B)
    except RuntimeError:
        raise ValueError(
            f"B must have a batch that broadcasts with A's {list(A.shape[:-2])}, got {list(B.shape)}"
        ) from None


def reference(A: Tensor, B: Tensor) -> tuple[Tensor, ...]:
    return (SOLVE(A, B),)


# ---------------------------------------------------------------- bounds


def _gamma(n: int) -> float:
    return n * U32 / (1 - n * U32)


def _one_way(A: Tensor) -> tuple[Tensor, Tensor]:
    """``P |L| |U|`` of the factors that float32 may find by pivots within columns, and whether it says nothing of them.
    See README.md."""
    N = A.shape[-1]
    P, L, U = torch.linalg.lu(A)
    eye, sizes = torch.eye(N, dtype=A.dtype), L.abs() @ U.abs()
    inner = torch.linalg.inv(L).abs() @ (_gamma(N + 1) * sizes) @ torch.linalg.inv(U).abs()
    lost = inner.sum(-1).amax(-1) >= 0.25
    moved = eye + 2 * inner
    found = P @ (L.abs() @ moved @ moved @ U.abs())
    # A pivot that another element could have been instead: then all that is known is how far elements can grow.
    tied = ((L.abs() + L.abs() @ (2 * inner)).tril(-1) >= 1).flatten(-2).any(-1)
    grown = 1.01 * 2.0**N * A.abs().amax((-2, -1))[..., None, None].expand(A.shape)
    return torch.where(tied[..., None, None], torch.maximum(found, grown), found), lost


def _sizes(A: Tensor) -> tuple[Tensor, Tensor]:
    """The same of pivots within columns or within rows: LAPACK's factors of a transposed matrix are right, too."""
    (down, lost), (across, also) = _one_way(A), _one_way(A.mT)
    return torch.maximum(down, across.mT), lost | also


def _solved(A: Tensor, sizes: Tensor, lost: Tensor, x: Tensor) -> Tensor:
    """How far off a right solution may be of the system whose solution is ``x`` [..., N, K]."""
    N = A.shape[-1]
    W = torch.linalg.inv(A).abs() @ (_gamma(3 * N + 3) * sizes)
    lost = lost | (torch.linalg.eigvals(W).abs().amax(-1) >= 1)
    W = torch.where(lost[..., None, None], 0.0, W)
    error = SOLVE(torch.eye(N, dtype=W.dtype) - W, W @ x.abs())
    return torch.where(lost[..., None, None], torch.inf, error)


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    (x,), A, B = outputs, args["A"], args["B"]
    if not x.numel():
        return (rounding(x, dtype),)
    error = _solved(A, *_sizes(A), x.unsqueeze(-1) if is_vector(A, B) else x)
    return (rounding(x, dtype) + error.reshape(x.shape),)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    A, B = args["A"], args["B"]
    if not grads[0].numel():
        return {name: rounding(g, dtype) for name, g in gradients.items()}
    sides = as_columns(A, B)
    sizes, lost = _sizes(A)
    x, g = SOLVE(A, sides), SOLVE(A.mT, grads[0].reshape(*torch.broadcast_shapes(A.shape[:-2], sides.shape[:-2]),
                                                        *sides.shape[-2:]))  # fmt: skip
    e, d = _solved(A, sizes, lost, x), _solved(A.mT, sizes.mT, lost, g)
    off = d @ x.abs().mT + g.abs() @ e.mT + d @ e.mT
    terms = g.abs() @ x.abs().mT
    batch = math.prod(x.shape[:-2])
    to_A = off + _gamma(sides.shape[-1] + batch) * (terms + off)
    return {
        "A": rounding(gradients["A"], dtype) + to_A.sum_to_size(A.shape),
        "B": rounding(gradients["B"], dtype)
        + (d + _gamma(batch) * (g.abs() + d)).sum_to_size(sides.shape).reshape(B.shape),
    }


# ---------------------------------------------------------------- cost and sizes


def _counts(args: Any) -> tuple[int, int, int]:
    A, B = args["A"], args["B"]
    shape = result_shape(A, B)
    N = A.shape[-1]
    K = 1 if is_vector(A, B) else shape[-1]
    return math.prod(shape[: -1 if is_vector(A, B) else -2]), N, K


def cost(request: Request) -> Cost:
    args = request.args
    batch, N, K = _counts(args)
    factors, columns = 2 * N**3 / 3, 2.0 * N * N * K
    if request.pass_ == "backward":
        both = args["needs"][0] if isinstance(args.get("needs"), (tuple, list)) else True
        read = args["grad_output"].nbytes + args["A"].nbytes + both * args["output"].nbytes
        written = args["B"].nbytes + both * args["A"].nbytes
        return Cost(batch * (factors + columns * (1 + both)), 0.0, read, written)
    return Cost(batch * (factors + columns), 0.0, args["A"].nbytes + args["B"].nbytes, 4 * batch * N * K)


def dims(request: Request) -> dict[str, int]:
    batch, N, K = _counts(request.args)
    return {"M": batch, "N": N, "K": K}


def decline(request: Request) -> str | None:
    if not request.args:
        return None
    A, B = request.args["A"], request.args["B"]
    if A.shape[-1] > MOST:
        return f"takes matrices of at most {MOST} rows, got {A.shape[-1]}"
    of_A, of_B = _batches(A, B)
    if of_A != of_B:
        return f"takes as many matrices as right-hand sides, got {list(of_A)} and {list(of_B)}"
    return None


# ---------------------------------------------------------------- cases

ZERO_PIVOTS, TIES, PERMUTED, GRADED = "zeros on the diagonal", "ties", "permutation", "rows of all sizes"


def _matrix(generator: Generator, batch: tuple[int, ...], N: int, kind: str) -> Tensor:
    """Far from singular, with its largest numbers where no pivot is before rows change places; or as ``kind`` says, of
    normal numbers whose singular values were moved into [1, 2]."""
    A = torch.randn((*batch, N, N), generator=generator, dtype=torch.float64)
    if not kind:
        return A.mul(0.3 / max(1, N) ** 0.5).add(torch.eye(N, dtype=torch.float64).flip(0), alpha=2.0)
    if kind == TIES:  # every pivot could be another row
        signs: Tensor = torch.where(A > 0, 1.0, -1.0).tril(-1) + torch.eye(N, dtype=torch.float64)
        return signs + 0.0 * A
    if kind == PERMUTED:
        order = torch.rand((*batch, N), generator=generator).argsort(-1)
        return torch.nn.functional.one_hot(order, N).double() * 3.0
    U, s, V = torch.linalg.svd(A)
    s = 1 + s / s.amax(-1, keepdim=True) if N else s
    if kind == "ill-conditioned":
        s = s * 10 ** torch.linspace(0, -2, N, dtype=torch.float64)
    A = torch.matmul(U @ torch.diag_embed(s), V)
    if kind == ZERO_PIVOTS:
        A = A - torch.diag_embed(A.diagonal(dim1=-2, dim2=-1))
    if kind == GRADED:
        A = A * 10 ** torch.linspace(-4, 4, N, dtype=torch.float64)[:, None]
    return A


def _make(
    generator: Generator, dtype: torch.dtype, batch: tuple[int, ...], N: int, K: int | None, *, kind: str = "",
    of_A: tuple[int, ...] | None = None, scale: float = 1.0, sides: str = "normal",
) -> dict[str, Any]:  # fmt: skip
    A = _matrix(generator, batch if of_A is None else of_A, N, kind).to(dtype) * scale
    shape = (*batch, N) if K is None else (*batch, N, K)
    return {"A": A.contiguous(), "B": draw(sides, generator, dtype, *shape)}


def _case(
    name: str, batch: tuple[int, ...], N: int, K: int | None, *, layouts: bool = False, gradients: bool = True,
    **said: Any,
) -> Case:  # fmt: skip
    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        return _make(generator, dtype, batch, N, K, **said)

    return Case(name, make, dtypes=F32, layouts=layouts, gradients=gradients)


SIZES = (
    (1, 1), (2, 1), (3, 2), (4, 1), (5, 3), (7, 7), (8, 1), (9, 17), (12, 4), (15, 1), (16, 2), (17, 5), (31, 1),
    (32, 3),
)  # fmt: skip
CASES = (
    *(_case(f"{N}x{N}, {K}", (19,), N, K) for N, K in SIZES),
    *(_case(f"{N}x{N}, a vector", (9,), N, None) for N in (1, 4, 11, 32)),
    *(_case(f"{count} of 6x6", (count,), 6, 2, layouts=count == 17) for count in (1, 16, 17, 130)),
    _case("one matrix without a batch", (), 8, 3, layouts=True),
    _case("one matrix and a vector", (), 8, None, layouts=True),
    _case("two dimensions of batch", (2, 3), 5, 4, layouts=True),
    *(
        _case(f"{kind} {N}x{N}", (17,), N, 2, kind=kind)
        for kind, sizes in (
            ("ill-conditioned", (4, 16)), (ZERO_PIVOTS, (3, 8, 20)), (TIES, (4, 9)), (PERMUTED, (5, 16, 32)),
            (GRADED, (6, 16)),
        )
        for N in sizes
    ),
    *(_case(f"scaled by {scale:g}", (17,), 6, 2, scale=scale) for scale in (1e-6, 1e6)),
    *(_case(f"{kind} right-hand sides", (17,), 6, 2, sides=kind, gradients=kind != "nan") for kind in ("zeros", "nan")),
    _case("no matrices", (0,), 4, 2),
    _case("no right-hand sides", (3,), 4, 0),
    _case("one matrix for all", (7,), 5, 2, of_A=()),
    _case("33x33", (3,), 33, 2),
)  # fmt: skip


def _sized(*sizes: tuple[int, int, int]) -> tuple[Case, ...]:
    return tuple(_case(f"{count} of {N}x{N}, {K}", (count,), N, K) for count, N, K in sizes)


BENCH_CASES = _sized((4096, 4, 1), (4096, 8, 1), (4096, 16, 1), (2048, 32, 1), (1024, 16, 16), (64, 16, 1))
DEVICE = _sized((4099, 4, 1), (513, 16, 3), (131, 32, 17))
DEVICE_BENCH = _sized((262144, 4, 1), (65536, 16, 1), (16384, 32, 8))


def _wrong(**changed: Any) -> Any:
    whole = {"A": torch.eye(4).expand(3, 4, 4).contiguous(), "B": normal(torch.Generator(), torch.float32, 3, 4, 2)}
    return lambda: whole | changed


SINGULAR = torch.stack([torch.eye(4), torch.ones(4, 4), torch.eye(4)])
ERRORS = (
    ("A is None", _wrong(A=None), TypeError, "A must be a torch.Tensor"),
    ("A is float64", _wrong(A=torch.ones(3, 4, 4).double()), TypeError, "A must have dtype float32"),
    ("A is a vector", _wrong(A=torch.ones(4)), ValueError, "A must have shape [..., N, N]"),
    ("A is not square", _wrong(A=torch.ones(3, 4, 5)), ValueError, "A must have shape [..., N, N]"),
    ("B is None", _wrong(B=None), TypeError, "B must be a torch.Tensor"),
    ("B is float64", _wrong(B=torch.ones(3, 4, 2).double()), TypeError, "B must have A's dtype"),
    ("B is complex", _wrong(B=torch.ones(3, 4, 2, dtype=torch.complex64)), TypeError, "B must have A's dtype"),
    ("B of other rows", _wrong(B=torch.ones(3, 5, 2)), ValueError, "B must have shape [..., 4, K] or [..., 4]"),
    ("B is a number", _wrong(B=torch.ones(())), ValueError, "B must have shape [..., 4, K] or [..., 4]"),
    ("B of another batch", _wrong(B=torch.ones(2, 4, 2)), ValueError, "B must have a batch that broadcasts"),
    ("a singular matrix", _wrong(A=SINGULAR), SINGULAR_ERROR, "singular"),
)

CONTRACT = Contract(
    name="solve",
    family="linalg",
    formula="output = A^-1 B of each matrix of a batch",
    source="Higham, Accuracy and Stability of Numerical Algorithms, 9; LAPACK gesv; torch.linalg.solve",
    outputs=("output",),
    results={"output": Result(shape=lambda args: result_shape(args["A"], args["B"]))},
    differentiable=("A", "B"),
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
