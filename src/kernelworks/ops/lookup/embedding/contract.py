"""What embedding promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import (  # fmt: skip
    UNIT_ROUNDOFF,
    Case,
    Contract,
    Cost,
    Request,
    rounding,
)
from kernelworks.contract.arguments import Arguments, Error, check_of, errors_of, limits_of
from kernelworks.contract.cases import LENGTHS, VALUES, draw, normal
from kernelworks.contract.tensor_argument import T

__all__ = ["CONTRACT"]

U32 = UNIT_ROUNDOFF[torch.float32]


ARGUMENTS: Arguments = {
    "ids": T("...", dtypes=(torch.int64, torch.int32), index_of="V"), "weight": T("V D"),
}  # fmt: skip


def reference(ids: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (weight[ids.long()],)


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (torch.zeros_like(outputs[0]),)  # the values are copied


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    ids, weight = args["ids"].reshape(-1).long(), args["weight"]
    grad = grads[0].reshape(ids.numel(), weight.shape[1])
    magnitude = torch.zeros_like(weight).index_add_(0, ids, grad.abs())
    count = torch.zeros(weight.shape[0], 1, dtype=torch.float64).index_add_(0, ids, torch.ones(len(ids), 1).double())
    return {"weight": rounding(gradients["weight"], dtype) + U32 * count * magnitude}


def cost(request: Request) -> Cost:
    ids, weight = request.args["ids"], request.args["weight"]
    rows = ids.numel * weight.shape[1] * weight.dtype.itemsize
    if request.pass_ == "backward":
        return Cost(float(ids.numel * weight.shape[1]), 0.0, ids.nbytes + rows, weight.nbytes)
    return Cost(0.0, 0.0, ids.nbytes + rows, rows)


def dims(request: Request) -> dict[str, int]:
    ids, weight = request.args["ids"], request.args["weight"]
    return {"M": ids.numel, "V": weight.shape[0], "D": weight.shape[1]}


def _make(
    generator: Generator,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    V: int,
    D: int,
    *,
    kind: str = "normal",
    ids_dtype: torch.dtype = torch.int64,
) -> dict[str, Any]:
    ids = torch.randint(0, V, shape, generator=generator, dtype=ids_dtype)
    if ids.numel() > 2:  # both ends of the table
        ids.view(-1)[0], ids.view(-1)[-1] = V - 1, 0
    return {"ids": ids, "weight": draw(kind, generator, dtype, V, D)}


def _case(name: str, shape: tuple[int, ...], V: int, D: int, **more: Any) -> Case:
    how = {n: more.pop(n) for n in ("kind", "ids_dtype") if n in more}
    return Case(name, lambda g, d: _make(g, d, shape, V, D, **how), **more)


CASES = (
    *(_case(f"D={n}", (7,), 11, n, layouts=n in (17, 128)) for n in LENGTHS),
    *(_case(f"ids={n}", (n,), 50, 24) for n in (0, 1, 15, 16, 17, 1031)),
    *(_case(f"{kind}", (9,), 20, 33, kind=kind) for kind in VALUES),
    _case("ids of rank 0", (), 5, 8),
    _case("ids [2, 3, 4]", (2, 3, 4), 30, 40, layouts=True),
    _case("int32 ids", (4, 9), 30, 40, ids_dtype=torch.int32, layouts=True),
    _case("one row looked up by all", (300,), 1, 33),
    _case("a table larger than the ids", (5, 3), 4099, 16),
    _case("many ids", (64, 67), 257, 384),
)

BENCH_CASES = tuple(
    Case(f"{n} of {V}x{D}", lambda g, d, n=n, V=V, D=D: _make(g, d, (n,), V, D), dtypes=dtypes)
    for n, V, D, dtypes in (
        (4096, 30522, 384, (torch.float32,)),
        (1024, 32768, 1024, (torch.bfloat16,)),
        (1, 32768, 1024, (torch.bfloat16,)),
    )
)

# On a GPU: sizes that fill one, and one that only its host time limits.
DEVICE_BENCH_CASES = tuple(
    Case(f"{n} of {V}x{D}", lambda g, d, n=n, V=V, D=D: _make(g, d, (n,), V, D), dtypes=(torch.bfloat16,))
    for n, V, D in ((16384, 128256, 4096), (16, 32768, 1024))
)


DEVICE_CASES = (
    _case("4096 of 50021x1024", (4096,), 50_021, 1024),
    _case("4099 of 300x4096", (4099,), 300, 4096),
    _case("5000 of one row", (5000,), 1, 2056),
)


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"ids": torch.tensor([0, 3]), "weight": normal(torch.Generator(), torch.float32, 4, 8)} | changed


ERRORS: tuple[Error, ...] = (
    *errors_of(ARGUMENTS),
    ("an id past the table", _with(ids=torch.tensor([1, 4])), IndexError, "ids must be in [0, 4)"),
    ("a negative id", _with(ids=torch.tensor([[0, 1], [-1, 2]])), IndexError, "got -1 at position 2"),
    ("a negative id of 32 bits", _with(ids=torch.tensor([-1], dtype=torch.int32)), IndexError, "ids must be in [0, 4)"),
    ("an id in an empty table", _with(weight=torch.ones(0, 8)), IndexError, "ids must be in [0, 0)"),
)

CONTRACT = Contract(
    name="embedding",
    family="lookup",
    limits=limits_of(ARGUMENTS),
    formula="output[..., :] = weight[ids[...], :]",
    source="torch.nn.functional.embedding",
    outputs=("output",),
    differentiable=("weight",),
    check=check_of(ARGUMENTS),
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    cases=CASES,
    bench_cases=BENCH_CASES,
    device_cases=DEVICE_CASES,
    device_bench_cases=DEVICE_BENCH_CASES,
    errors=ERRORS,
)
