"""Known-wrong versions of cache_append. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.attention.cache_append.contract import reference

__all__ = ["MUTANTS"]


def _slots(change: Callable[[Tensor, int, int], Tensor]) -> Callable[..., Any]:
    """Other slots: of the right ones, the size of a page and the slots that there are."""

    def run(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> Any:
        page = key_cache.shape[1]
        slots = change(slot_mapping.clone(), page, page * key_cache.shape[0])
        return reference(key, value, key_cache, value_cache, slots)

    return run


def _new(change: Callable[[Tensor, Tensor], Tensor], *which: int) -> Callable[..., Any]:
    """One of the caches changed, or both: of what it should be, and what it was."""

    def run(key: Tensor, value: Tensor, *rest: Tensor) -> Any:
        made = reference(key, value, *rest)
        return tuple(change(m, old) if i in which else m for i, (m, old) in enumerate(zip(made, rest, strict=False)))

    return run


def _heads_turned(key: Tensor, value: Tensor, *rest: Tensor) -> Any:
    return reference(key.flip(1), value, *rest)


def _last_missing(slots: Tensor, page: int, count: int) -> Tensor:
    slots[-1:] = -1
    return slots


def _kept_tail(made: Tensor, old: Tensor) -> Tensor:
    """The elements behind the last whole vector of 8."""
    made = made.clone()
    kept = made.shape[-1] // 8 * 8
    made[..., kept:] = old[..., kept:]
    return made


def _transposed(slots: Tensor, page: int, count: int) -> Tensor:
    blocks = max(count // page, 1)
    return torch.where(slots < 0, slots, slots % blocks * page + slots // blocks)


def _exchanged(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> Any:
    if key.shape != value.shape:
        return reference(key, value, key_cache, value_cache, slot_mapping)
    return reference(value, key, key_cache, value_cache, slot_mapping)


MUTANTS = (
    Mutant("skipped tokens written", _slots(lambda s, page, n: torch.where(s < 0, n - 1, s)), "-1 counts from the end"),
    Mutant("skipped tokens first", _slots(lambda s, page, n: s.clamp(min=0)), "a token without a slot takes slot 0"),
    Mutant("slots before", _slots(lambda s, page, n: torch.where(s < 0, s, (s - 1) % max(n, 1))), "one slot too early"),
    Mutant("slots of tokens", _slots(lambda s, page, n: torch.arange(len(s)) % max(n, 1)), "the mapping is ignored"),
    Mutant("first page", _slots(lambda s, page, n: torch.where(s < 0, s, s % page)), "every block is the first"),
    Mutant("block and slot exchanged", _slots(_transposed), "s % N is the block, s / N the slot"),
    Mutant("last token missing", _slots(_last_missing), "the last token is not written"),
    Mutant("keys not written", _new(lambda made, old: old, 0), "key_cache stays as it was"),
    Mutant("values not written", _new(lambda made, old: old, 1), "value_cache stays as it was"),
    Mutant("nothing written", _new(lambda made, old: old, 0, 1), "both stay as they were"),
    Mutant("exchanged", _exchanged, "keys are written to value_cache"),
    Mutant("heads turned", _heads_turned, "the heads of keys in another order"),
    Mutant("stale tail", _new(_kept_tail, 0, 1), "the last elements of a row are never written"),
    Mutant("the rest is cleared", _new(lambda made, old: made.nan_to_num(), 0, 1), "slots never written to become 0"),
)  # fmt: skip
