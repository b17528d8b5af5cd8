"""Which calls of a module are kept to stand for all that a run makes of it.

A policy is called for a step without gradients, and then trained on a batch; a critic sees real and made pictures; a
prompt is read at once and its answer token by token. The first and the last call of a module are kept, and one of each
kind that is like neither: in other modes, or of sizes that are twice as large or half. The others are counted to the
one that they are most like.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from kernelworks.contract.leaves import leaves

__all__ = ["Look", "look_of", "standing_for"]

MOST = 4  # so many calls of one module are kept: each is benchmarked and compared
NEAR = 1.0  # sizes within so many powers of two are alike
OTHER_KIND_DISTANCE = 1e3  # calls in other modes or of other arguments are so far apart


class Look(NamedTuple):
    """What a call is told from others by: its modes, and the sizes of what it is given, as powers of two."""

    modes: tuple[Any, ...]
    sizes: tuple[float, ...]


def look_of(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Look:
    """Of a call that is about to be made."""
    autocast = tuple(torch.get_autocast_dtype(k) if torch.is_autocast_enabled(k) else None for k in ("cpu", "cuda"))
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), module.training, *autocast
    return Look(modes, tuple(math.log2(1 + t.numel()) for t in leaves((args, kwargs)).values()))


def standing_for(calls: Sequence[Look]) -> dict[int, int]:
    """The calls to keep, by their number in the run, and how many each stands for, itself among them."""
    chosen = sorted({0, len(calls) - 1})
    counts, first = Counter(calls), dict[Look, int]()
    for at, look in enumerate(calls):
        first.setdefault(look, at)
    for look, _ in counts.most_common():
        if len(chosen) < MOST and all(_distance(look, calls[at]) > NEAR for at in chosen):
            chosen.append(first[look])
    stands = dict.fromkeys(sorted(chosen), 1)
    counts.subtract(calls[at] for at in chosen)
    for look, count in counts.items():
        nearest = min(chosen, key=lambda at: (_distance(look, calls[at]), -at))
        stands[nearest] += count
    return stands


def _distance(a: Look, b: Look) -> float:
    if len(a.sizes) != len(b.sizes):
        return 2 * OTHER_KIND_DISTANCE
    apart = max((abs(x - y) for x, y in zip(a.sizes, b.sizes, strict=True)), default=0.0)
    return apart + (0.0 if a.modes == b.modes else OTHER_KIND_DISTANCE)
