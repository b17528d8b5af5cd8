"""Other data of which a call may be made, and how far two answers to it are apart."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF

__all__ = ["host_numbers", "other_data", "pattern", "relative_errors", "same_numbers", "within_rounding"]

SMALLER = 0.75  # floating-point numbers of other data are so many times as large
TIES = 0.1  # rounding may change this share of whole numbers
CHUNK = 1 << 24  # so many elements are compared at once


def other_data(tensor: Tensor) -> Tensor:
    """Other values in a tensor's place, none that an index, a length or an offset could not be: numbers in another
    order and smaller, a mask that hides more, whole numbers moved along the longest dimension. Itself if there are
    none."""
    if not tensor.numel():
        return tensor
    if tensor.is_floating_point() or tensor.is_complex():
        try:
            return (tensor.flip(-1) if tensor.dim() else tensor) * SMALLER
        except RuntimeError:  # of 8 bits
            return tensor
    masks = tensor.dtype is torch.bool or bool(((tensor == 0) | (tensor == 1)).all())
    if tensor.dim() == 0 or (tensor.dim() == 1 and tensor.dtype is not torch.bool):
        return tensor  # lengths and offsets, of which an operator may ask that they fit other inputs
    if not masks:
        longest = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
        return tensor.roll(max(1, tensor.shape[longest] // 3), longest)
    hidden = tensor.shape[-1] // 2
    if not hidden or not bool(tensor.narrow(-1, 0, hidden).any()):
        return tensor
    made = tensor.clone()
    made.narrow(-1, 0, hidden).zero_()
    return made


def pattern(tensor: Tensor) -> Tensor:
    """What comes in as its gradient: no two elements alike, as a plain sum of a normalized row has no gradient."""
    made = torch.linspace(0.5, 1.5, tensor.numel(), device=tensor.device, dtype=torch.float32)
    return made.reshape(tensor.shape).to(tensor.dtype)


def relative_errors(now: Sequence[Tensor | None], want: Sequence[Tensor | None]) -> list[float]:
    """How far each is off, relative to its size; of whole numbers the share that differs; infinite if they are not
    of one shape, or NaN stands elsewhere."""
    if len(now) != len(want):
        return [math.inf]
    return [_apart(a, b) for a, b in zip(now, want, strict=True)]


def _apart(now: Tensor | None, want: Tensor | None) -> float:
    if now is None or want is None:
        return 0.0 if now is want else math.inf
    if (now.shape, now.dtype) != (want.shape, want.dtype):
        return math.inf
    off = size = 0.0
    for a, b in zip(_flat(now).split(CHUNK), _flat(want).split(CHUNK), strict=True):
        if not a.is_floating_point():
            off, size = off + float((a != b).sum()), size + a.numel()
            continue
        if not torch.equal(a.isnan(), b.isnan()):
            return math.inf
        a, b = a.double(), b.double()
        both = a.isfinite() & b.isfinite()
        off += float(torch.where(both, a - b, 0.0).square().sum())
        size += float(torch.where(both, b, 0.0).square().sum())
    if not want.is_floating_point() and not want.is_complex():
        return off / size if size else 0.0
    return math.sqrt(off / size) if size else (0.0 if not off else math.inf)


def _flat(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).reshape(-1)


def within_rounding(tensor: Tensor | None) -> float:
    """How far one answer may be off another one of the same numbers, computed in another way."""
    if tensor is None or not (tensor.is_floating_point() or tensor.is_complex()):
        return TIES
    return math.sqrt(UNIT_ROUNDOFF.get(tensor.dtype, 2.0**-24))


def host_numbers() -> list[Any]:
    """Where the host's generators stand: torch's, Python's and NumPy's."""
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else ()
    return [torch.get_rng_state(), random.getstate(), *(getattr(s, "tolist", lambda s=s: s)() for s in state)]


def same_numbers(before: Sequence[Any], now: Sequence[Any]) -> bool:
    """Whether nothing was drawn in between."""
    return torch.equal(before[0], now[0]) and list(before[1:]) == list(now[1:])
