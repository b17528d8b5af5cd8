"""What block_sparse_attention promises: attention with a mask of blocks, in the terms of ``attention``'s contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import (
    Contract,
    Cost,
    Request,
    TensorSpec,
    Values,
)
from kernelworks.contract.arguments import Arguments, Error, Flag, check_of, errors_of
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.attention.attention.contract import SCALE, seen_pairs
from kernelworks.ops.attention.attention.contract import bound as bound_of_masked
from kernelworks.ops.attention.attention.contract import gradient_bound as gradient_bound_of_masked
from kernelworks.ops.attention.attention.contract import reference as attention_of_masked
from kernelworks.ops.attention.block_sparse_attention.cases import (
    BENCH_CASES,
    BLOCK,
    CASES,
    DEVICE_BENCH_CASES,
    DEVICE_CASES,
)

__all__ = ["BLOCK", "CONTRACT", "blocks_of", "causal_of", "expand_mask", "pairs_of", "reference"]

SHORT = {"query": "q", "key": "k", "value": "v"}  # attention's names


# ---------------------------------------------------------------- arguments


def blocks_of(length: int) -> int:
    """How many blocks of 128 tokens; the last one may be short."""
    return -(-length // BLOCK)


ARGUMENTS: Arguments = {
    "query": T("B H Lq D", where=("1 <= D <= 256",)),
    "key": T(
        "B Hkv Lk D", like="query", where=("divides(Hkv, H)", "Hkv == H or enable_gqa"),
    ),
    "value": T("B Hkv Lk D", like="query"),
    "block_mask": T(
        "B|1 H|1 Mq Mk", dtypes=(torch.bool,), where=(f"Mq == -(-Lq // {BLOCK})", f"Mk == -(-Lk // {BLOCK})")
    ),
    "is_causal": Flag(), "scale": SCALE, "enable_gqa": Flag(), "with_lse": Flag(),
}  # fmt: skip
_check = check_of(ARGUMENTS, {"is_causal": False, "scale": None, "enable_gqa": False, "with_lse": False})


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


# ---------------------------------------------------------------- the definition


def expand_mask(block_mask: Tensor, queries: int, keys: int) -> Tensor:
    """[1|B, 1|H, Lq, Lk]: the truth of each pair's block."""
    rows = block_mask.repeat_interleave(BLOCK, 2)[:, :, :queries]
    return rows.repeat_interleave(BLOCK, 3)[..., :keys]


def causal_of(is_causal: bool) -> str | None:
    """The word of attention."""
    return "top_left" if is_causal else None


def _as_attention(args: dict[str, Any]) -> dict[str, Any]:
    """The same as a call of attention with a mask of pairs."""
    query, key = args["query"], args["key"]
    return {
        "q": query, "k": key, "v": args["value"], "causal": causal_of(args.get("is_causal", False)), "window": None,
        "scale": args.get("scale"), "mask": expand_mask(args["block_mask"], query.shape[2], key.shape[2]),
        "softcap": None, "sinks": None,
    }  # fmt: skip


def reference(
    query: Tensor, key: Tensor, value: Tensor, block_mask: Tensor, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False, with_lse: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    args = {"query": query, "key": key, "value": value, "block_mask": block_mask}
    found: tuple[Tensor, ...] = attention_of_masked(
        **_as_attention(args | {"is_causal": is_causal, "scale": scale}), with_lse=with_lse
    )
    return found


# ---------------------------------------------------------------- bounds


def bound(
    args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype, inner: str = "float32"
) -> tuple[Tensor, ...]:
    """Attention's own."""
    return bound_of_masked(_as_attention(args), outputs, dtype, inner)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype,
    inner: str = "float32",
) -> dict[str, Tensor]:  # fmt: skip
    """Attention's own."""
    given = {SHORT[name]: gradient for name, gradient in gradients.items()}
    found = gradient_bound_of_masked(_as_attention(args), grads, given, dtype, inner)
    return {name: found[SHORT[name]] for name in gradients}


# ---------------------------------------------------------------- cost


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


def cost(request: Request) -> Cost:
    """By the pairs that were counted; else as if every block were seen that causal leaves."""
    query, key, value, blocks = (request.args[name] for name in ("query", "key", "value", "block_mask"))
    batch, heads, queries, dim = query.shape
    causal = causal_of(request.args["is_causal"])
    pairs = request.values.get("pairs", batch * heads * seen_pairs(queries, key.shape[2], causal, None))
    three = query.nbytes + key.nbytes + value.nbytes
    if request.pass_ == "backward":  # five products of 2 D flop a pair; reads grad and output besides
        seen = three + 2 * query.nbytes + 4.0 * batch * heads * queries if pairs else 0.0
        return Cost(10.0 * dim * pairs, pairs, seen + blocks.nbytes, three)
    return Cost(4.0 * dim * pairs, pairs, (three if pairs else 0.0) + blocks.nbytes, query.nbytes)


def dims(request: Request) -> dict[str, int]:
    query, key = request.args["query"], request.args["key"]
    return {
        "B": query.shape[0], "H": query.shape[1], "Hkv": key.shape[1], "Lq": query.shape[2], "Lk": key.shape[2],
        "D": query.shape[3], "causal": int(request.args["is_causal"]), "lse": int(request.args.get("with_lse", True)),
    }  # fmt: skip


# ---------------------------------------------------------------- errors


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        tensors = {"query": torch.ones(2, 4, 3, 8), "key": torch.ones(2, 2, 130, 8), "value": torch.ones(2, 2, 130, 8)}
        return tensors | {"block_mask": torch.ones(1, 4, 1, 2, dtype=torch.bool), "enable_gqa": True} | changed

    return make


def _blocks(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool)


ERRORS: tuple[Error, ...] = (
    *errors_of(ARGUMENTS, enable_gqa=True),
    ("grouped heads unsaid", _with(enable_gqa=False), ValueError, "Hkv == H or enable_gqa"),
    ("heads that do not divide", _with(query=torch.ones(2, 3, 3, 8)), ValueError, "divides(Hkv, H)"),
    ("FlexAttention's mask", _with(block_mask=SimpleNamespace(to_dense=None)), TypeError, "BLOCK_SIZE 128"),
    ("mask of pairs", _with(block_mask=_blocks(1, 1, 3, 130)), ValueError, "that is attention's mask"),
    ("mask of keys' heads", _with(block_mask=_blocks(1, 2, 1, 2)), ValueError, "block_mask must have shape"),
)

CONTRACT = Contract(
    name="block_sparse_attention",
    family="attention",
    arithmetic="products",
    formula="output = softmax(scale query key^T, over the keys of the blocks that a query's block sees) value; 0 for a "
    "query that sees none",
    source="torch.nn.attention.flex_attention (BlockMask); Child et al., Sparse Transformers, 2019 (arXiv:1904.10509)",
    outputs=("output", "lse"),
    results={"lse": Result(torch.float32, when="with_lse")},
    differentiable=("query", "key", "value"),
    check=check,
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    bucket=lambda request: {"D": request.args["query"].shape[3]},  # each has kernels of its own, in torch as here
    cases=CASES,
    bench_cases=BENCH_CASES,
    device_cases=DEVICE_CASES,
    device_bench_cases=DEVICE_BENCH_CASES,
    errors=ERRORS,
    values=Values(count_pairs, "if every block is named", least={"pairs": 0}),
)
