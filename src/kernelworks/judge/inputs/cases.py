"""Cases as the supervisor has them: inputs that nobody has seen, and what their answers may be."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract.complex_numbers import as_parts
from kernelworks.judge.process.ipc import Memory, Spot

__all__ = ["Case", "Comparison", "case_of", "compare_answers"]

TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Comparison:
    """What one answer comes to: its worst error as a share of the bound, and what is wrong, "" where nothing is."""

    worst: float = 0.0
    wrong: str = ""
    elements: int = 0


@dataclass
class Case:
    draw: str
    memory: Memory
    inputs: list[Any]  # structure, for the other side
    given: list[Tensor]
    outputs: list[tuple[tuple[int, ...], str]]  # shape and dtype of each answer
    names: list[str]
    reference: list[Tensor]  # at the places; of complex numbers both parts, one behind the other
    bound: list[Tensor]
    places: list[Tensor]
    own: float  # the reference's own worst error as a share of the bound
    why: tuple[str, ...]
    unknown: tuple[str, ...]
    finite: bool
    drawn: bool = False  # two runs of the reference have other answers
    there: list[Tensor] = field(default_factory=list)  # the inputs, where candidates work
    seed: int = 0  # that it was drawn with
    strides: list[tuple[int, ...]] = field(default_factory=list)  # of each answer, as the reference has them
    shared: frozenset[tuple[int, int]] = frozenset()  # answers of which the reference has two in one memory
    lent: frozenset[int] = frozenset()  # and those that it has in an input's, or its own: calls after it change them

    @property
    def answer_bytes(self) -> int:
        return sum(math.prod(shape) * int(getattr(torch, dtype).itemsize) for shape, dtype in self.outputs)

    @property
    def nbytes(self) -> int:
        return self.answer_bytes + sum(t.nbytes for t in self.given)

    def first_outputs(self, count: int) -> Case:
        """The case of the first of its answers alone."""
        return dataclasses.replace(
            self, outputs=self.outputs[:count], names=self.names[:count], reference=self.reference[:count],
            bound=self.bound[:count], places=self.places[:count], strides=self.strides[:count],
        )  # fmt: skip

    def close(self) -> None:
        self.memory.close()


def case_of(draw: str, said: dict[str, Any], descriptors: list[int]) -> Case:
    """What the process of the reference says, beside the memory that it says it of."""
    memory = Memory.of(descriptors[0])
    for number in descriptors[1:]:
        os.close(number)
    tensors = [memory.tensor(_spot(spot)) for spot in said["spots"]]
    answers = len(said["outputs"])
    given, rest = tensors[: len(tensors) - 3 * answers], tensors[len(tensors) - 3 * answers :]
    reference, bound, places = (rest[i * answers : (i + 1) * answers] for i in range(3))
    outputs = [(tuple(shape), dtype) for shape, dtype, _ in said["outputs"]]
    own = max(said["own"], default=0.0)
    return Case(
        draw, memory, said["inputs"], given, outputs, said["names"], reference, bound, places, float(own),
        tuple(said["why"]), tuple(said["unknown"]), all(said["finite"]), bool(said["drawn"]),
        strides=[tuple(strides) for _, _, strides in said["outputs"]],
        shared=frozenset((int(a), int(b)) for a, b in said["shared"]),
        lent=frozenset(map(int, said["lent"])),
    )  # fmt: skip


def _spot(said: Any) -> Spot:
    at, shape, strides, dtype = said
    return int(at), tuple(shape), tuple(strides), str(dtype)


def _picked(answer: Tensor, at: Tensor) -> Tensor:
    """Elements of an answer, here: of one on a device the few that are asked for, or all of it."""
    few = 4 * at.numel() < answer.numel()
    return answer[at.to(answer.device)].cpu() if few else answer.cpu()[at]


def compare_answers(case: Case, answers: list[Tensor]) -> Comparison:
    """Answers, each flat and whole, against the reference. NaN and infinities must stand where they do there."""
    worst, elements = 0.0, 0
    for (_, dtype), name, answer, reference, bound, at in zip(
        case.outputs, case.names, answers, case.reference, case.bound, case.places, strict=True
    ):  # fmt: skip
        few = _picked(answer, at)
        asked = getattr(torch, dtype)
        if few.is_complex() != asked.is_complex:
            return Comparison(math.inf, f"{name} is {few.dtype}, where {asked} is asked for", elements)
        if asked.is_complex:  # by their parts, as the reference has them: real, imaginary, real, ...
            few, at = as_parts(few).reshape(-1), at.repeat_interleave(2)
        answered = few
        few, want = few if few.is_floating_point() else few.double(), reference.double()
        error = (few - want).abs_()  # in float64, which both are widened to
        exact = not (asked.is_floating_point or asked.is_complex)
        if exact:  # float64 holds no large whole number as it is
            error[answered != reference] += 1
        elements += few.numel()
        near = error <= bound  # False for NaN
        if bool(near.all()):  # nearly always: what tells NaN and infinities apart takes twice as long as all of this
            most = float(error.div_(bound.clamp_min(TINY)).max()) if few.numel() else 0.0
            worst = max(worst, math.inf if math.isnan(most) else most)
            continue
        got = few.double()
        same = answered == reference if exact else (got == want) | (got.isnan() & want.isnan())
        within = same | near
        share = torch.where(same, 0.0, error / bound.clamp_min(TINY)).nan_to_num(nan=math.inf)
        worst = max(worst, float(share.max())) if share.numel() else worst
        if not bool(within.all()):
            first = int((~within).nonzero()[0])
            count = int((~within).sum())
            said = (
                f"{count} of {got.numel()} elements of {name} that were looked at: element {int(at[first])} is "
                f"{float(got[first]):.9g}, must be {float(want[first]):.9g} +- {float(bound[first]):.3g}"
            )
            return Comparison(worst, said, elements)
    return Comparison(worst, "", elements)
