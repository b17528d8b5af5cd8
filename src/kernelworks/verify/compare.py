"""The comparison: is this output what the contract promises of it?

Most outputs are within the derived bound of the float64 result, element by element (``compare``). One that has several
right answers is judged by its relation (``contract/results.py``). ``compare_result`` knows which: whoever holds an
output against a reference asks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import as_float64
from kernelworks.contract.complex_numbers import as_parts, number_kind
from kernelworks.contract.results import AnyOrder, ChosenIndex, EqualAcrossRanks, EqualIndex, Equations, Relation

__all__ = [
    "chosen_values", "compare", "compare_result", "moved_to_choice", "repeated_places", "right_choices",
    "sort_as_promised",
]  # fmt: skip

KINDS = {"float": "a float", "complex": "a complex number"}


def compare(got: Any, want: Tensor, bound: Tensor) -> tuple[float, str]:
    """The largest error as a share of the bound, and what is wrong ("" where nothing is).

    ``want`` and ``bound`` are float64. NaN must stand exactly where float64 has it, and an infinity where the exact
    value overflows the dtype; every test is written so that a NaN fails it. Where ``want`` holds integers (indices,
    counts) or truth values, every one must be met: an index for which another would do as well has a relation.
    Complex numbers are judged by their parts (``contract/complex_numbers.py``): ``bound`` then holds one for each.
    """
    if not isinstance(got, Tensor):
        return float("inf"), f"returned {type(got).__name__}, not a tensor"
    if got.shape != want.shape:
        return float("inf"), f"shape {list(got.shape)}, expected {list(want.shape)}"
    kind = number_kind(want.dtype)
    if number_kind(got.dtype) != kind:
        return float("inf"), f"dtype {got.dtype}, expected {KINDS.get(kind, want.dtype)}"
    if got.numel() == 0:
        return 0.0, ""
    if kind == "complex":
        return compare(as_parts(got.detach()), as_parts(want), as_parts(bound))
    if kind == "exact":
        return _exact(got.detach(), want)
    value = got.detach().to(torch.float64)
    error = (value - want).abs_()
    within = torch.isfinite(value) & (error <= bound)
    if bool(within.all()):  # nearly always: what tells the infinities apart takes twice as long as all of this
        worst = float(torch.where(error == 0, 0.0, error / bound).max())
        return float("inf") if worst != worst else worst, ""
    info = torch.finfo(got.dtype)
    same = (value == want) | (value.isnan() & want.isnan())
    # Halfway between the largest number and the next power of two, rounding gives infinity.
    overflows = want.abs() + bound >= info.max * (1 + info.eps / 4)
    infinite = value.isinf() & (value.sign() == want.sign()) & overflows
    ok = within | same | infinite
    share = torch.where(same | infinite, 0.0, error / bound)
    share = torch.where(within & (error == 0), 0.0, share)
    worst = float(torch.where(share.isnan(), torch.inf, share).max())
    if bool(ok.all()):
        return worst, ""
    wrong = (~ok).nonzero()
    index = tuple(wrong[int(torch.where(share.isnan(), torch.inf, share)[~ok].argmax())].tolist())
    return max(worst, float("inf") if not bool(torch.isfinite(value[index])) else worst), (
        f"{len(wrong)} of {got.numel()} elements off; at {list(index)}: got {value[index].item():.9g}, "
        f"expected {want[index].item():.9g} within {bound[index].item():.3g}"
    )


def _exact(got: Tensor, want: Tensor) -> tuple[float, str]:
    """The same for whole numbers, which float64 would not hold all of."""
    wrong = (got != want).nonzero()
    if not len(wrong):
        return 0.0, ""
    index = tuple(wrong[0].tolist())
    return float("inf"), (
        f"{len(wrong)} of {got.numel()} elements off; at {list(index)}: got {got[index].item()}, "
        f"expected {want[index].item()}"
    )


# ---------------------------------------------------------------- outputs with several right answers


def compare_result(
    relation: Relation | None, got: Any, want: Tensor, bound: Tensor, args: Mapping[str, Any],
    outputs: Mapping[str, Any],
) -> tuple[float, str]:  # fmt: skip
    """``compare`` by the output's relation. ``args`` are the call's arguments by name, ``outputs`` all that it
    returned."""
    alike = isinstance(got, Tensor) and got.shape == want.shape
    if alike and isinstance(relation, ChosenIndex) and relation.is_free(args):
        values = outputs.get(relation.values)
        if got.numel() and (not isinstance(values, Tensor) or values.shape != got.shape):
            return float("inf"), f"there are no {relation.values} of its shape"
        wrong = _chosen(got.detach(), args[relation.of].detach(), args[relation.dim], values)
        return (float("inf") if wrong else 0.0), wrong
    if alike and isinstance(relation, EqualIndex):
        of = args[relation.of].detach()
        wrong = _chosen(got.detach(), of, -1, of.gather(-1, want))
        return (float("inf") if wrong else 0.0), wrong
    if alike and isinstance(relation, Equations) and number_kind(got.dtype) == number_kind(want.dtype):
        return _unsatisfied(relation, args, outputs)
    if alike and isinstance(relation, AnyOrder):
        order = sort_as_promised(relation, want, args)
        got, want = (t if order is None else t.gather(*sort_as_promised(relation, t, args)) for t in (got, want))
        bound = bound if order is None else bound.gather(*order)
    share, wrong = compare(got, want, bound)
    if isinstance(relation, EqualAcrossRanks) and not wrong:
        wrong = differing_bits(got, outputs.get(relation.of))
        share = float("inf") if wrong else share
    return share, wrong


def _unsatisfied(relation: Equations, args: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[float, str]:
    """The largest residual of an equation as a share of its limit, and which is not satisfied; a NaN satisfies none."""
    given = ({name: as_float64(_detached(value)) for name, value in each.items()} for each in (args, outputs))
    worst, wrong = 0.0, ""
    try:
        found = relation.residuals(*given)
    except (RuntimeError, TypeError) as error:  # results of shapes or kinds that no equation has
        return float("inf"), f"the equations cannot be asked: {error}"
    for name, (residual, limit) in found.items():
        share = torch.where(residual == 0, 0.0, residual / limit).reshape(-1)
        if not share.numel():
            continue
        share = torch.where(share.isnan(), torch.inf, share)
        place = int(share.argmax())
        worst = max(worst, float(share[place]))
        if not wrong and not bool((residual <= limit).all()):
            off, most = (float(t.reshape(-1)[place]) for t in (residual, limit))
            wrong = f"{name} does not hold: off by {off:.3g} at {place} of {share.numel()}, {most:.3g} at most"
    return worst, wrong


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def differing_bits(got: Tensor, other: Any) -> str:
    """What is wrong with a rank's result that must have the bits of another rank's; "" where it has them."""
    if not isinstance(other, Tensor) or got.dtype != other.dtype or got.shape != other.shape:
        return "another rank's is no tensor of its dtype and shape"
    mine, its = (t.detach().contiguous().view(-1).view(torch.uint8) for t in (got, other))
    wrong = (mine != its).nonzero()
    if not len(wrong):
        return ""
    place = int(wrong[0]) // got.element_size()
    a, b = (t.detach().reshape(-1)[place].item() for t in (got, other))
    return f"other bits than another rank's: element {place} is {a!r}, there {b!r}"


def sort_as_promised(relation: Relation | None, value: Tensor, args: Mapping[str, Any]) -> Any:
    """The dimension and the places that bring the lines of an output into an order where theirs is free; None where
    elements stand where they have to."""
    if not isinstance(relation, AnyOrder) or args[relation.unless]:
        return None
    return args[relation.dim], value.detach().argsort(dim=args[relation.dim], stable=True)


def chosen_values(relation: ChosenIndex, of: Tensor, places: Tensor, args: Mapping[str, Any]) -> Tensor:
    """What the chosen indices name of ``of``; differentiable in it."""
    if not of.dim():  # whose gradient torch 2.11 refuses on a GPU that is to be deterministic
        return of.clone()
    return of.gather(args[relation.dim], places)


def repeated_places(dim: int, places: Tensor) -> Tensor:
    """Of each place, whether its line along ``dim`` names one twice."""
    if not places.dim():
        return torch.zeros_like(places, dtype=torch.bool)
    return (places.sort(dim).values.diff(dim=dim) == 0).any(dim, keepdim=True).expand(places.shape)


def right_choices(of: Tensor, dim: int, values: Tensor, places: Tensor) -> Tensor:
    """Which places along ``dim`` name an element of the value beside them, in lines that name none twice."""
    n = of.shape[dim] if of.dim() else 1
    if not places.numel() or not n:
        return torch.zeros(places.shape, dtype=torch.bool, device=places.device)
    named = of.gather(dim, places.clamp(0, n - 1))
    right = (places >= 0) & (places < n) & ((named == values) | (named.isnan() & values.isnan()))
    return right & ~repeated_places(dim, places)


def moved_to_choice(value: Tensor, of: Tensor, places: Tensor, chosen: Tensor) -> Tensor:
    """What belongs to the elements of ``of``, where the elements that ``places`` name along the last dimension change
    places with the equal ones that ``chosen`` names: the gradient of the choice that a kernel made."""
    moved = torch.empty_like(value)
    return moved.scatter_(-1, _first_in_order(of, chosen), value.gather(-1, _first_in_order(of, places)))


def _first_in_order(of: Tensor, places: Tensor) -> Tensor:
    """The places of all elements of each line: those named first, then the others in falling order."""
    order = of.argsort(dim=-1, descending=True, stable=True)
    named = torch.zeros_like(of, dtype=torch.bool).scatter_(-1, places, True)
    others = order.gather(-1, named.gather(-1, order).to(torch.uint8).argsort(dim=-1, stable=True))
    return torch.cat((places, others[..., : of.shape[-1] - places.shape[-1]]), -1)


def _chosen(got: Tensor, of: Tensor, dim: int, values: Any) -> str:
    """What is wrong with indices of which several may be right: each is to name an element of ``of`` with the value in
    the same place."""
    if got.is_floating_point() or got.dtype == torch.bool:
        return f"dtype {got.dtype}, expected integers"
    if not got.numel():
        return ""
    places, value = got.to(torch.int64), values.detach()
    wrong = ~right_choices(of, dim, value, places)
    if not bool(wrong.any()):
        return ""
    at, n = tuple(wrong.nonzero()[0].tolist()), of.shape[dim] if of.dim() else 1
    said = f"{int(wrong.sum())} of {got.numel()} are wrong; at {list(at)}: index {int(places[at])}"
    if not 0 <= int(places[at]) < n:
        return f"{said} is no index of {n} elements"
    named = float(of.gather(dim, places.clamp(0, n - 1))[at])
    if named != float(value[at]) and not (named != named and bool(value[at].isnan())):
        return f"{said} is of another value: {named:.9g}, not {float(value[at]):.9g}"
    return f"{said} is in a line that names an element twice"
