"""Dense attention as it is defined: one softmax for each query over the keys that it sees.

Each op of the template is made of calls of this: of all its queries and keys at once, with a mask, or of one sequence
after the other, whose keys lie behind each other or in pages (``DenseCall``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "DenseCall", "apply_softcap", "by_sequence", "clamped_sum", "dense_sizes", "heads_first", "is_plain", "join_parts",
    "per_query_head", "reference", "seen_pairs", "sees", "shift_of", "softmax_weights", "tokens_first", "visible",
    "with_sinks",
]  # fmt: skip


@dataclass(frozen=True)
class DenseCall:
    """A part of a call that is dense attention: the arguments of ``reference`` but for ``with_lse``, and of an op of
    many sequences where its queries and keys lie."""

    args: dict[str, Any]
    queries: slice | None = None
    keys: slice | None = None

    @staticmethod
    def of(
        q: Tensor, k: Tensor, v: Tensor, causal: str | None = None, window: int | None = None,
        scale: float | None = None, mask: Tensor | None = None, *, queries: slice | None = None,
        keys: slice | None = None,
    ) -> DenseCall:  # fmt: skip
        """One without softcap and sinks."""
        args = {"q": q, "k": k, "v": v, "causal": causal, "window": window, "scale": scale, "mask": mask}
        return DenseCall(args | {"softcap": None, "sinks": None}, queries, keys)


def shift_of(causal: str | None, queries: int, keys: int) -> int:
    """Query i stands at key position i + shift: 0 where the first ones are aligned, Lk - Lq where the last ones are."""
    return keys - queries if causal == "bottom_right" else 0


def visible(q: Tensor, k: Tensor, causal: str | None, window: int | None, mask: Tensor | None) -> Tensor:
    """[B, H, Lq, Lk], True where a query sees a key."""
    queries, keys = q.shape[2], k.shape[2]
    position = torch.arange(queries, device=q.device).unsqueeze(1) + shift_of(causal, queries, keys)
    key = torch.arange(keys, device=q.device)
    seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
    if causal is not None:
        seen = key <= position
    if window is not None:
        seen = seen & (key > position - window)
    seen = seen.expand(q.shape[0], q.shape[1], queries, keys)
    return seen if mask is None else seen & mask


def per_query_head(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // max(x.shape[1], 1), dim=1)


def with_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """Scores with one more behind the last key's, which has no value."""
    return torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], -1)


def softmax_weights(scores: Tensor, seen: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax, of the keys alone."""
    if sinks is not None:
        return torch.softmax(scores, -1)[..., :-1]
    any_seen = seen.any(-1, keepdim=True)
    # Where no key is seen softmax would give NaN, in the forward and in its derivative: take it of zeros, then drop it.
    return torch.softmax(scores.masked_fill(~any_seen, 0.0), -1) * any_seen


def apply_softcap(scores: Tensor, softcap: float | None) -> Tensor:
    """Scores bent so that none passes ``softcap`` in magnitude."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def reference(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None = None, window: int | None = None, scale: float | None = None,
    mask: Tensor | None = None, with_lse: bool = False, softcap: float | None = None, sinks: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    key, value = per_query_head(k, q.shape[1]), per_query_head(v, q.shape[1])
    seen = visible(q, k, causal, window, mask)
    scores = apply_softcap(q @ key.transpose(-1, -2) * factor, softcap).masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = with_sinks(scores, sinks)
    output = softmax_weights(scores, seen, sinks) @ value
    if not with_lse:
        return (output,)
    return output, torch.logsumexp(scores, -1).detach()


# ---------------------------------------------------------------- pairs


def clamped_sum(start: int, n: int, top: int) -> int:
    """The sum of clamp(start + i, 0, top) over 0 <= i < n."""
    low, high = max(0, min(n, -start)), max(0, min(n, top - start))
    return (high - low) * (2 * start + low + high - 1) // 2 + (n - high) * top


def seen_pairs(queries: int, keys: int, causal: str | None, window: int | None) -> int:
    """How many (query, key) pairs causal and window leave."""
    if causal is None:
        return queries * keys
    start = shift_of(causal, queries, keys) + 1
    hidden = 0 if window is None else clamped_sum(start - window, queries, keys)
    return clamped_sum(start, queries, keys) - hidden


def is_plain(causal: str | None, window: int | None, mask: Any, softcap: float | None, q: Any, k: Any) -> bool:
    """Whether scaled_dot_product_attention says it with ``is_causal``, without a mask."""
    return (
        mask is None and window is None and softcap is None
        and (causal != "bottom_right" or q.shape[2] == k.shape[2])
    )  # fmt: skip


# ---------------------------------------------------------------- sequences


def by_sequence(cu_seq_q: Tensor, cu_seq_k: Tensor) -> Iterator[tuple[slice, slice]]:
    """Where each sequence's queries lie, and its keys."""
    for queries, keys in zip(pairwise(cu_seq_q.tolist()), pairwise(cu_seq_k.tolist()), strict=True):
        yield slice(*queries), slice(*keys)


def heads_first(tokens: Tensor) -> Tensor:
    """[L, H, D] as [1, H, L, D], without a copy."""
    return tokens.transpose(0, 1).unsqueeze(0)


def tokens_first(heads: Tensor) -> Tensor:
    """[1, H, L, D] as [L, H, D], without a copy."""
    return heads.squeeze(0).transpose(0, 1)


def sees(queries: int, keys: int, window_size: Sequence[int], device: Any = None) -> Tensor:
    """[1, 1, Lq, Lk] of one sequence, True where a query sees a key: the last query stands at the last key."""
    left, right = window_size
    position = torch.arange(queries, device=device).unsqueeze(1) + (keys - queries)
    ahead = torch.arange(keys, device=device) - position
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if left >= 0:
        seen = seen & (ahead >= -left)
    if right >= 0:
        seen = seen & (ahead <= right)
    return seen[None, None]


def join_parts(parts: Sequence[tuple[Tensor, ...]], tokens: Tensor, lse: torch.dtype | None) -> tuple[Tensor, ...]:
    """Outputs [T, H, D] of those of each sequence, [1, H, L, D], and behind them, if ``lse`` is a dtype, [H, T] of each
    [1, H, L]."""
    output = torch.cat([tokens[:0], *(tokens_first(part[0]) for part in parts)])
    if lse is None:
        return (output,)
    return output, torch.cat([tokens.new_empty(tokens.shape[1], 0, dtype=lse), *(part[1][0] for part in parts)], 1)


def dense_sizes(q: Any, k: Any) -> dict[str, int]:
    """The dims of dense attention, of what has shapes."""
    names = ("B", "H", "Hkv", "Lq", "Lk", "D")
    return dict(zip(names, (*q.shape[:2], k.shape[1], q.shape[2], *k.shape[2:]), strict=True))
