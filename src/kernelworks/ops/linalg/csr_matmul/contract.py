"""What csr_matmul promises: a sparse matrix in compressed rows times a dense matrix or a vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Error, check_of, errors_of
from kernelworks.contract.cases import LENGTHS, VALUES, draw, normal
from kernelworks.contract.limits import Ends, IndicesOf
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T

__all__ = ["ARGUMENTS", "CONTRACT", "reference", "row_of_each"]

BF16, F32 = torch.bfloat16, torch.float32
SMALLEST, U32 = 2.0**-149, UNIT_ROUNDOFF[torch.float32]
INDICES = (torch.int64, torch.int32)

ARGUMENTS: Arguments = {
    "crow_indices": T("ends", dtypes=INDICES, where=("ends >= 1",)),
    "col_indices": T("entries", like="crow_indices"),
    "values": T("entries"),
    "dense": T("K D or K", like="values"),
}


# ---------------------------------------------------------------- the definition


def row_of_each(crow: Tensor, entries: int) -> Tensor:
    """The row that each entry stands in."""
    place = torch.arange(entries, device=crow.device, dtype=crow.dtype)
    return torch.searchsorted(crow[1:].contiguous(), place, right=True)


def reference(crow_indices: Tensor, col_indices: Tensor, values: Tensor, dense: Tensor) -> tuple[Tensor, ...]:
    row = row_of_each(crow_indices, values.numel())
    terms = dense[col_indices.long()] * (values if dense.dim() == 1 else values.unsqueeze(1))
    return (dense.new_zeros(crow_indices.numel() - 1, *dense.shape[1:]).index_add(0, row, terms),)


# ---------------------------------------------------------------- bounds


def _along(count: Tensor, dense: Tensor) -> Tensor:
    return count.double() if dense.dim() == 1 else count.double().unsqueeze(1)


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """A row of n entries is n products and n - 1 sums in float32."""
    sizes = args | {"values": args["values"].abs(), "dense": args["dense"].abs()}
    count = _along(args["crow_indices"].diff(), args["dense"])
    return (rounding(outputs[0], dtype) + 1.01 * U32 * count * reference(**sizes)[0] + count * SMALLEST,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """A value's gradient is a product of two rows; a row's of dense a sum over the entries of its column."""
    column, dense, flow = args["col_indices"].long(), args["dense"], grads[0].abs()
    row, made = row_of_each(args["crow_indices"], column.numel()), {}
    if "values" in gradients:
        D = math.prod(dense.shape[1:])
        sizes = flow[row] * dense.abs()[column]
        size = sizes if dense.dim() == 1 else sizes.sum(1)
        made["values"] = rounding(gradients["values"], dtype) + 1.01 * U32 * D * size + D * SMALLEST
    if "dense" in gradients:
        terms = flow[row] * _along(args["values"].abs(), dense)
        size = torch.zeros_like(dense).index_add(0, column, terms)
        count = _along(torch.bincount(column, minlength=len(dense)), dense)
        made["dense"] = rounding(gradients["dense"], dtype) + 1.01 * U32 * count * size + count * SMALLEST
    return made


# ---------------------------------------------------------------- cost


def dims(request: Request) -> dict[str, int]:
    crow, values, dense = (request.args[name] for name in ("crow_indices", "values", "dense"))
    return {"M": crow.numel - 1, "N": values.numel, "K": dense.shape[0], "D": math.prod(dense.shape[1:])}


def cost(request: Request) -> Cost:
    M, N, K, D = dims(request).values()
    args, size = request.args, request.args["values"].dtype.itemsize
    matrix = args["crow_indices"].nbytes + args["col_indices"].nbytes + N * size
    rows = min(N, K) * D * size  # of dense that an entry can name
    if request.pass_ == "backward":
        needs = args["needs"] if isinstance(args.get("needs"), (tuple, list)) else (True, True)
        to_values, to_dense = needs[0] * 1.0, needs[1] * 1.0
        read = matrix - (1 - to_dense) * N * size + M * D * size + to_values * rows
        return Cost(2.0 * N * D * (to_values + to_dense), 0.0, read, (to_values * N + to_dense * K * D) * size)
    return Cost(2.0 * N * D, 0.0, matrix + rows, M * D * size)


# ---------------------------------------------------------------- cases

Lengths = tuple[int, ...]


def _make(
    generator: Generator, dtype: torch.dtype, lengths: Lengths, K: int, D: int | None, *, kind: str = "normal",
    of_values: str = "normal", index: torch.dtype = torch.int64, twice: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """``lengths`` says how many entries each row has; D is None for a vector. ``twice`` names columns more than once,
    in any order; else they rise."""
    if twice or max(lengths, default=0) > K:
        column = torch.randint(0, max(K, 1), (sum(lengths),), generator=generator)
    else:
        rows = [torch.randperm(K, generator=generator)[:n].sort().values for n in lengths]
        column = torch.cat([torch.empty(0, dtype=torch.int64), *rows])
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return {
        "crow_indices": ends.to(index), "col_indices": column.to(index),
        "values": draw(of_values, generator, dtype, sum(lengths)),
        "dense": draw(kind, generator, dtype, K, *(() if D is None else (D,))),
    }  # fmt: skip


def _case(name: str, lengths: Lengths, K: int, D: int | None, **more: Any) -> Case:
    how = {n: more.pop(n) for n in ("kind", "of_values", "index", "twice") if n in more}
    return Case(name, lambda g, d: _make(g, d, lengths, K, D, **how), **more)


def _width(D: int | None) -> str:
    return "vector" if D is None else f"D={D}"


def _cases() -> Iterator[Case]:
    for n in LENGTHS:
        index = INDICES[n % 2]
        yield _case(f"D={n}", (3, 0, 1, 4), 11, n, layouts=n in (17, 128), index=index)
        yield _case(f"vector, rows of {n}", (n, 1, n), max(n, 2), None, layouts=n in (17, 128), index=index)
    for D in (None, 1, 20):
        of = _width(D)
        yield _case(f"rows without entries, {of}", (0, 3, 0, 0, 5, 0), 20, D, layouts=True)
        yield _case(f"one row, {of}", (40,), 57, D, index=torch.int32)
        yield _case(f"one entry each, {of}", (1,) * 33, 50, D)
        yield _case(f"one column, {of}", (1, 0) * 40, 1, D)
        yield _case(f"one long row, {of}", (2, 1, 700, 0, 3), 900, D)
        yield _case(f"no rows, {of}", (), 5, D)
        yield _case(f"no entries, {of}", (0, 0), 5, D)
        yield _case(f"no columns, {of}", (0, 0), 0, D)
        yield _case(f"columns named twice, {of}", (9, 1, 30, 0, 17), 6, D, twice=True)
        yield _case(f"many rows, {of}", (5, 0, 9) * 70, 257, D, index=torch.int32)
        for kind in VALUES:
            if kind != "normal":
                smooth = kind in ("large_mean", "tiny", "constant", "zeros")
                yield _case(f"{kind}, {of}", (3, 2, 9), 12, D, kind=kind, gradients=smooth)
        for kind in ("inf", "nan", "huge", "zeros"):
            yield _case(f"{kind} in values, {of}", (3, 2, 9), 12, D, of_values=kind, gradients=kind == "zeros")


def _timed(sizes: tuple[tuple[int, int, int, int | None], ...], dtypes: tuple[torch.dtype, ...]) -> tuple[Case, ...]:
    return tuple(
        _case(f"{M}x{K}, {n} a row, {_width(D)}", (n,) * M, K, D, dtypes=dtypes, twice=True) for M, n, K, D in sizes
    )


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    given = {
        "crow_indices": torch.tensor([0, 2, 2, 3]), "col_indices": torch.tensor([0, 3, 1]), "values": torch.ones(3),
        "dense": normal(torch.Generator(), torch.float32, 4, 8),
    }  # fmt: skip
    return lambda: given | changed


ROWS, COLUMNS = "crow_indices must rise from 0 to 3", "col_indices must be in [0, 4)"
ERRORS: tuple[Error, ...] = (
    *errors_of(ARGUMENTS, **_with()()),
    ("a column past dense", _with(col_indices=torch.tensor([0, 4, 1])), IndexError, COLUMNS),
    ("a negative column", _with(col_indices=torch.tensor([0, 1, -1])), IndexError, "got -1 at position 2"),
    ("rows that begin late", _with(crow_indices=torch.tensor([1, 2, 3])), IndexError, ROWS),
    ("rows that fall", _with(crow_indices=torch.tensor([0, 2, 1, 3])), IndexError, ROWS),
    ("rows that end early", _with(crow_indices=torch.tensor([0, 2, 2])), IndexError, ROWS),
    ("rows past the entries", _with(crow_indices=torch.tensor([0, 2, 4])), IndexError, ROWS),
)

CONTRACT = Contract(
    name="csr_matmul", family="linalg",
    limits={"crow_indices": Ends("col_indices", 0, from_zero=True), "col_indices": IndicesOf("dense", 0)},
    formula="output[r] = the sum over the entries i of row r of values[i] dense[col_indices[i]]",
    source="Tinney and Walker 1967, Proc. IEEE 55(11); torch.sparse.mm of torch.sparse_csr_tensor",
    outputs=("output",), differentiable=("values", "dense"),
    results={"output": Result(shape=lambda args: (args["crow_indices"].shape[0] - 1, *args["dense"].shape[1:]))},
    check=check_of(ARGUMENTS), reference=reference, bound=bound, gradient_bound=gradient_bound, cost=cost, dims=dims,
    cases=tuple(_cases()),
    bench_cases=_timed(
        ((4096, 16, 4096, None), (65_536, 8, 65_536, None), (4096, 16, 4096, 32), (16_384, 8, 16_384, 128)), (F32,)
    ),
    device_cases=tuple(
        _case(f"wide, {D}", (37, 1, 500, 0) * 60, 5003, D, index=index)
        for D, index in ((None, torch.int32), (3, torch.int64), (1032, torch.int32))
    ),
    device_bench_cases=_timed(((1_000_000, 16, 1_000_000, None), (65_536, 16, 65_536, 64)), (BF16, F32)),
    errors=ERRORS,
)  # fmt: skip
