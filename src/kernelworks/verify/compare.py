"""The comparison: is this output within the derived bound of the float64 result, element by element?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["compare"]


def compare(got: Any, want: Tensor, bound: Tensor) -> tuple[float, str]:
    """The largest error as a share of the bound, and what is wrong ("" where nothing is).

    ``want`` and ``bound`` are float64. NaN must stand exactly where float64 has it, and an infinity where the exact
    value overflows the dtype; every test is written so that a NaN fails it. Where ``want`` holds integers (indices,
    counts) or truth values, every one must be met: which of several equal values an index names is part of what an op
    promises, and its reference says which.
    """
    if not isinstance(got, Tensor):
        return float("inf"), f"returned {type(got).__name__}, not a tensor"
    if got.shape != want.shape:
        return float("inf"), f"shape {list(got.shape)}, expected {list(want.shape)}"
    if got.is_floating_point() != want.is_floating_point():
        return float("inf"), f"dtype {got.dtype}, expected {'a float' if want.is_floating_point() else want.dtype}"
    if got.numel() == 0:
        return 0.0, ""
    if not want.is_floating_point():
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
