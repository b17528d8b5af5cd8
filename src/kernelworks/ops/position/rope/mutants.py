"""Known-wrong versions of rope. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.position.rope.contract import apply_rotation

__all__ = ["MUTANTS"]

RopeFunction = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


def _on_both(change: RopeFunction) -> Callable[..., Any]:
    def run(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Any:
        return tuple(change(x.double(), cos.double(), sin.double(), interleaved).to(x.dtype) for x in (q, k))

    return run


def _one_table_half(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    half = cos.shape[-1] // 2
    first = [torch.cat((t[..., :half], t[..., :half]), -1) for t in (cos, sin)]
    return apply_rotation(x, first[0], first[1], interleaved)


def _one_position_on(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    return apply_rotation(x, cos.roll(1, -2), sin.roll(1, -2), interleaved)


def _first_entry(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    return apply_rotation(x, cos[:1] if cos.dim() == 3 else cos, sin[:1] if sin.dim() == 3 else sin, interleaved)


def _rest_lost(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    y = apply_rotation(x, cos, sin, interleaved)
    y[..., cos.shape[-1] :] = 0.0
    return y


def _stale_tail(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    y = apply_rotation(x, cos, sin, interleaved)
    y[..., y.shape[-1] // 16 * 16 :] = 0.0
    return y


def _low_precision(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Any:
    return tuple(
        apply_rotation(x.bfloat16().float(), cos.bfloat16().float(), sin.bfloat16().float(), interleaved).to(x.dtype)
        for x in (q, k)
    )


def _key_left(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Any:
    return apply_rotation(q.double(), cos.double(), sin.double(), interleaved).to(q.dtype), k.clone()


MUTANTS = (
    Mutant("other pairing", _on_both(lambda x, c, s, i: apply_rotation(x, c, s, not i)), "halves for neighbours"),
    Mutant("other direction", _on_both(lambda x, c, s, i: apply_rotation(x, c, -s, i)), "the sine's sign"),
    Mutant("half of the tables", _on_both(_one_table_half), "both halves taken to be equal"),
    Mutant("one position on", _on_both(_one_position_on), "the tables are read one row aside"),
    Mutant("first entry's tables", _on_both(_first_entry), "tables of the batch's first entry for all"),
    Mutant("rest lost", _on_both(_rest_lost), "what the tables do not cover is not copied"),
    Mutant("stale tail", _on_both(_stale_tail), "the vector tail is never written"),
    Mutant("bfloat16 inside", _low_precision, "everything is rounded to bfloat16 first"),
    Mutant("key left as it was", _key_left, "only q turns"),
)
