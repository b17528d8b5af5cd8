"""Right or wrong: inputs and outputs between poisoned bands, and every element against float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelworks.climb.problem import Inputs, Problem, Size

__all__ = ["GuardedTensor", "ReferenceCase"]

GUARD = 256  # elements on either side; keeps the alignment of what lies between


def _poison(dtype: torch.dtype) -> float:
    return float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max


class GuardedTensor:
    """A tensor with a band on either side, all of it poisoned before each verification."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        self.count = torch.Size(shape).numel()
        self.whole = torch.full((self.count + 2 * GUARD,), _poison(dtype), dtype=dtype, device=device)
        self.out = self.whole[GUARD : GUARD + self.count].view(shape)

    def poison(self) -> None:
        self.whole.fill_(_poison(self.whole.dtype))

    def has_overrun(self) -> bool:
        """Whether a band was written to."""
        edges = torch.cat((self.whole[:GUARD], self.whole[GUARD + self.count :]))
        kept = edges.isnan() if edges.is_floating_point() else edges == _poison(edges.dtype)
        return not bool(kept.all())


def _banded(value: Tensor) -> Tensor:
    """The same between two bands of poison: what is read outside shows in the result."""
    if not value.is_contiguous():
        return value
    held = GuardedTensor(tuple(value.shape), value.dtype, str(value.device))
    held.out.copy_(value)
    return held.out


def draw_inputs(problem: Problem, size: Size, format_name: str, seed: int) -> Inputs:
    """What a rung of this format receives, of random numbers. Raises ValueError if it lies on another device."""
    given = problem.encode_inputs(format_name, problem.inputs(size, torch.Generator(problem.device).manual_seed(seed)))
    away = [name for name, value in given.items() if value.device.type != problem.device]
    if away:
        raise ValueError(f"the problem's inputs {', '.join(away)} are not on {problem.device}: use generator.device")
    return {name: _banded(value) for name, value in given.items()}


@dataclass
class ReferenceCase:
    """Inputs of one size in one format, with their float64 output and bound."""

    size: Size
    given: Inputs
    copies: Inputs
    reference: Tensor
    bound: Tensor

    @classmethod
    def of(cls, problem: Problem, size: Size, format_name: str, seed: int) -> ReferenceCase:
        given = draw_inputs(problem, size, format_name, seed)
        exact = problem.exact_inputs(format_name, given)
        reference = problem.reference(exact)
        copies = {name: value.clone() for name, value in given.items()}
        return cls(size, given, copies, reference, problem.bound_of(format_name)(exact, reference))

    def judge(self, out: Tensor) -> tuple[float, str]:
        """The worst error as a share of the bound, and what is wrong, "" where nothing is."""
        error = (out.double() - self.reference).abs()
        within = error <= self.bound  # False for NaN
        tiny = torch.finfo(torch.float64).tiny
        share = (error / self.bound.clamp_min(tiny)).nan_to_num(nan=float("inf")).max().item()
        if bool(within.all()):
            return share, ""
        at = tuple((~within).nonzero()[0].tolist())
        got, want, most = out[at].item(), self.reference[at].item(), self.bound[at].item()
        count = int((~within).sum())
        return (
            share,
            f"{count} of {within.numel()} elements; at {list(at)} {got:.9g}, expected {want:.9g} +- {most:.3g}",
        )

    def has_unchanged_inputs(self) -> bool:
        return all(torch.equal(self.given[name], copy) for name, copy in self.copies.items())
