"""What paged_attention promises: attention of each sequence alone, over keys that lie in pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Cost, Request, Values
from kernelworks.contract.arguments import Arguments, Int64
from kernelworks.contract.limits import Ends, IndicesOf
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.attention.paged_attention import cases
from kernelworks.templates.attention.arguments import INDICES, MAX_DIM, SCALE, wrong_calls
from kernelworks.templates.attention.op import Attention
from kernelworks.templates.attention.reference import DenseCall, heads_first, seen_pairs, sees

__all__ = ["CONTRACT", "INDICES", "TEMPLATE", "check_values", "gather_rows", "refuse_gradients", "sequences_of"]

PAGES = ("key_cache", "value_cache", "cu_seq_q", "seqused_k", "block_table")
ARGUMENTS: Arguments = {
    "query": T("Tq H D", where=(f"1 <= D <= {MAX_DIM}",)),
    "key_cache": T("N P Hkv D", like="query", where=("P >= 1", "divides(Hkv, H)")),
    "value_cache": T("N P Hkv D", like="query"),
    "cu_seq_q": T("S1", dtypes=INDICES, where=("S1 >= 1",)),  # of S sequences, one more than there are
    "seqused_k": T("S", dtypes=INDICES, where=("S + 1 == S1",)),
    "block_table": T("S M", dtypes=INDICES),
    "scale": SCALE, "window": Int64(least=1, optional=True),
}  # fmt: skip


def refuse_gradients(call: Mapping[str, Any]) -> None:
    """Raises ValueError for a tensor that requires grad while gradients are recorded."""
    for name, value in call.items():
        if torch.is_grad_enabled() and getattr(value, "requires_grad", False):
            raise ValueError(f"{name} must not require grad: a cache that is written to has no gradient; "
                             "use torch.no_grad()")  # fmt: skip


def check_values(
    query: Tensor, key_cache: Tensor, cu_seq_q: Tensor, seqused_k: Tensor, block_table: Tensor
) -> None:  # fmt: skip
    """Raises IndexError unless the sequences follow each other from the first token to the last, their keys fit into
    the table, and every block that holds a key is one of the cache. Waits for a GPU: for kernels on the CPU."""
    ends, tokens, page = cu_seq_q.tolist(), query.shape[0], key_cache.shape[1]
    if ends[0] != 0 or ends[-1] != tokens:
        raise IndexError(f"cu_seq_q must begin with 0 and end with {tokens}, the tokens; got {ends[0]} to {ends[-1]}")
    for i, (first, end) in enumerate(pairwise(ends)):
        if end < first:
            raise IndexError(f"cu_seq_q must not fall, got {first} and then {end} at position {i + 1}")
    most = block_table.shape[1] * page
    for i, keys in enumerate(seqused_k.tolist()):
        if not 0 <= keys <= most:
            raise IndexError(f"seqused_k must be in [0, {most}], the keys that a table holds; got {keys} at {i}")
    used = torch.arange(block_table.shape[1]) * page < seqused_k.unsqueeze(1)
    wrong = (used & ((block_table < 0) | (block_table >= key_cache.shape[0]))).nonzero()
    if len(wrong):
        i, j = wrong[0].tolist()
        raise IndexError(
            f"block_table must be in [0, {key_cache.shape[0]}), the cache's blocks, wherever a key lies; "
            f"got {block_table[i, j].item()} at [{i}, {j}]"
        )


# ---------------------------------------------------------------- the cache


def gather_rows(cache: Tensor, blocks: Tensor, keys: int) -> Tensor:
    """[Lk, Hkv, D], the first so many of the rows in these blocks, one after the other."""
    used = blocks[: -(-keys // cache.shape[1])].long()
    return cache[used].flatten(0, 1)[:keys]


def sequences_of(
    key_cache: Tensor, value_cache: Tensor, cu_seq_q: Tensor, seqused_k: Tensor, block_table: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Where each sequence's queries lie, its keys and its values. What no sequence holds is not looked at."""
    for i, ((first, end), keys) in enumerate(zip(pairwise(cu_seq_q.tolist()), seqused_k.tolist(), strict=True)):
        blocks = block_table[i]
        yield slice(first, end), gather_rows(key_cache, blocks, keys), gather_rows(value_cache, blocks, keys)


def _calls(args: dict[str, Any]) -> Iterator[DenseCall]:
    """One of each sequence."""
    for at, key, value in sequences_of(*(args[name] for name in PAGES)):
        q, k, v = heads_first(args["query"][at]), heads_first(key), heads_first(value)
        yield DenseCall.of(q, k, v, "bottom_right", args["window"], args["scale"], queries=at)


def _torch_calls(args: dict[str, Any]) -> Iterator[DenseCall]:
    """A single query sees all keys; and torch's causal kernel scales its -inf too."""
    scale, window = args["scale"], args["window"]
    for call in _calls(args):
        q, k = call.args["q"], call.args["k"]
        said: dict[str, Any] = {}
        if q.shape[2] == 1 and window is None:
            said = {"causal": None}
        elif scale is not None and scale <= 0:
            sides = (-1 if window is None else window - 1, 0)
            said = {"causal": None, "window": None, "mask": sees(q.shape[2], k.shape[2], sides, q.device)}
        yield dataclasses.replace(call, args=call.args | said)


# ---------------------------------------------------------------- cost


def count_values(args: Mapping[str, Any]) -> dict[str, Any]:
    """How many pairs of a query and a key are seen in all heads, and how many keys the sequences have."""
    queries = [end - first for first, end in pairwise(args["cu_seq_q"].tolist())]
    keys = args["seqused_k"].tolist()
    pairs = sum(seen_pairs(n, of, "bottom_right", args["window"]) for n, of in zip(queries, keys, strict=True))
    return {"pairs": args["query"].shape[1] * pairs, "keys": sum(keys)}


def _as_if_full(args: Mapping[str, Any]) -> int:
    """Pairs as if every table were full and all sequences had as many queries."""
    (tokens, heads, _), (sequences, most) = args["query"].shape, args["block_table"].shape
    keys = most * args["key_cache"].shape[1]
    return int(heads * sequences) * seen_pairs(-(-tokens // max(sequences, 1)), keys, "bottom_right", args["window"])


def cost(request: Request) -> Cost:
    """By what was counted: the keys that sequences have, not those that the cache holds."""
    query, cache, ends, table = (request.args[n] for n in ("query", "key_cache", "cu_seq_q", "block_table"))
    dim, (sequences, most) = query.shape[2], table.shape
    pairs = request.values.get("pairs", _as_if_full(request.args))
    keys = request.values.get("keys", sequences * most * cache.shape[1])
    rows = keys * cache.shape[2] * dim * cache.dtype.itemsize
    read = query.nbytes + 2.0 * rows + ends.nbytes + request.args["seqused_k"].nbytes + table.nbytes
    return Cost(4.0 * dim * pairs, pairs, read, query.nbytes)


def _dims(args: Mapping[str, Any]) -> dict[str, int]:
    query, cache, table = (args[name] for name in ("query", "key_cache", "block_table"))
    return {
        "T": query.shape[0], "N": table.shape[0], "Lk": table.shape[1] * cache.shape[1], "P": cache.shape[1],
        "H": query.shape[1], "Hkv": cache.shape[2], "D": query.shape[2], "window": args["window"] or 0,
    }  # fmt: skip


# ---------------------------------------------------------------- the op


def _right() -> dict[str, Any]:
    return {
        "query": torch.ones(3, 4, 8), "key_cache": torch.ones(5, 2, 2, 8), "value_cache": torch.ones(5, 2, 2, 8),
        "cu_seq_q": _ints(0, 1, 3), "seqused_k": _ints(4, 3), "block_table": _ints(4, 0, 1, 3).view(2, 2),
    }  # fmt: skip


def _ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


TEMPLATE = Attention(
    op_package=__file__,
    formula="output = softmax(scale query key^T, over the keys up to the query's own place in its sequence) value, "
    "with key j of sequence s in slot j % P of block block_table[s, j // P]; 0 for a query that sees none",
    source="Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention, 2023 "
    "(arXiv:2309.06180)",
    arguments=ARGUMENTS,
    defaults={"scale": None, "window": None},
    calls=_calls,
    torch_calls=_torch_calls,
    packed=True,
    count_pairs=_as_if_full,
    values=Values(count_values, "if every block of the table is full", {"pairs": 0, "keys": 0}),
    dims=_dims,
    cases=cases,
    empty_output=lambda query, *rest: query.new_empty(query.shape),
    check_values=lambda a: check_values(*(a[n] for n in ("query", *PAGES) if n != "value_cache")),
    limits={
        "cu_seq_q": Ends("query", 0, from_zero=True), "seqused_k": IndicesOf("block_table", 1),
        "block_table": IndicesOf("key_cache", 0),
    },
    errors=wrong_calls(
        _right,
        ("a first sequence beyond 0", {"cu_seq_q": _ints(1, 1, 3)}, IndexError, "cu_seq_q must begin with 0"),
        ("tokens of no sequence", {"cu_seq_q": _ints(0, 1, 2)}, IndexError, "end with 3, the tokens"),
        ("ends that fall", {"cu_seq_q": _ints(0, 4, 3)}, IndexError, "cu_seq_q must not fall"),
        ("more keys than a table holds", {"seqused_k": _ints(4, 5)}, IndexError, "seqused_k must be in [0, 4]"),
        ("keys below 0", {"seqused_k": _ints(-1, 3)}, IndexError, "seqused_k must be in [0, 4]"),
        ("a block beyond the cache", {"block_table": _ints(4, 0, 1, 5).view(2, 2)}, IndexError,
         "block_table must be in [0, 5), the cache's blocks, wherever a key lies; got 5 at [1, 1]"),
        ("a block of no keys that is used", {"block_table": _ints(4, -1, 1, 3).view(2, 2)}, IndexError,
         "got -1 at [0, 1]"),
    ),
)  # fmt: skip
CONTRACT = dataclasses.replace(TEMPLATE.contract, cost=cost)
