"""What varlen_attn is benchmarked against beside torch's own: FlexAttention with a mask of documents."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from kernelworks.ops.baselines import Args, Maker, compiled_whole
from kernelworks.templates.attention.reference import heads_first, tokens_first

__all__ = ["BASELINES", "by_flex"]


_compiled = functools.cache(compiled_whole)


def by_flex(args: Args) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The same of query, key and value by FlexAttention, compiled; its mask is made here, as one is for all layers."""
    if args.get("with_lse"):
        return None
    key, ends_q, ends_k = (args[name] for name in ("key", "cu_seq_q", "cu_seq_k"))
    tokens, keys = args["query"].shape[0], key.shape[0]
    of_q, of_k = (
        torch.searchsorted(ends[1:].contiguous(), torch.arange(count, device=key.device, dtype=ends.dtype), right=True)
        for ends, count in ((ends_q, tokens), (ends_k, keys))
    )
    position = torch.arange(tokens, device=key.device) + (ends_k - ends_q)[1:][of_q]
    left, right = args["window_size"]

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = of_q[i] == of_k[j]
        if left >= 0:
            seen = seen & (j >= position[i] - left)
        if right >= 0:
            seen = seen & (j <= position[i] + right)
        return seen

    mask = _compiled(create_block_mask)(sees, None, None, tokens, keys, device=key.device)
    how = {"scale": args.get("scale"), "enable_gqa": args["query"].shape[1] != key.shape[1]}

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads = (heads_first(t) for t in (query, key, value))
        return tokens_first(_compiled(flex_attention)(*heads, block_mask=mask, **how))

    return run


def _flex(args: Args) -> Callable[[], Any] | None:
    run = by_flex(args)
    return None if run is None else functools.partial(run, args["query"], args["key"], args["value"])


BASELINES: dict[str, dict[str, Maker]] = {"cuda": {"flex": _flex}}
