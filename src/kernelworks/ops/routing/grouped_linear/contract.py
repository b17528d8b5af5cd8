"""What grouped_linear promises: linear for each group of rows, with a weight of the group's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Cost, Request, Values
from kernelworks.contract.arguments import Arguments, check_of, errors_of
from kernelworks.contract.cases import draw, normal
from kernelworks.contract.limits import Ends
from kernelworks.contract.offsets_argument import Offsets
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.linear.linear.contract import CONTRACT as LINEAR
from kernelworks.templates.product import KINDS

__all__ = ["ARGUMENTS", "CONTRACT", "groups_of", "reference"]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


# ---------------------------------------------------------------- arguments


ARGUMENTS: Arguments = {
    "x": T("M K"), "weight": T("E N K", like="x"), "offsets": Offsets("x", "weight"),
    "bias": T("E N", like="x", optional=True),
}  # fmt: skip


# ---------------------------------------------------------------- the definition


def groups_of(offsets: Tensor) -> Iterator[slice]:
    """The rows of each group."""
    begin = 0
    for end in offsets.tolist():
        yield slice(begin, end)
        begin = end


def reference(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    parts, last = [], 0
    for group, rows in enumerate(groups_of(offsets)):
        product = x[rows] @ weight[group].T
        parts.append(product if bias is None else product + bias[group])
        last = rows.stop
    of_no_group = x[last:, :0] @ weight[:0].sum(0)[:, :0].T  # zeros, made of x and the weight
    return (torch.cat([*parts, of_no_group]),)


# ---------------------------------------------------------------- bounds: each group's as linear's


def _one(args: Mapping[str, Any], group: int, rows: slice) -> dict[str, Any]:
    bias = args.get("bias")
    return {"x": args["x"][rows], "weight": args["weight"][group], "bias": None if bias is None else bias[group]}


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    found = torch.zeros_like(outputs[0])
    for group, rows in enumerate(groups_of(args["offsets"])):
        found[rows] = LINEAR.bound(_one(args, group, rows), (outputs[0][rows],), dtype)[0]
    return (found,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    assert LINEAR.gradient_bound is not None
    found = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
    for group, rows in enumerate(groups_of(args["offsets"])):
        places: dict[str, Any] = {"x": rows, "weight": group, "bias": group}
        of_one = {name: gradient[places[name]] for name, gradient in gradients.items()}
        limits = LINEAR.gradient_bound(_one(args, group, rows), (grads[0][rows],), of_one, dtype)
        for name, limit in limits.items():
            found[name][places[name]] = limit
    return found


# ---------------------------------------------------------------- cost


def _count_groups(args: Mapping[str, Any]) -> dict[str, Any]:
    """How many groups have rows: of these alone the weight is read."""
    return {"groups": sum(rows.stop > rows.start for rows in groups_of(args["offsets"]))}


def dims(request: Request) -> dict[str, int]:
    experts, n, k = request.args["weight"].shape
    return {"M": request.args["x"].shape[0], "N": n, "K": k, "E": experts}


def cost(request: Request) -> Cost:
    m, n, k, experts = dims(request).values()
    size = request.args["x"].dtype.itemsize
    groups = min(request.values.get("groups", experts), experts, m)
    ends = request.args["offsets"].nbytes
    if request.pass_ == "backward":
        read = (m * n + m * k + groups * n * k) * size + ends
        return Cost((4.0 * k + 1.0) * m * n, 0.0, read, (m * k + experts * n * (k + 1)) * size)
    offset = request.args.get("bias") is not None
    read = (m * k + groups * n * (k + offset)) * size + ends
    return Cost(2.0 * m * n * k + m * n * offset, 0.0, read, m * n * size)


def bucket(request: Request) -> dict[str, Any]:
    """How N and K are aligned, which tiles and vector loads depend on; and few rows one by one."""
    d = dims(request)
    aligned = next((step for step in (64, 8) if d["N"] % step == 0 and d["K"] % step == 0), 1)
    return {"aligned": aligned} | ({"M": d["M"]} if d["M"] <= 16 else {})


# ---------------------------------------------------------------- cases

Lengths = Sequence[int]


def _make(
    generator: Generator, dtype: torch.dtype, lengths: Lengths, n: int, k: int, *, kind: str = "normal",
    bias: bool = True, after: int = 0, ends: torch.dtype = torch.int32,
) -> dict[str, Any]:  # fmt: skip
    """``lengths``: the rows of each group; ``after``: rows of no group."""
    x = draw(kind, generator, dtype, sum(lengths) + after, k)
    return {
        "x": x,
        "weight": normal(generator, dtype, len(lengths), n, k, scale=max(k, 1) ** -0.5),
        "offsets": torch.tensor(list(accumulate(lengths)), dtype=ends),
        "bias": normal(generator, dtype, len(lengths), n) if bias else None,
    }


def _case(name: str, lengths: Lengths, n: int, k: int, *, kind: str = "normal", bias: bool = True, after: int = 0,
          ends: torch.dtype = torch.int32, **more: Any) -> Case:  # fmt: skip
    how: dict[str, Any] = {"kind": kind, "bias": bias, "after": after, "ends": ends}
    return Case(name, lambda g, d: _make(g, d, lengths, n, k, **how), **more)


def _stray_values(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """NaN in rows of no group and in the weight of a group without rows: nobody reads either."""
    made = _make(generator, dtype, (4, 0, 9), 21, 34, after=3)
    made["x"][-3:], made["weight"][1], made["bias"][1] = float("nan"), float("inf"), float("nan")
    return made


# Rows of a group: one, a register tile and around it, the most that stream takes (32, or 10 in float32 with AVX2) and
# around it, several panels of 14, and more than are shared out together (512). N and K as linear has them.
CASES = (
    _case("square, as torch has it", (5, 0, 3, 8), 16, 16, bias=False),
    _case("one row each", (1, 1, 1), 7, 33),
    _case("one row in all", (0, 0, 1, 0), 100, 129, bias=False),
    _case("few rows, many of none", (0, 2, 0, 0, 3, 0, 1, 4, 0), 31, 64, layouts=True),
    _case("around a stream", (10, 11, 31, 32, 33, 5), 67, 40, layouts=True),
    _case("around a panel", (13, 14, 15, 29), 95, 385, bias=False),
    _case("one hot group", (0, 0, 700, 1, 0), 64, 24, bias=False),
    _case("a hot group of more panels", (3, 1100), 33, 9),
    _case("every count from 1 to 64", range(1, 65), 20, 17),
    _case("as many groups as rows", [1] * 48, 5, 9),
    _case("rows of no group", (2, 0, 40), 19, 31, after=5, layouts=True),
    _case("rows of no group alone", (0, 0), 19, 31, after=4),
    _case("ends of 64 bits", (6, 0, 2), 18, 20, ends=torch.int64),
    _case("no groups", (), 6, 5, after=3, bias=False),
    _case("no rows", (0, 0, 0), 6, 5),
    _case("no columns", (2, 3), 0, 5),
    _case("nothing to sum", (2, 0, 40), 5, 0),
    _case("one column", (40, 3), 1, 70),
    _case("one number a row", (40, 3), 70, 1),
    _case("a long sum", (3, 36), 5, 1100),
    *(
        _case(f"{kind} K={k}", (5, 0, 2, 37), n, k, kind=kind, gradients=gradients)
        for kind, gradients in KINDS.items()
        for n, k in ((14, 67),)
    ),
    Case("NaN that nobody reads", _stray_values),
)  # fmt: skip


def _routed(rows: int, experts: int, seed: int = 0) -> list[int]:
    """How many of so many rows go to each expert: some get many."""
    popularity = torch.rand(experts, generator=torch.Generator().manual_seed(seed)) ** 4 + 0.02
    chosen = torch.multinomial(popularity, rows, replacement=True, generator=torch.Generator().manual_seed(seed))
    return torch.bincount(chosen, minlength=experts).tolist()


def _benched(sizes: Sequence[tuple[int, int, int, int, tuple[torch.dtype, ...]]]) -> Iterator[Case]:
    for m, experts, n, k, dtypes in sizes:
        yield _case(f"{m} rows of {experts}x{n}x{k}", _routed(m, experts), n, k, bias=False, dtypes=dtypes)


BENCH_CASES = tuple(
    _benched(
        (
            (8, 32, 1536, 2048, (BF16, F32)), (64, 32, 1536, 2048, (BF16,)), (512, 8, 1536, 2048, (BF16, F32)),
            (4096, 32, 512, 1024, (BF16,)),
        )
    )
)  # fmt: skip
DEVICE_CASES = (
    _case("tiles that stick out", _routed(300, 7), 264, 136),
    _case("wide tiles", _routed(4000, 16), 520, 264, bias=False),
    _case("few rows of many", _routed(20, 64), 520, 1032, bias=False),
    _case("more rows than multiprocessors take", _routed(20_000, 128), 136, 72, after=100),
    _case("strided", (70, 0, 130), 136, 264, layouts=True),
)
DEVICE_BENCH_CASES = tuple(
    _benched(
        tuple(
            (m, experts, n, k, (BF16,))
            for m, experts, n, k in (
                (8, 128, 1536, 2048), (256, 128, 1536, 2048), (32_768, 128, 1536, 2048), (16_384, 8, 4096, 4096),
            )
        )
    )
)  # fmt: skip

CONTRACT = Contract(
    name="grouped_linear",
    family="routing",
    arithmetic="products",
    formula="output[t] = weight[g] x[t] + bias[g] for the rows t of each group g, offsets[g-1] <= t < offsets[g]; "
    "0 for rows beyond the last",
    source="torch.nn.functional.grouped_mm; Gale et al., MegaBlocks, 2022 (arXiv:2211.15841)",
    outputs=("output",),
    differentiable=("x", "weight", "bias"),
    check=check_of(ARGUMENTS),
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    bucket=bucket,
    cases=CASES,
    bench_cases=BENCH_CASES,
    device_cases=DEVICE_CASES,
    device_bench_cases=DEVICE_BENCH_CASES,
    errors=errors_of(ARGUMENTS),
    limits={"offsets": Ends("x", 0)},
    values=Values(_count_groups, "if every group that can has rows", least={"groups": 1}),
)
