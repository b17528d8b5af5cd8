"""Known-wrong versions of clip_grads_. The verification must reject every one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.ops.optimizer.clip_grads.contract import EPS, clip_step, mutant, scale_of, total_norm

__all__ = ["MUTANTS"]

Grads = Sequence[Tensor]


def _scaled(grads: Grads, scale: Any) -> list[Tensor]:
    return [g.double() * scale for g in grads]


def _by(grads: Grads, total: Tensor, max_norm: float) -> Any:
    return total, _scaled(grads, scale_of(total, max_norm))


def _in_float32(grads: Grads, max_norm: float, norm_type: float) -> Any:
    if norm_type == math.inf:
        return clip_step(grads, max_norm, norm_type, False)
    return _by(grads, sum((g.float().square().sum() for g in grads), torch.zeros(())).sqrt().double(), max_norm)


def _in_own_dtype(grads: Grads, max_norm: float, norm_type: float) -> Any:
    norms = [torch.linalg.vector_norm(g, norm_type) for g in grads if g.numel()]
    total = torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.zeros(())
    return _by(grads, total.double(), max_norm)


def _last_left_out(grads: Grads, max_norm: float, norm_type: float) -> Any:
    return _by(grads, total_norm(grads[:-1], norm_type), max_norm)


def _last_unscaled(grads: Grads, max_norm: float, norm_type: float) -> Any:
    total, scaled = clip_step(grads, max_norm, norm_type, False)
    return total, [*scaled[:-1], *grads[-1:]]


def _stale_tail(grads: Grads, max_norm: float, norm_type: float) -> Any:
    total, scaled = clip_step(grads, max_norm, norm_type, False)
    kept = [torch.arange(g.numel()).reshape(g.shape) >= g.numel() // 16 * 16 for g in grads]
    return total, [torch.where(k, g.double(), s) for k, g, s in zip(kept, grads, scaled, strict=True)]


def _tail_left_out(grads: Grads, max_norm: float, norm_type: float) -> Any:
    return _by(grads, total_norm([g.reshape(-1)[: g.numel() // 16 * 16] for g in grads], norm_type), max_norm)


def _each_alone(grads: Grads, max_norm: float, norm_type: float) -> Any:
    alone = [clip_step([g], max_norm, norm_type, False)[1][0] for g in grads]
    return total_norm(grads, norm_type), alone


def _not_clamped(grads: Grads, max_norm: float, norm_type: float) -> Any:
    total = total_norm(grads, norm_type)
    return total, _scaled(grads, max_norm / (total + EPS))


def _without_eps(grads: Grads, max_norm: float, norm_type: float) -> Any:
    total = total_norm(grads, norm_type)
    return total, _scaled(grads, (max_norm / total).clamp(max=1.0))


def _kept_where_infinite(grads: Grads, max_norm: float, norm_type: float) -> Any:
    total, scaled = clip_step(grads, max_norm, norm_type, False)
    return total, scaled if bool(total.isfinite()) else grads


def _norm_after(grads: Grads, max_norm: float, norm_type: float) -> Any:
    scaled = clip_step(grads, max_norm, norm_type, False)[1]
    return total_norm(scaled, norm_type), scaled


def _other_norm(grads: Grads, max_norm: float, norm_type: float) -> Any:
    return clip_step(grads, max_norm, math.inf if norm_type == 2 else 2.0, False)


def _no_magnitude(grads: Grads, max_norm: float, norm_type: float) -> Any:
    if norm_type != math.inf or not any(g.numel() for g in grads):
        return clip_step(grads, max_norm, norm_type, False)
    return _by(grads, torch.stack([g.double().max() for g in grads if g.numel()]).max(), max_norm)


def _nothing(grads: Grads, max_norm: float, norm_type: float) -> Any:
    return total_norm(grads, norm_type), grads


MUTANTS = (
    mutant("squares in float32", _in_float32, "squares of large gradients are infinite, those of small ones 0"),
    mutant("norm in the gradients' dtype", _in_own_dtype, "a norm beyond float16 is infinite"),
    mutant("last tensor left out", _last_left_out, "its elements are no part of the norm"),
    mutant("last tensor unscaled", _last_unscaled, "the last tensor of the list is not written"),
    mutant("stale tail", _stale_tail, "the vector tail is never written"),
    mutant("tail left out", _tail_left_out, "the vector tail is no part of the norm"),
    mutant("each tensor alone", _each_alone, "each tensor is clipped by its own norm"),
    mutant("scaled up", _not_clamped, "gradients below the limit are made larger"),
    mutant("no eps", _without_eps, "1e-6 is not added to the norm"),
    mutant("kept where infinite", _kept_where_infinite, "an infinite norm leaves the gradients as they are"),
    mutant("norm after", _norm_after, "the norm that is returned is the clipped one"),
    mutant("the other norm", _other_norm, "the largest magnitude for the norm, or the other way round"),
    mutant("largest without magnitude", _no_magnitude, "a negative gradient is never the largest"),
    mutant("nothing scaled", _nothing, "gradients stay as they are"),
)
