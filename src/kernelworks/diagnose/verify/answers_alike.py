"""Whether two sets of answers are of one kind, before any error is measured."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.diagnose.verify.answers import Answers

__all__ = ["difference_in_kind", "equal_values"]


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


def _same_kinds(value: Tensor, other: Tensor) -> bool:
    infinite = value.isinf()
    return (
        torch.equal(value.isnan(), other.isnan())
        and torch.equal(infinite, other.isinf())
        and torch.equal(value[infinite].sign(), other[infinite].sign())
    )
