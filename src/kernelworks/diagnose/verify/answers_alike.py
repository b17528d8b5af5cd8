"""Whether two sets of answers are of one kind, before any error is measured, or the same."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.diagnose.verify.answers import Answers

__all__ = ["difference_in_kind", "equal_values", "same_but_rounded"]


def difference_in_kind(before: Answers, after: Answers) -> str:
    """What tells two sets of answers apart before any value is looked at."""
    if before.named.keys() != after.named.keys():
        lost = sorted(before.named.keys() ^ after.named.keys())
        return f"changed, it returns another structure ({', '.join(lost[:3])})"
    for path in {**before.kinds, **after.kinds}:
        was, now = before.kinds.get(path, "nothing"), after.kinds.get(path, "nothing")
        if was != now:
            return f"changed, output{path} is {now}, was {was}"
    for name, value in before.named.items():
        other = after.named[name]
        if (value.shape, value.dtype) != (other.shape, other.dtype):
            return (
                f"changed, {name} is {str(other.dtype).removeprefix('torch.')}{list(other.shape)}, "
                f"was {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
            )
        if value.is_floating_point() and not _same_kinds(value, other):
            return f"changed, NaN or infinities stand elsewhere in {name}"
    return ""


def equal_values(value: Tensor, other: Tensor) -> bool:
    """To the bit, but that one NaN is as good as another."""
    if not value.is_floating_point():
        return torch.equal(value, other)
    return _same_kinds(value, other) and torch.equal(value.nan_to_num(), other.nan_to_num())


def same_but_rounded(before: Answers, again: Answers) -> bool:
    """Whether two runs of the original gave the same answers, within its own rounding."""
    if difference_in_kind(before, again):
        return False
    for name, value in before.named.items():
        other = again.named[name]
        if not value.is_floating_point():
            if not torch.equal(value, other):
                return False
            continue
        one, two = (torch.where(value.isfinite() & other.isfinite(), t, 0.0).double() for t in (value, other))
        if float((one - two).norm()) > math.sqrt(UNIT_ROUNDOFF.get(value.dtype, 0.0)) * float(one.norm()):
            return False
    return True


def _same_kinds(value: Tensor, other: Tensor) -> bool:
    infinite = value.isinf()
    return (
        torch.equal(value.isnan(), other.isnan())
        and torch.equal(infinite, other.isinf())
        and torch.equal(value[infinite].sign(), other[infinite].sign())
    )
