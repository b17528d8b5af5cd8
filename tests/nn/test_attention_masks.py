"""Masks as transformers asks for them: by a length and an offset, or, in 5.0, by the queries' positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import masking_utils

from kernelworks.nn import attention_masks

KEYS = 8


def by_positions(
    batch_size: int,
    cache_position: Tensor,
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **kwargs: Any,
) -> Tensor:
    """transformers 5.0's face of ``sdpa_mask``: it takes no q_length, and passes on what else it is given."""
    assert not {"q_length", "q_offset"} & set(kwargs)
    keys = kv_offset + torch.arange(kv_length)
    return (keys <= cache_position[:, None]).expand(batch_size, 1, -1, -1).clone()


@pytest.mark.parametrize(
    ("positions", "causal"),
    [
        (range(KEYS), True),
        (range(5, KEYS), True),
        (range(5), False),  # keys behind the last query
        ([0, 1, 2, 4, 7], False),  # rows that a causal mask does not have
    ],
)  # fmt: skip
def test_masks_by_positions_of_queries(
    monkeypatch: pytest.MonkeyPatch, positions: range | list[int], causal: bool
) -> None:
    monkeypatch.setattr(masking_utils, "sdpa_mask", by_positions)
    at = torch.tensor(list(positions))
    mask = attention_masks.mask_function(
        batch_size=2, cache_position=at, kv_length=KEYS, mask_function=masking_utils.causal_mask_function,
        allow_is_causal_skip=False, dtype=torch.float32, config=None, use_vmap=False,
    )  # fmt: skip
    assert mask is not None and mask.equal(by_positions(2, at, KEYS))
    assert (attention_masks.pattern_of(mask) is not None) is causal


@pytest.mark.parametrize(("offset", "causal"), [(3, True), (0, False)])
def test_masks_by_a_length_and_an_offset(monkeypatch: pytest.MonkeyPatch, offset: int, causal: bool) -> None:
    def theirs(batch_size: int, q_length: int, kv_length: int, q_offset: int = 0, **kwargs: Any) -> Tensor:
        assert "cache_position" not in kwargs
        return by_positions(batch_size, q_offset + torch.arange(q_length), kv_length)

    monkeypatch.setattr(masking_utils, "sdpa_mask", theirs)
    mask = attention_masks.mask_function(batch_size=1, q_length=5, kv_length=KEYS, q_offset=offset)
    assert mask is not None and (attention_masks.pattern_of(mask) is not None) is causal
