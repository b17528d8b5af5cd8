"""What block_sparse_attention promises: attention with a mask of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import TensorSpec, Values
from kernelworks.contract.arguments import Arguments, Flag, check_of
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.attention.block_sparse_attention import cases
from kernelworks.ops.attention.block_sparse_attention.cases import BLOCK
from kernelworks.templates.attention.arguments import SCALE, heads_of, wrong_calls
from kernelworks.templates.attention.op import Attention
from kernelworks.templates.attention.reference import DenseCall, dense_sizes, seen_pairs

__all__ = ["BLOCK", "CONTRACT", "TEMPLATE", "blocks_of", "expand_mask", "pairs_of"]

DEFAULTS = {"is_causal": False, "scale": None, "enable_gqa": False, "with_lse": False}
ARGUMENTS: Arguments = {
    **heads_of(),
    "block_mask": T(
        "B|1 H|1 Mq Mk", dtypes=(torch.bool,), where=(f"Mq == -(-Lq // {BLOCK})", f"Mk == -(-Lk // {BLOCK})")
    ),
    "is_causal": Flag(), "scale": SCALE, "enable_gqa": Flag(), "with_lse": Flag(),
}  # fmt: skip
_check = check_of(ARGUMENTS, DEFAULTS)


def blocks_of(length: int) -> int:
    """How many blocks of 128 tokens; the last one may be short."""
    return -(-length // BLOCK)


def check(**call: Any) -> None:
    """Says more of two masks that are near: FlexAttention's, and that of pairs."""
    mask = call.get("block_mask")
    if not isinstance(mask, (Tensor, TensorSpec)):
        if hasattr(mask, "to_dense"):
            raise TypeError(
                f"block_mask must be a torch.Tensor: of FlexAttention's BlockMask with BLOCK_SIZE {BLOCK}, where "
                f"blocks are whole or cut by causal alone, its to_dense() > 0; got {type(mask).__name__}"
            )
    elif len(mask.shape) == 4 and all(isinstance(call.get(name), (Tensor, TensorSpec)) for name in ("query", "key")):
        pairs = tuple(call[name].shape[-2] for name in ("query", "key") if len(call[name].shape) == 4)
        if tuple(mask.shape[2:]) == pairs != tuple(map(blocks_of, pairs)):
            raise ValueError(
                f"block_mask must hold a truth for each block of {BLOCK} queries and {BLOCK} keys, got "
                f"{list(mask.shape)}, a truth for each pair: that is attention's mask"
            )
    _check(**call)


def expand_mask(block_mask: Tensor, queries: int, keys: int) -> Tensor:
    """[1|B, 1|H, Lq, Lk]: the truth of each pair's block."""
    rows = block_mask.repeat_interleave(BLOCK, 2)[:, :, :queries]
    return rows.repeat_interleave(BLOCK, 3)[..., :keys]


def _calls(args: dict[str, Any]) -> Iterator[DenseCall]:
    """One, with a mask of pairs."""
    query, key = args["query"], args["key"]
    mask = expand_mask(args["block_mask"], query.shape[2], key.shape[2])
    yield DenseCall.of(query, key, args["value"], _causal_of(args), None, args["scale"], mask)


def _causal_of(args: Mapping[str, Any]) -> str | None:
    """The word of dense attention."""
    return "top_left" if args["is_causal"] else None


# ---------------------------------------------------------------- pairs


def count_pairs(args: Mapping[str, Any]) -> dict[str, int]:
    """How many pairs of a query and a key are seen, and how many blocks are passed over for them, over all heads."""
    (batch, heads, queries, _), keys = args["query"].shape, args["key"].shape[2]
    named, inside = _blocks_seen(args["block_mask"], batch, heads, queries, keys, args["is_causal"])
    return {"pairs": int((named * inside).sum()), "blocks": int((named * (inside > 0)).sum())}


def pairs_of(block_mask: Tensor, batch: int, heads: int, queries: int, keys: int, is_causal: bool) -> int:
    """How many (query, key) pairs are seen, over all heads. Reads the mask: for benchmarks."""
    named, inside = _blocks_seen(block_mask, batch, heads, queries, keys, is_causal)
    return int((named * inside).sum())


def _blocks_seen(
    mask: Tensor, batch: int, heads: int, queries: int, keys: int, is_causal: bool
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of each block how many heads name it, and how many of its pairs are seen where one does."""
    named = mask.expand(batch, heads, *mask.shape[2:]).sum((0, 1))
    at = [torch.arange(0, length, BLOCK, device=mask.device) for length in (queries, keys)]
    rows, columns = ((length - begin).clamp(max=BLOCK) for length, begin in zip((queries, keys), at, strict=True))
    if not is_causal:
        return named, rows[:, None] * columns
    ahead = at[0][:, None] - at[1]  # of a block's first key so many are seen before its first query's own
    return named, _up_to(ahead + rows[:, None], columns) - _up_to(ahead, columns)


def _up_to(last: Tensor, most: Tensor) -> Tensor:
    """The sum of n over n up to ``last``, each held between 0 and ``most``."""
    below = last.clamp(min=0).minimum(most)
    return below * (below + 1) // 2 + (last - most).clamp(min=0) * most


def _as_if_named(args: Mapping[str, Any]) -> int:
    """Pairs as if every block were seen that causal leaves."""
    query, key = args["query"], args["key"]
    heads: int = math.prod(query.shape[:2])
    return heads * seen_pairs(query.shape[2], key.shape[2], _causal_of(args), None)


def _dims(args: Mapping[str, Any]) -> dict[str, int]:
    said = {"causal": int(args["is_causal"]), "lse": int(args.get("with_lse", True))}
    return dense_sizes(args["query"], args["key"]) | said


# ---------------------------------------------------------------- the op


def _right() -> dict[str, Any]:
    tensors = {"query": torch.ones(2, 4, 3, 8), "key": torch.ones(2, 2, 130, 8), "value": torch.ones(2, 2, 130, 8)}
    return tensors | {"block_mask": _blocks(1, 4, 1, 2), "enable_gqa": True}


def _blocks(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool)


TEMPLATE = Attention(
    op_package=__file__,
    formula="output = softmax(scale query key^T, over the keys of the blocks that a query's block sees) value; 0 for a "
    "query that sees none",
    source="torch.nn.attention.flex_attention (BlockMask); Child et al., Sparse Transformers, 2019 (arXiv:1904.10509)",
    arguments=ARGUMENTS,
    defaults=DEFAULTS,
    calls=_calls,
    count_pairs=_as_if_named,
    values=Values(count_pairs, "if every block is named", least={"pairs": 0}),
    dims=_dims,
    cases=cases,
    differentiable=("query", "key", "value"),
    beside=("block_mask",),
    skips_unseen=True,
    check=check,
    chosen={"enable_gqa": True},
    errors=wrong_calls(
        _right,
        ("grouped heads unsaid", {"enable_gqa": False}, ValueError, "Hkv == H or enable_gqa"),
        ("heads that do not divide", {"query": torch.ones(2, 3, 3, 8)}, ValueError, "divides(Hkv, H)"),
        ("FlexAttention's mask", {"block_mask": SimpleNamespace(to_dense=None)}, TypeError, "BLOCK_SIZE 128"),
        ("mask of pairs", {"block_mask": _blocks(1, 1, 3, 130)}, ValueError, "that is attention's mask"),
        ("mask of keys' heads", {"block_mask": _blocks(1, 2, 1, 2)}, ValueError, "block_mask must have shape"),
    ),
)
CONTRACT = TEMPLATE.contract
