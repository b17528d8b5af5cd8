"""What block_sparse_attention is benchmarked against beside torch's own: FlexAttention with the same blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from kernelworks.ops.attention.block_sparse_attention.contract import BLOCK
from kernelworks.ops.baselines import Args, Maker, compiled_whole

__all__ = ["BASELINES", "by_flex", "flex_mask"]


_compiled = functools.cache(compiled_whole)


def _listed(seen: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of a row are seen, and all of them, those first."""
    return seen.sum(-1).int(), seen.int().argsort(stable=True, dim=-1, descending=True).int()


def flex_mask(block_mask: Tensor, queries: int, keys: int, is_causal: bool) -> BlockMask:
    """FlexAttention's mask: those on causal's diagonal are its partial blocks, the others its full ones."""
    seen = block_mask.contiguous()
    rows, columns = seen.shape[2:]
    several = [n > 1 for n in seen.shape[:2]]
    full, partial = seen, torch.zeros_like(seen)
    if is_causal:
        row, column = torch.arange(rows, device=seen.device)[:, None], torch.arange(columns, device=seen.device)
        full, partial = seen & (column < row), seen & (column == row)

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        named = seen[b if several[0] else 0, h if several[1] else 0, i // BLOCK, j // BLOCK]
        return named & (i >= j) if is_causal else named

    return BlockMask.from_kv_blocks(
        *_listed(partial), *_listed(full), BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(queries, keys)
    )


def by_flex(args: Args) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The same of query, key and value by FlexAttention, compiled; its mask is made here, as one is for all layers."""
    if args.get("with_lse"):
        return None
    query, key = args["query"], args["key"]
    mask = flex_mask(args["block_mask"], query.shape[2], key.shape[2], args["is_causal"])
    how = {"scale": args.get("scale"), "enable_gqa": query.shape[1] != key.shape[1]}

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        found: Tensor = _compiled(flex_attention)(query, key, value, block_mask=mask, **how)
        return found

    return run


def _flex(args: Args) -> Callable[[], Any] | None:
    run = by_flex(args)
    return None if run is None else functools.partial(run, args["query"], args["key"], args["value"])


BASELINES: dict[str, dict[str, Maker]] = {"cuda": {"flex": _flex}}
