"""What embedding_bag promises: the sum, the mean or the maximum of the rows that each bag of ids looks up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Error, Int64, Word, check_of, errors_of, limits_of
from kernelworks.contract.cases import LENGTHS, VALUES, draw, normal
from kernelworks.contract.limits import Ends
from kernelworks.contract.tensor_argument import T

__all__ = ["ARGUMENTS", "CONTRACT", "MODES", "bag_of_each", "reference"]

BF16, F32 = torch.bfloat16, torch.float32
SMALLEST, U32 = 2.0**-149, UNIT_ROUNDOFF[torch.float32]
INDICES = (torch.int64, torch.int32)
MODES = ("mean", "sum", "max")

ARGUMENTS: Arguments = {
    "ids": T("N", dtypes=INDICES, index_of="V"), "weight": T("V D"), "offsets": T("B", dtypes=INDICES),
    "mode": Word(*MODES), "per_sample_weights": T("N", like="weight", optional=True),
    "padding_idx": Int64(0, optional=True),
}  # fmt: skip
_CHECK = check_of(ARGUMENTS, {"mode": "mean", "per_sample_weights": None, "padding_idx": None})


def check(**call: Any) -> None:
    _CHECK(**call)
    if call["per_sample_weights"] is not None and call["mode"] != "sum":
        raise ValueError(f"per_sample_weights must be None unless mode is 'sum', got mode {call['mode']!r}")
    if (padding := call["padding_idx"]) is not None and padding >= call["weight"].shape[0]:
        raise ValueError(f"padding_idx must be below {call['weight'].shape[0]}, weight's rows; got {padding}")


# ---------------------------------------------------------------- the definition


def bag_of_each(ids: Tensor, offsets: Tensor) -> Tensor:
    """The bag that each id is in."""
    place = torch.arange(ids.numel(), device=ids.device, dtype=offsets.dtype)
    return torch.searchsorted(offsets.contiguous(), place, right=True) - 1


def reference(
    ids: Tensor, weight: Tensor, offsets: Tensor, mode: str, per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Of equal elements the first is the largest: it takes the gradient."""
    bags, terms = offsets.numel(), weight[ids.long()]
    if per_sample_weights is not None:
        terms = terms * per_sample_weights.unsqueeze(1)
    bag = bag_of_each(ids, offsets)
    inside = bag >= 0 if padding_idx is None else (bag >= 0) & (ids != padding_idx)
    bag, terms = bag[inside], terms[inside]
    if mode == "max" and bags:
        rows = [terms[bag == b] for b in range(bags)]
        return (torch.stack([r.max(0).values if len(r) else r.sum(0) for r in rows]),)
    total = weight.new_zeros(bags, weight.shape[1]).index_add(0, bag, terms)
    if mode == "mean":
        total = total / torch.bincount(bag, minlength=bags).clamp(min=1).unsqueeze(1)
    return (total,)


# ---------------------------------------------------------------- bounds


def _counts(args: dict[str, Any]) -> Tensor:
    bag = bag_of_each(args["ids"], args["offsets"])
    return torch.bincount(bag, minlength=args["offsets"].numel()).unsqueeze(1).double()


def _sizes(args: dict[str, Any]) -> dict[str, Any]:
    weights = args["per_sample_weights"]
    return args | {"weight": args["weight"].abs(), "per_sample_weights": None if weights is None else weights.abs()}


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """A product, a sum and a quotient of each bag in float32; a maximum is an element itself."""
    if args["mode"] == "max":
        return (torch.zeros_like(outputs[0]),)
    count = _counts(args) + 1.0
    inside = 1.01 * U32 * count * reference(**_sizes(args))[0] + count * SMALLEST
    return (rounding(outputs[0], dtype) + inside,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """A row's gradient is a sum over the places that looked it up; a weight's of a place is a product of two rows."""
    ids, made = args["ids"].long(), {}
    if "weight" in gradients:
        with torch.enable_grad():
            table = args["weight"].detach().clone().requires_grad_()
            weights = args["per_sample_weights"]
            given = args | {"weight": table, "per_sample_weights": None if weights is None else weights.abs()}
            (terms,) = torch.autograd.grad(reference(**given)[0], table, grads[0].abs(), allow_unused=True)
        terms = torch.zeros_like(table) if terms is None else terms
        count = torch.bincount(ids, minlength=len(table)).unsqueeze(1).double() + 2.0
        inside = 1.01 * U32 * count * terms + count * SMALLEST
        made["weight"] = torch.where(terms > 0, rounding(gradients["weight"], dtype) + inside, torch.zeros_like(inside))
    if "per_sample_weights" in gradients:
        bag, D = bag_of_each(ids, args["offsets"]), args["weight"].shape[1]
        size = (grads[0].abs()[bag] * args["weight"].abs()[ids]).sum(1)
        inside = 1.01 * U32 * D * size + D * SMALLEST
        made["per_sample_weights"] = rounding(gradients["per_sample_weights"], dtype) + inside
    return made


# ---------------------------------------------------------------- cost


def dims(request: Request) -> dict[str, int]:
    ids, weight, offsets = (request.args[name] for name in ("ids", "weight", "offsets"))
    return {"M": ids.numel, "V": weight.shape[0], "D": weight.shape[1], "B": offsets.numel}


def cost(request: Request) -> Cost:
    M, V, D, B = dims(request).values()
    ids, size = request.args["ids"], request.args["weight"].dtype.itemsize
    flop = float(M * D * (1 + (request.args["per_sample_weights"] is not None)))
    if request.pass_ == "backward":
        return Cost(flop, 0.0, ids.nbytes + B * D * size, V * D * size)
    return Cost(flop, 0.0, ids.nbytes + M * D * size, B * D * size)


# ---------------------------------------------------------------- cases

Lengths = tuple[int, ...]


def _make(
    generator: Generator, dtype: torch.dtype, lengths: Lengths, V: int, D: int, mode: str, *, kind: str = "normal",
    index: torch.dtype = torch.int64, weighted: bool = False, padding: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    ids = torch.randint(0, V, (sum(lengths),), generator=generator)
    if ids.numel() > 2:  # both ends of the table
        ids[0], ids[-1] = V - 1, 0
    if padding is not None:
        ids[::3] = padding
    weights = draw("normal", generator, dtype, ids.numel()) if weighted else None
    return {
        "ids": ids.to(index), "weight": draw(kind, generator, dtype, V, D),
        "offsets": torch.tensor([*itertools.accumulate(lengths, initial=0)][: len(lengths)], dtype=index), "mode": mode,
        "per_sample_weights": weights, "padding_idx": padding,
    }  # fmt: skip


def _case(name: str, lengths: Lengths, V: int, D: int, mode: str, **more: Any) -> Case:
    how = {n: more.pop(n) for n in ("kind", "index", "weighted", "padding") if n in more}
    return Case(f"{mode}, {name}", lambda g, d: _make(g, d, lengths, V, D, mode, **how), **more)


def _cases() -> Iterator[Case]:
    for i, n in enumerate(LENGTHS):
        yield _case(f"D={n}", (3, 1, 4), 11, n, MODES[i % 3], weighted=i % 3 == 1, layouts=n in (17, 128))
    for mode in MODES:
        weighted = mode == "sum"
        yield _case("empty bags", (0, 3, 0, 0, 5, 0), 20, 24, mode, layouts=True)
        yield _case("one bag", (40,), 7, 20, mode, weighted=weighted)
        yield _case("one id each", (1,) * 33, 50, 19, mode, index=torch.int32)
        yield _case("no bags", (), 5, 8, mode)
        yield _case("no ids", (0, 0), 5, 8, mode)
        yield _case("padding", (4, 6, 1, 9), 9, 33, mode, padding=4, weighted=weighted)
        yield _case("all padding", (3,), 1, 17, mode, padding=0)
        yield _case("one row", (300, 5), 1, 35, mode, gradients=mode != "max")
        yield _case("many bags", (7,) * 150, 257, 40, mode, weighted=weighted)
        for kind in VALUES:
            if kind != "normal" and not (
                mode == "max" and kind == "nan"
            ):  # of which torch takes the first, and no other
                smooth = kind in ("large_mean", "tiny", "constant", "zeros") and not weighted
                yield _case(kind, (3, 2, 5), 20, 33, mode, kind=kind, gradients=smooth)
    yield _case("int32, weighted", (3, 0, 8), 12, 21, "sum", index=torch.int32, weighted=True, layouts=True)


def _timed(sizes: tuple[tuple[int, int, int, int], ...], dtypes: tuple[torch.dtype, ...]) -> tuple[Case, ...]:
    return tuple(
        _case(f"{B} bags of {n} in {V}x{D}", (n,) * B, V, D, mode, dtypes=dtypes)
        for B, n, V, D in sizes for mode in ("mean", "sum")
    )  # fmt: skip


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    given = {
        "ids": torch.tensor([0, 3, 1]), "weight": normal(torch.Generator(), torch.float32, 4, 8),
        "offsets": torch.tensor([0, 2]), "mode": "sum", "per_sample_weights": None, "padding_idx": None,
    }  # fmt: skip
    return lambda: given | changed


OFFSETS = "offsets must rise from 0 to at most 3"
ERRORS: tuple[Error, ...] = (
    *errors_of(ARGUMENTS),
    ("an id past the table", _with(ids=torch.tensor([1, 4, 0])), IndexError, "ids must be in [0, 4)"),
    ("a negative id", _with(ids=torch.tensor([0, 1, -1])), IndexError, "got -1 at position 2"),
    ("offsets that begin late", _with(offsets=torch.tensor([1, 2])), IndexError, OFFSETS),
    ("offsets that fall", _with(offsets=torch.tensor([0, 2, 1])), IndexError, OFFSETS),
    ("offsets past the ids", _with(offsets=torch.tensor([0, 4])), IndexError, OFFSETS),
    (
        "weights of a mean",
        _with(mode="mean", per_sample_weights=torch.ones(3)),
        ValueError,
        "per_sample_weights must be",
    ),
    ("padding past the table", _with(padding_idx=4), ValueError, "padding_idx must be below 4"),
)

CONTRACT = Contract(
    name="embedding_bag", family="lookup",
    limits=limits_of(ARGUMENTS) | {"offsets": Ends("ids", 0, from_zero=True)},
    formula="output[b] = the sum, mean or maximum over the ids i of bag b of per_sample_weights[i] weight[ids[i]]",
    source="torch.nn.functional.embedding_bag", outputs=("output",), differentiable=("weight", "per_sample_weights"),
    check=check, reference=reference, bound=bound, gradient_bound=gradient_bound, cost=cost, dims=dims,
    cases=tuple(_cases()),
    bench_cases=_timed(((512, 20, 100_000, 64), (64, 50, 30_000, 384)), (F32,)),
    device_cases=tuple(_case("wide", (37, 1, 500) * 60, 5003, 1032, mode, weighted=mode == "sum") for mode in MODES),
    device_bench_cases=_timed(((16_384, 20, 1_000_000, 128), (4096, 50, 100_000, 512)), (BF16,)),
    errors=ERRORS,
)  # fmt: skip
