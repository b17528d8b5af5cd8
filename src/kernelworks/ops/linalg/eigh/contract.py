"""What eigh promises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Request, need_dtype, need_tensor, rounding
from kernelworks.contract.cases import draw
from kernelworks.contract.results import Equations, Result

__all__ = ["CONTRACT", "EIGH", "FAILURE", "MOST", "decline", "lower_symmetric", "matrix_gradient"]

U = UNIT_ROUNDOFF[torch.float32]
MOST = 32  # rows of a matrix; a lane's share of larger ones leaves the first cache
EIGH: Any = torch.linalg.eigh
FAILURE: Any = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # torch does not say that it exports it
APPLIED = 5 * math.sqrt(2) + 1  # roundings of a stage of rotations on what it turns, from one side: see README.md
STAGE = 2 * APPLIED + 6  # from both sides, with the element that it sets to 0


def check(A: Any) -> None:
    need_tensor("A", A)
    need_dtype("A", A, (torch.float32,))
    if len(A.shape) < 2 or A.shape[-1] != A.shape[-2]:
        raise ValueError(f"A must have shape [..., N, N], got {list(A.shape)}")


def lower_symmetric(A: Tensor) -> Tensor:
    """The symmetric matrix whose lower triangle is A's."""
    return A.tril() + A.tril(-1).mT


def reference(A: Tensor) -> tuple[Tensor, Tensor]:
    """On the host: of equal eigenvalues torch's vectors on a GPU are not orthogonal, 0.018 off for 16 rows of float64
    (torch 2.11, an H200)."""
    w, V = EIGH(A.cpu())
    return w.to(A.device), V.to(A.device)


def matrix_gradient(w: Tensor, V: Tensor, to_w: Tensor, to_V: Tensor) -> Tensor:
    """``V (diag(dw) + S / (w_j - w_i)) V^T``, S half of ``V^T dV`` less its transpose; torch's. Between equal values
    nothing that is asked of the vectors is nothing, as where values alone are asked for: 0 / 0 is no reason for NaN."""
    P = V.mT @ to_V
    turned, gaps = P - P.mT, _gaps(w)  # 0 on the diagonal
    inner = turned / (2 * torch.where((turned == 0) & (gaps == 0), 1.0, gaps))
    return V @ (inner + torch.diag_embed(to_w)) @ V.mT


def _gaps(w: Tensor) -> Tensor:
    """``w_j - w_i``, and 1 on the diagonal, so that derivatives of a quotient are there."""
    eye = torch.eye(w.shape[-1], dtype=torch.bool, device=w.device)
    return torch.where(eye, 1.0, w.unsqueeze(-2) - w.unsqueeze(-1))


# ---------------------------------------------------------------- bounds


def _stages(N: int) -> int:
    """Stages of rotations that stand in nobody's way: of each sweep one less than the next power of two has rows."""
    levels = max(0, N - 1).bit_length()
    return (0, 1)[levels] if levels < 2 else (4 + levels) * (2**levels - 1)


def _limits(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How far off eigenvalues, ``A V - V diag(w)`` and ``V^T V`` may be of each (symmetric) matrix, in norm."""
    N = A.shape[-1]
    stages, size = _stages(N), torch.linalg.matrix_norm(A)
    moved = torch.full_like(size, APPLIED * stages * U * N**0.5)
    E = (STAGE * stages + 1) * U * size
    return E, E + 2 * moved * size, 2 * moved


def residuals(args: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, tuple[Tensor, Tensor]]:
    A, w, V = lower_symmetric(args["A"]), outputs["eigenvalues"], outputs["eigenvectors"]
    _, residual, apart = _limits(A)
    eye, fall = torch.eye(A.shape[-1], dtype=V.dtype, device=V.device), (w[..., :-1] - w[..., 1:]).clamp_min(0)
    return {
        "A V = V diag(w)": (torch.linalg.matrix_norm(A @ V - V * w.unsqueeze(-2)), residual),
        "V^T V = 1": (torch.linalg.matrix_norm(V.mT @ V - eye), apart),
        "w rises": (fall, torch.zeros_like(fall)),
    }


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    w, V = outputs
    if not w.numel():
        return rounding(w, dtype), rounding(V, dtype)
    E, _, apart = _limits(lower_symmetric(args["A"]))
    return rounding(w, dtype) + E.unsqueeze(-1), apart[..., None, None].expand(V.shape)


def gradients(
    outputs: Mapping[str, Any], flows: tuple[Tensor, ...]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:  # fmt: skip
    w, V = outputs["eigenvalues"], outputs["eigenvectors"]
    to_w, to_V = flows
    found, N = matrix_gradient(w, V, to_w, to_V), w.shape[-1]
    terms = V.abs().mT @ to_V.abs()
    inner = (terms + terms.mT) / (2 * _gaps(w).abs())
    sizes = (N + 3) * U * inner + 2 * N * U * (inner + torch.diag_embed(to_w.abs()))
    limit = rounding(found, torch.float32) + V.abs() @ sizes @ V.abs().mT
    return {"A": found}, {"A": limit}


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], found: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    w, V = reference(args["A"])
    return gradients({"eigenvalues": w, "eigenvectors": V}, grads)[1]


# ---------------------------------------------------------------- cost and sizes


def cost(request: Request) -> Cost:
    A = request.args["A"]
    N = A.shape[-1]
    cube = float(A.numel * N)
    if request.pass_ == "backward":
        return Cost(6 * cube, 0.0, 2 * A.nbytes + 2 * A.nbytes / max(N, 1), A.nbytes)
    return Cost(9 * cube, 0.0, A.nbytes * (N + 1) / max(2 * N, 1), A.nbytes + A.nbytes / max(N, 1))


def dims(request: Request) -> dict[str, int]:
    shape = request.args["A"].shape
    return {"M": math.prod(shape[:-2]), "N": shape[-1]}


def decline(request: Request) -> str | None:
    N = request.args["A"].shape[-1] if request.args else 1
    return f"takes matrices of at most {MOST} rows, got {N}" if N > MOST else None


# ---------------------------------------------------------------- cases

CLUSTERED, RANK_ONE, GRADED, DIAGONAL = "clustered", "rank one", "rows of all sizes", "diagonal"


def _matrix(generator: Generator, batch: tuple[int, ...], N: int, kind: str) -> Tensor:
    A = torch.randn((*batch, N, N), generator=generator, dtype=torch.float64)
    if kind == CLUSTERED:  # some eigenvalues equal, the others 1e-6 apart
        values = 1 + 1e-6 * (torch.arange(N) // 2 * 2)
        Q: Tensor = torch.linalg.qr(A)[0]
        return Q * values.double() @ Q.mT
    if kind == RANK_ONE:
        return A[..., :1] * A[..., :1].mT
    if kind == GRADED:
        sizes = 10.0 ** -torch.linspace(0, 8, N, dtype=torch.float64)
        return (A + A.mT) * sizes * sizes.unsqueeze(-1)
    if kind == DIAGONAL:
        return torch.diag_embed(A[..., 0])
    return {"equal": torch.ones_like(A), "zeros": torch.zeros_like(A)}.get(kind, A + A.mT)


def _case(
    name: str, batch: tuple[int, ...], N: int, kind: str = "", *, scale: float = 1.0, upper: str = "", **more: Any
) -> Case:  # fmt: skip
    """``upper``: what stands in the triangle that nobody reads."""

    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        A = (_matrix(generator, batch, N, kind) * scale).to(dtype)
        if upper:
            A = A.tril() + draw(upper, generator, dtype, *A.shape).triu(1)
        return {"A": A.contiguous()}

    return Case(name, make, dtypes=(torch.float32,), gradients=not kind and abs(math.log10(scale)) < 10, **more)


CASES = (
    *(_case(f"{N}x{N}", (19,), N, layouts=N == 8) for N in (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16)),
    *(_case(f"{N}x{N}", (3,), N) for N in (17, 31, 32)),
    *(_case(f"{count} of 6x6", (count,), 6) for count in (1, 16, 17, 130)),
    _case("one matrix without a batch", (), 8, layouts=True),
    _case("two dimensions of batch", (2, 3), 5, layouts=True),
    *(
        _case(f"{kind} {N}x{N}", (17 if N < 9 else 3,), N, kind)
        for kind in (CLUSTERED, RANK_ONE, GRADED, DIAGONAL, "equal", "zeros")
        for N in (2, 5, 16, 32)
    ),
    *(_case(f"scaled by {scale:g}", (17,), 6, scale=scale) for scale in (1e-40, 1e-20, 1e20, 3e37)),
    *(_case(f"{kind} above the diagonal", (17,), 6, upper=kind) for kind in ("normal", "nan", "inf")),
    _case("no matrices", (0,), 4),
    _case("no rows", (3,), 0),
    _case("33x33", (3,), 33),
)  # fmt: skip


def _sized(*sizes: tuple[int, int]) -> tuple[Case, ...]:
    return tuple(_case(f"{count} of {N}x{N}", (count,), N) for count, N in sizes)


def _wrong(A: Any) -> Any:
    return lambda: {"A": A}


ERRORS = (
    ("A is None", _wrong(None), TypeError, "A must be a torch.Tensor"),
    ("A is float64", _wrong(torch.ones(3, 4, 4).double()), TypeError, "A must have dtype float32"),
    ("A is a vector", _wrong(torch.ones(4)), ValueError, "A must have shape [..., N, N]"),
    ("A is not square", _wrong(torch.ones(3, 4, 5)), ValueError, "A must have shape [..., N, N]"),
)

CONTRACT = Contract(
    name="eigh",
    family="linalg",
    formula="A eigenvectors = eigenvectors diag(eigenvalues), of each symmetric matrix of a batch",
    source="Golub and Van Loan, Matrix Computations, 8.5 (Jacobi); Higham 2002, 19.6; torch.linalg.eigh",
    outputs=("eigenvalues", "eigenvectors"),
    results={
        "eigenvalues": Result(shape=lambda args: args["A"].shape[:-1]),
        "eigenvectors": Result(shape=lambda args: args["A"].shape, relation=Equations(residuals, gradients)),
    },
    differentiable=("A",),
    check=check,
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    cases=CASES,
    bench_cases=_sized((4096, 3), (4096, 8), (2048, 16), (512, 32), (16, 16)),
    device_cases=_sized((4099, 3), (513, 9), (131, 16), (131, 32)),
    device_bench_cases=_sized((262144, 3), (65536, 8), (16384, 16), (4096, 32)),
    dtypes=(torch.float32,),
    errors=ERRORS,
)
