"""What varlen_attn promises: attention of each sequence alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Values
from kernelworks.contract.arguments import Arguments, Flag, Int64
from kernelworks.contract.limits import Ends
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.attention.varlen_attn import cases
from kernelworks.templates.attention.arguments import INDICES, SCALE, SidedWindow, WindowSize, heads_of, wrong_calls
from kernelworks.templates.attention.op import Attention
from kernelworks.templates.attention.reference import DenseCall, by_sequence, clamped_sum, heads_first, sees

__all__ = ["CONTRACT", "TEMPLATE", "Window", "check_values", "edges", "heads_first", "seen_pairs", "sees"]

Window = SidedWindow
ENDS = T("S1", dtypes=INDICES, where=("S1 >= 1",))  # where each of S sequences begins, and the last one's end
DEFAULTS = {"scale": None, "window_size": (-1, -1), "enable_gqa": False, "with_lse": False}
ARGUMENTS: Arguments = {
    **heads_of("Tq H D", "Tk Hkv D"), "cu_seq_q": ENDS, "cu_seq_k": ENDS, "max_q": Int64(least=0),
    "max_k": Int64(least=0), "scale": SCALE, "window_size": WindowSize(), "enable_gqa": Flag(), "with_lse": Flag(),
}  # fmt: skip


def check_values(query: Any, key: Any, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int) -> None:
    """Raises IndexError unless the sequences follow each other from the first token to the last, none longer than said.
    Waits for a GPU: for rows on the CPU."""
    for name, ends, tokens, said, most in (
        ("cu_seq_q", cu_seq_q.tolist(), query.shape[0], "max_q", max_q),
        ("cu_seq_k", cu_seq_k.tolist(), key.shape[0], "max_k", max_k),
    ):
        if ends[0] != 0 or ends[-1] != tokens:
            raise IndexError(f"{name} must begin with 0 and end with {tokens}, the tokens; got {ends[0]} to {ends[-1]}")
        for i, (first, end) in enumerate(pairwise(ends)):
            if end < first:
                raise IndexError(f"{name} must not fall, got {first} and then {end} at position {i + 1}")
            if end - first > most:
                raise IndexError(f"{said} must be at least the longest sequence's length, {end - first}; got {most}")


def edges(window_size: Window, tokens: int) -> tuple[bool, int, int]:
    """The window as kernels of attention have it: whether there is a last key, how far it lies beyond the query's own
    position, and how many keys are seen up to it (0: all)."""
    left, right = (min(side, tokens) for side in window_size)  # what is wider than all tokens hides nothing
    offset = max(right, 0)
    return right >= 0, offset, 0 if left < 0 else left + offset + 1


def _calls(args: dict[str, Any]) -> Iterator[DenseCall]:
    """One of each sequence, whose window is said in words where there are some for it."""
    (left, right), scale = args["window_size"], args["scale"]
    for queries, keys in by_sequence(args["cu_seq_q"], args["cu_seq_k"]):
        q, k, v = (heads_first(args[n][at]) for n, at in (("query", queries), ("key", keys), ("value", keys)))
        causal, window, mask = None, None, None
        if right == 0:
            causal, window = "bottom_right", None if left < 0 else left + 1
        elif left >= 0 or right >= 0:
            mask = sees(q.shape[2], k.shape[2], args["window_size"], q.device)
        yield DenseCall.of(q, k, v, causal, window, scale, mask, queries=queries, keys=keys)


# ---------------------------------------------------------------- pairs


def seen_pairs(queries: int, keys: int, window_size: Window) -> int:
    """How many (query, key) pairs the window leaves of one sequence."""
    causal, offset, window = edges(window_size, queries + keys)
    end = keys - queries + offset + 1
    seen = clamped_sum(end, queries, keys) if causal else queries * keys
    return seen - (clamped_sum(end - window, queries, keys) if window else 0)


def count_pairs(args: Mapping[str, Any]) -> dict[str, Any]:
    """How long each sequence is, how many pairs are seen in one head of each, and in all heads together."""
    queries, keys = ([b - a for a, b in pairwise(args[name].tolist())] for name in ("cu_seq_q", "cu_seq_k"))
    pairs = [seen_pairs(n, of, args["window_size"]) for n, of in zip(queries, keys, strict=True)]
    lengths = {"T": queries, "Tk": keys, "pairs": pairs}
    return {"pairs": args["query"].shape[1] * sum(pairs), "lengths": lengths}


def _as_if_alike(args: Mapping[str, Any]) -> int:
    """Pairs as if all sequences were of one length: mixed ones have more."""
    (tokens, heads, _), keys = args["query"].shape, args["key"].shape[0]
    sequences: int = max(args["cu_seq_q"].shape[0] - 1, 1)
    each = max(seen_pairs(tokens // sequences, keys // sequences, args["window_size"]), 0)
    return int(heads) * sequences * each


def _dims(args: Mapping[str, Any]) -> dict[str, int]:
    (tokens, heads, dim), (keys, kv_heads, _) = args["query"].shape, args["key"].shape
    left, right = args["window_size"]
    return {
        "T": tokens, "Tk": keys, "N": args["cu_seq_q"].shape[0] - 1, "H": heads, "Hkv": kv_heads, "D": dim,
        "causal": int(right >= 0), "window": max(left, 0),
    }  # fmt: skip


# ---------------------------------------------------------------- the op


def _right() -> dict[str, Any]:
    tensors = {"query": torch.ones(5, 4, 8), "key": torch.ones(6, 2, 8), "value": torch.ones(6, 2, 8)}
    ends = {"cu_seq_q": _ends(0, 2, 5), "cu_seq_k": _ends(0, 4, 6), "max_q": 3, "max_k": 4}
    return tensors | ends | {"enable_gqa": True}


def _ends(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


TEMPLATE = Attention(
    op_package=__file__,
    formula="output = softmax(scale query key^T, over the keys of the query's own sequence in its window) value; 0 for "
    "a query that sees none",
    source="torch.nn.attention.varlen.varlen_attn; Dao et al., FlashAttention, 2022 (arXiv:2205.14135)",
    arguments=ARGUMENTS,
    defaults=DEFAULTS,
    calls=_calls,
    packed=True,
    count_pairs=_as_if_alike,
    values=Values(count_pairs, "if all sequences are as long"),
    dims=_dims,
    cases=cases,
    differentiable=("query", "key", "value"),
    beside=("cu_seq_q", "cu_seq_k"),
    empty_output=lambda query, *rest: query.new_empty(query.shape),
    check_values=lambda a: check_values(*(a[n] for n in ("query", "key", "cu_seq_q", "cu_seq_k", "max_q", "max_k"))),
    limits={"cu_seq_q": Ends("query", 0, from_zero=True), "cu_seq_k": Ends("key", 0, from_zero=True)},
    chosen={"enable_gqa": True},
    errors=wrong_calls(
        _right,
        ("grouped heads unsaid", {"enable_gqa": False}, ValueError, "Hkv == H or enable_gqa"),
        ("heads that do not divide", {"query": torch.ones(5, 3, 8)}, ValueError, "divides(Hkv, H)"),
        ("a first sequence beyond 0", {"cu_seq_q": _ends(1, 2, 5)}, IndexError, "cu_seq_q must begin with 0"),
        ("tokens of no sequence", {"cu_seq_k": _ends(0, 4, 5)}, IndexError, "end with 6, the tokens"),
        ("ends that fall", {"cu_seq_q": _ends(0, 6, 5), "max_q": 9}, IndexError, "cu_seq_q must not fall"),
        ("max_k below the longest sequence", {"max_k": 3}, IndexError,
         "max_k must be at least the longest sequence's length, 4"),
    ),
)  # fmt: skip
CONTRACT = TEMPLATE.contract
