"""What combine promises: the weighted sum of the rows that each token named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, check_of, errors_of, limits_of
from kernelworks.contract.cases import LENGTHS, VALUES, draw
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.product import gamma

__all__ = ["ARGUMENTS", "CONTRACT", "named_rows", "reference"]

BF16, F32 = torch.bfloat16, torch.float32
SMALLEST = 2.0**-149  # of float32's subnormals
CHAIN = 384  # additions that a term of a long sum meets beside an eighth of the terms, as of linear

ARGUMENTS: Arguments = {
    "rows": T("R H"),
    "weights": T("T k", like="rows", dtypes=(F32,)),
    "places": T("T k", dtypes=(torch.int64, torch.int32), index_of="R"),
}


# ---------------------------------------------------------------- the definition


def named_rows(rows: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """The row that each place names [T, k, H], zeros where it names none; and which name one [T, k]."""
    inside = (places >= 0) & (places < rows.shape[0])
    if not rows.shape[0]:
        return rows.new_zeros(*places.shape, rows.shape[1]), inside
    named = rows[torch.where(inside, places, 0).long()]
    return torch.where(inside.unsqueeze(-1), named, 0.0), inside


def reference(rows: Tensor, weights: Tensor, places: Tensor) -> tuple[Tensor, ...]:
    named, inside = named_rows(rows, places)
    return ((named * torch.where(inside, weights, 0.0).unsqueeze(-1)).sum(1),)


# ---------------------------------------------------------------- bounds


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    terms = args["places"].shape[1]
    (size,) = reference(args["rows"].abs(), args["weights"].abs(), args["places"])
    return (rounding(outputs[0], dtype) + gamma(terms) * size + terms * SMALLEST,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype,
    given: dict[str, Any],
) -> dict[str, Tensor]:  # fmt: skip
    rows, weights, places, flow = args["rows"], args["weights"], args["places"], grads[0]
    named, inside = named_rows(rows, places)
    count = rows.shape[1]
    of_weights = (named.abs() * flow.abs().unsqueeze(1)).sum(-1)
    terms = (weights.abs().unsqueeze(-1) * flow.abs().unsqueeze(1))[inside]
    size = torch.zeros_like(rows).index_add_(0, places[inside].long(), terms)
    often = rows.new_zeros(rows.shape[0], 1).index_add_(0, places[inside].long(), rows.new_ones(len(terms), 1))
    chain = min(count, count / 8 + CHAIN) + 10.0
    return {
        "rows": rounding(gradients["rows"], dtype) + gamma(1.0) * often * size + often * SMALLEST,
        "weights": rounding(gradients["weights"], given["weights"].dtype)
        + gamma(chain) * of_weights
        + count * SMALLEST,
    }


# ---------------------------------------------------------------- cost


def dims(request: Request) -> dict[str, int]:
    rows, places = request.args["rows"], request.args["places"]
    return {"M": places.shape[0], "K": places.shape[1], "N": rows.shape[1], "R": rows.shape[0]}


def cost(request: Request) -> Cost:
    tokens, k, width, many = dims(request).values()
    size, weights = request.args["rows"].dtype.itemsize, request.args["weights"]
    small = weights.nbytes + request.args["places"].nbytes
    read = min(many, tokens * k) * width * size + small
    if request.pass_ == "backward":
        return Cost(4.0 * tokens * k * width, 0.0, read + tokens * width * size, many * width * size + weights.nbytes)
    return Cost(2.0 * tokens * k * width, 0.0, read, tokens * width * size)


# ---------------------------------------------------------------- cases

Places = Callable[[int, int, int, Generator], Tensor]


def _sorted_rows(tokens: int, k: int, rows: int, generator: Generator) -> Tensor:
    """Each choice has a row of its own, as sorted by expert."""
    return torch.randperm(max(rows, tokens * k), generator=generator)[: tokens * k].reshape(tokens, k)


def _one_row(tokens: int, k: int, rows: int, generator: Generator) -> Tensor:
    return torch.full((tokens, k), rows - 1)


def _any_rows(tokens: int, k: int, rows: int, generator: Generator) -> Tensor:
    return torch.randint(0, max(rows, 1), (tokens, k), generator=generator)


def _some_dropped(tokens: int, k: int, rows: int, generator: Generator) -> Tensor:
    """Places that name no row: -1, one behind the last, and far away."""
    places = _any_rows(tokens, k, rows, generator)
    for number, sentinel in enumerate((-1, rows, 2**31 - 1, -(2**31))):
        places.view(-1)[number::7] = sentinel
    places[:1] = -1  # a token of which nothing is left
    return places


def _make(
    generator: Generator, dtype: torch.dtype, tokens: int, k: int, width: int, rows: int, places: Places, kind: str,
    wide: bool, index: torch.dtype,
) -> dict[str, Any]:  # fmt: skip
    return {
        "rows": draw(kind, generator, dtype, rows, width),
        "weights": torch.rand(tokens, k, generator=generator).to(F32 if wide else dtype),
        "places": places(tokens, k, rows, generator).to(index),
    }


def _case(
    name: str, tokens: int, k: int, width: int, places: Places = _sorted_rows, *, rows: int | None = None,
    kind: str = "normal", wide: bool = False, index: torch.dtype = torch.int64, **more: Any,
) -> Case:  # fmt: skip
    many = tokens * k if rows is None else rows
    return Case(
        name, lambda g, d: _make(g, d, tokens, k, width, many, places, kind, wide, index), **more
    )  # fmt: skip


def _stray_values(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """NaN in rows that nobody names, and in weights of what is dropped: neither touches anything."""
    made = _make(generator, dtype, 6, 3, 21, 20, _some_dropped, "normal", False, torch.int64)
    inside = (made["places"] >= 0) & (made["places"] < 20)
    made["weights"][~inside] = torch.nan
    unnamed = torch.ones(20, dtype=torch.bool)
    unnamed[made["places"][inside]] = False
    made["rows"][unnamed] = torch.inf
    return made


def _cases() -> Iterator[Case]:
    for width in LENGTHS:
        yield _case(f"H={width}", 5, 2, width, layouts=width in (17, 128))
    for tokens in (0, 1, 2, 3, 8, 15, 31, 64, 127, 128):
        yield _case(f"{tokens} tokens", tokens, 4, 24, wide=tokens % 2 == 1)
    for k in (1, 3, 8, 17, 60):
        yield _case(f"{k} choices", 4, k, 40, index=torch.int32, layouts=k == 3)
    yield _case("one row for all", 300, 2, 33, _one_row, rows=5)
    yield _case("rows named often", 64, 4, 20, _any_rows, rows=9)
    yield _case("more rows than choices", 7, 2, 19, _any_rows, rows=1000, layouts=True)
    yield _case("some dropped", 40, 3, 35, _some_dropped, rows=90)
    yield _case("some dropped, 32 bits", 40, 3, 35, _some_dropped, rows=90, index=torch.int32, wide=True)
    yield _case("all dropped: no rows", 4, 2, 18, rows=0, places=_one_row)
    yield Case("NaN that nobody reads", _stray_values, gradients=True)
    for kind in (kind for kind in VALUES if kind != "normal"):
        yield _case(kind, 9, 3, 33, kind=kind, gradients=kind in ("large_mean", "tiny", "constant", "zeros"))
    yield _case("many tokens", 1027, 2, 48)


def _timed(sizes: tuple[tuple[int, int, int], ...], dtypes: tuple[torch.dtype, ...]) -> tuple[Case, ...]:
    return tuple(
        _case(f"{tokens} tokens, {k} rows of {width}", tokens, k, width, dtypes=dtypes) for tokens, k, width in sizes
    )


CONTRACT = Contract(
    name="combine",
    family="routing",
    formula="output[t] = sum over j of weights[t, j] rows[places[t, j]]; a place that names no row adds nothing",
    source="Shazeer et al. 2017, arXiv:1701.06538; Gale et al., MegaBlocks, 2022 (arXiv:2211.15841)",
    outputs=("output",),
    differentiable=("rows", "weights"),
    check=check_of(ARGUMENTS),
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    cases=tuple(_cases()),
    bench_cases=_timed(((1, 8, 2048), (128, 8, 2048), (2048, 2, 4096)), (BF16, F32)),
    device_cases=(
        _case("a long sum", 5, 300, 1032), _case("many tokens of wide rows", 3001, 8, 2056),
        _case("rows named often, wide", 500, 4, 4104, _any_rows, rows=30),
    ),
    device_bench_cases=_timed(((16, 8, 2048), (4096, 8, 2048), (16_384, 8, 2048), (8192, 2, 4096)), (BF16,)),
    errors=errors_of(ARGUMENTS),
    limits=limits_of(ARGUMENTS),
)  # fmt: skip
