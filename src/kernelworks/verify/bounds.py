"""The bounds are judged too: what leaves one is refused, and one that no right kernel comes near is too loose.

Two questions, asked of every output and gradient in every dtype. Is an answer refused that is off by two or eight
bounds, in all elements or in one? And does the best right kernel at hand reach a fiftieth of the bound anywhere, over
all cases? A bound adds up roundings as if all went one way. They do not: of n of them about the root of n is left, so
that a sum of a thousand terms may stay under a hundredth. But every contract has cases of one to a dozen roundings, of
which thousands of elements meet a good part. Where none does, the derivation has a factor that no arithmetic has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import FLOATS, Case, Contract
from kernelworks.contract.complex_numbers import as_parts, from_parts, is_inexact, part_dtype
from kernelworks.contract.results import ChosenIndex, EqualIndex
from kernelworks.dispatch.op import Op
from kernelworks.verify.parity import judge, judge_gradients, parities
from kernelworks.verify.reference import Reference

__all__ = ["LEAST", "Shares", "accepted_errors", "loose_bounds", "merge_shares", "shares_of", "shift_past_bound"]

LEAST = 1 / 50  # of the bound: what a right kernel must reach somewhere
LEAST_EXCUSED = 1 / 1000  # the same with a reason; so a bound a hundred times as loose is refused, whatever is said

Shares = dict[str, dict[str, float]]  # the worst share of the bound, by dtype and output
WAYS = tuple((times, sign, place) for place in ("all", "drawn", "last") for times in (2.0, 8.0) for sign in (1, -1))
NAMES = tuple(str(dtype).removeprefix("torch.") for dtype in FLOATS)
# A contract has dozens of cases in each dtype. So each output of a case takes its turn with one of the ways, and a case
# of many elements, of which a comparison takes its time, only every fourth: every way is tried on many cases.
MANY = 65536
# Of a case of hundreds of outputs (an optimizer's lists) some take their turn: each wrong answer is compared whole.
MOST_OUTPUTS = 16


# ---------------------------------------------------------------- answers that leave the bound


def _next(value: Tensor, sign: int) -> Tensor:
    """The next representable number above (or below)."""
    bits: dict[int, Any] = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    whole = value.view(bits[value.element_size()])
    least = torch.iinfo(whole.dtype).min
    ordered = torch.where(whole < 0, least - whole, whole) + sign  # in the order of the numbers; -0 is +0
    return torch.where(ordered < 0, least - ordered, ordered).view(value.dtype)


def shift_past_bound(want: Tensor, bound: Tensor, dtype: torch.dtype, times: float, sign: int) -> tuple[Tensor, Tensor]:
    """``want`` moved by so many bounds and rounded to ``dtype``, and where that is off. Where the rounding brings it
    back, or the bound is 0, it is the next number that is off. Of complex numbers each part, as ``as_parts`` has them.
    """
    want, bound, dtype = as_parts(want), as_parts(bound), part_dtype(dtype)
    if not want.is_floating_point():
        moved = ~want if want.dtype == torch.bool else want + sign
        return moved, torch.ones_like(moved, dtype=torch.bool)
    moved = (want + sign * times * bound).to(dtype)
    largest = torch.finfo(dtype).max
    may = want.isfinite() & (want.abs() + times * bound < largest)  # an overflow may be right
    for _ in range(3):  # half a place to either side, and one
        short = may & ~((moved.double() - want) * sign > bound)
        if not bool(short.any()):
            break
        moved = torch.where(short, _next(moved, sign), moved)
    return moved, may & ((moved.double() - want) * sign > bound)


def _wrong(want: Tensor, bound: Tensor, right: Tensor, turn: int) -> tuple[str, Tensor] | None:
    """An answer that must be refused and what is wrong with it; None where no element can be off."""
    times, sign, place = WAYS[turn * 5 % len(WAYS)]
    moved, can = shift_past_bound(want, bound, right.dtype, times, sign)
    places = can.reshape(-1).nonzero().reshape(-1)
    if not len(places):
        return None
    right = as_parts(right)
    if place != "all":
        at = places[-1] if place == "last" else places[(turn * 7919 + 12345) % len(places)]
        only = torch.zeros(can.numel(), dtype=torch.bool, device=want.device)
        only[at] = True
        can = only.reshape(can.shape)
    where = {"all": "everywhere", "drawn": "in one element", "last": "in the last element"}[place]
    return f"off by {times * sign:+.0f} bounds {where}", from_parts(torch.where(can, moved, right), want)


def _wrong_choice(want: Tensor, dim: int, turn: int) -> tuple[str, Tensor] | None:
    """Indices that must be refused whichever of equal elements they may name, and what is wrong with them; None where
    there is none."""
    if not want.numel():
        return None
    moved = want.clone()
    if want.dim() and want.shape[dim] > 1 and turn % 2:
        moved.select(dim, -1).copy_(moved.select(dim, turn // 2 % (want.shape[dim] - 1)))
        return "names an element twice", moved
    moved.view(-1)[turn % moved.numel()] = -1 if turn % 4 else 2**40
    return "names no element", moved


def accepted_errors(op: Op, expected: Reference, turn: int = 0) -> list[str]:
    """The wrong answers that the comparison lets pass on one case; and that the right one is refused, where it is."""
    found: list[str] = []
    expected = expected.without_pieces()
    if any(t.numel() > MANY for t in (*expected.outputs, *expected.gradients.values())):
        if turn % 4:
            return found
        turn //= 4
    rounded = [_rounded(want, dtype) for want, dtype in zip(expected.outputs, expected.dtypes, strict=False)]
    message = judge(rounded, expected)[1]
    if message:
        return [f"the exact answer, rounded, is refused: {message}"]
    every = max(1, len(expected.outputs) // MOST_OUTPUTS)
    for i in range(turn % every, len(expected.outputs), every):
        relation = expected.relation(i)
        if isinstance(relation, ChosenIndex | EqualIndex):
            dim = expected.args[relation.dim] if isinstance(relation, ChosenIndex) else -1
            wrong = _wrong_choice(expected.outputs[i], dim, turn + i)
        else:
            wrong = _wrong(expected.outputs[i], expected.bounds[i], rounded[i], turn + i)
        if wrong and not judge([*rounded[:i], wrong[1], *rounded[i + 1 :]], expected)[1]:
            found.append(f"{expected.names[i]} {wrong[0]}")
    exact = {name: _rounded(want, expected.args[name].dtype) for name, want in expected.gradients.items()}
    message = judge_gradients(exact.items(), expected)[1]
    if message:
        return [*found, f"the exact gradients, rounded, are refused: {message}"]
    for i, (name, want) in enumerate(expected.gradients.items()):
        wrong = _wrong(want, expected.gradient_bounds[name], exact[name], turn + i)
        if wrong and not judge_gradients([(name, wrong[1])], expected)[1]:
            found.append(f"gradient of {name} {wrong[0]}")
    return found


def _rounded(want: Tensor, dtype: torch.dtype) -> Tensor:
    return want.to(dtype) if is_inexact(want.dtype) else want


# ---------------------------------------------------------------- bounds that are too loose


def merge_shares(parts: Iterable[Mapping[str, Mapping[str, float]]]) -> Shares:
    """The largest share of each dtype and output."""
    found: Shares = {}
    for part in parts:
        for dtype, outputs in part.items():
            held = found.setdefault(dtype, {})
            for name, share in outputs.items():
                held[name] = max(held.get(name, 0.0), share)
    return found


def loose_bounds(contract: Contract, shares: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What is wrong with a contract's bounds, given the largest share that a right kernel reaches over all cases.

    A bound of 0 is exact and has no share. What was not tried (another dtype, gradients that nobody made) is not
    judged; a reason is, where what it speaks of was.
    """
    named = (*contract.outputs, *(f"gradient of {name}" for name in contract.differentiable))
    wrong = [
        f"the reason for a loose bound of {key!r} speaks of none: it is 'DTYPE OUTPUT' or 'DTYPE gradient of ARGUMENT'"
        for key in contract.loose
        if not any(key.partition(" ")[2] in (name, *(f"{name} in {d}" for d in NAMES)) for name in named)
        or key.partition(" ")[0] not in NAMES
    ]
    for dtype, outputs in shares.items():
        for name, share in outputs.items():
            reason = contract.loose.get(f"{dtype} {name}", "")
            least = LEAST_EXCUSED if reason else LEAST
            if not share >= least:
                wrong.append(
                    f"the bound of {name} in {dtype} is too loose: the best right kernel here reaches {share:.2g} of "
                    f"it, and {least:g} is asked" + (" of one with a reason" if reason else "")
                )
            elif reason and share >= LEAST:
                wrong.append(
                    f"the bound of {name} in {dtype} needs no reason: a right kernel reaches {share:.2g} of it"
                )
    return wrong


def shares_of(op: Op, kernel: str, cases: Iterable[Case], inner: str) -> Shares:
    """What a kernel reaches over cases of the bounds for kernels that work so inside. A case that it fails counts for
    nothing: it is no right kernel there."""
    found: Shares = {}
    for case in cases:
        for dtype in case.dtypes:
            name = str(dtype).removeprefix("torch.")
            plain = dataclasses.replace(case, layouts=False)
            for parity in parities(op, kernel, plain, dtype, inner=inner, both_ends=False):
                if parity.ok:
                    found = merge_shares((found, {name: parity.shares}))
    return found
