"""Masks of transformers' models: what it makes for ``sdpa``, noted where a mask says no more than a causal pattern."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.digest import fingerprint

__all__ = ["Pattern", "mask_function", "pattern_of"]

_is_compiling = torch.compiler.is_compiling


@dataclass(frozen=True)
class Pattern:
    """What a whole mask says: each query sees the keys up to its own, at most ``window`` of them."""

    window: int | None
    seen: Any  # of the mask when this was written; a mask changed since says something else
    storage: Any  # its memory, which is given to nobody else meanwhile


def mask_function(
    batch_size: int,
    q_length: Any = None,
    kv_length: int = 0,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    *,
    cache_position: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """The mask that transformers makes for ``sdpa``, with a note on it where it is causal and nothing else.

    transformers says which positions the queries have by a length and an offset, or, in its first versions of 5, by a
    tensor: ``cache_position``.
    """
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    near = local_size is not None and kv_length >= local_size
    if kwargs.get("allow_is_bidirectional_skip") and attention_mask is None and not near:
        return None  # of keys that all are seen transformers 5.17 makes a mask in a graph that is captured or compiled
    of = causal_mask_function if mask_function is None else mask_function
    queries: dict[str, Any] = {"q_length": q_length, "q_offset": q_offset}
    if cache_position is not None:
        queries = {"cache_position": cache_position}
    mask: Any = sdpa_mask(
        batch_size=batch_size, kv_length=kv_length, kv_offset=kv_offset, mask_function=of,
        attention_mask=attention_mask, local_size=local_size, **queries, **kwargs,
    )  # fmt: skip
    found: Tensor | None = mask
    if mask is None or _is_compiling():
        return found
    end = _end_of(cache_position) if cache_position is not None else q_offset + q_length
    if type(end) is not int or end != kv_offset + kv_length:
        return found
    window = local_size if _slides(of, local_size) else None
    if (of is causal_mask_function or window) and _all_seen(attention_mask):
        mask._kernelworks_pattern = Pattern(window, fingerprint(mask), mask.untyped_storage())
    return found


def _end_of(positions: Tensor) -> int | None:
    """The position behind the last query, if each follows the one before it. On a GPU that is not looked up."""
    if not positions.is_cpu or positions.dim() != 1 or not positions.numel():
        return None
    first = int(positions[0])
    end = first + positions.numel()
    return end if torch.equal(positions, torch.arange(first, end, dtype=positions.dtype)) else None


def _all_seen(attention_mask: Tensor | None) -> bool:
    """Whether no token is padding. On a GPU that is not looked up: the host would wait for the answer."""
    return attention_mask is None or (attention_mask.is_cpu and bool(attention_mask.all()))


def _slides(function: Any, window: int | None) -> bool:
    """Whether a mask function is transformers' causal sliding window of this size, and nothing else."""
    from transformers.masking_utils import causal_mask_function

    parts = inspect.getclosurevars(function).nonlocals.get("mask_functions") if window else None
    if not isinstance(parts, tuple) or len(parts) != 2 or parts[1] is not causal_mask_function:
        return False
    overlay = parts[0]
    return (
        getattr(overlay, "__qualname__", "") == "sliding_window_overlay.<locals>.inner_mask"
        and inspect.getclosurevars(overlay).nonlocals.get("sliding_window") == window
    )


def pattern_of(mask: Tensor) -> Pattern | None:
    """What was noted on a mask, if it holds what it held then."""
    if _is_compiling():
        return None
    found: Pattern | None = mask.__dict__.get("_kernelworks_pattern")
    return found if found is not None and found.seen == fingerprint(mask) else None
