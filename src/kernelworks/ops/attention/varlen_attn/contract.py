"""What varlen_attn promises: attention of each sequence alone, in the terms of ``attention``'s contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import (
    Contract,
    Cost,
    Request,
    Values,
    describe,
)
from kernelworks.contract.arguments import Arguments, Error, Flag, Int64, check_of, errors_of
from kernelworks.contract.limits import Ends
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import GivenArguments, T, Wrong
from kernelworks.ops.attention.attention.contract import SCALE, _clamped_sum
from kernelworks.ops.attention.attention.contract import bound as bound_of_one
from kernelworks.ops.attention.attention.contract import gradient_bound as gradient_bound_of_one
from kernelworks.ops.attention.attention.contract import reference as attention_of_one
from kernelworks.ops.attention.varlen_attn.cases import BENCH_CASES, CASES, DEVICE_BENCH_CASES, DEVICE_CASES

__all__ = [
    "CONTRACT", "Window", "by_sequence", "check_values", "edges", "heads_first", "reference", "seen_pairs", "sees",
    "tokens_first",
]  # fmt: skip

INDICES = (torch.int32, torch.int64)
Window = tuple[int, int] | list[int]


# ---------------------------------------------------------------- arguments


@dataclass(frozen=True)
class WindowSize:
    """How many keys a query sees to the left and to the right of its own position, two ints; -1 for all."""

    schema = "int[]"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        two = isinstance(value, (list, tuple)) and len(value) == 2
        if not two or any(isinstance(side, bool) or not isinstance(side, int) for side in value):
            raise TypeError(f"{name} must be two ints (left, right), got {describe(value)}")
        if min(value) < -1:
            raise ValueError(f"{name} must be at least -1 (no limit) on either side, got {describe(value)}")

    def right(self, given: GivenArguments) -> Any:
        return (-1, -1)

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} of one number", 4, TypeError, f"{name} must be two ints"
        yield f"{name} of three", (1, 1, 1), TypeError, f"{name} must be two ints"
        yield f"{name} of truths", (True, False), TypeError, f"{name} must be two ints"
        yield f"{name} below -1", (-2, 0), ValueError, f"{name} must be at least -1"

    def __str__(self) -> str:
        return "two ints of at least -1 (no limit), left and right"


ENDS = T("S1", dtypes=INDICES, where=("S1 >= 1",))  # where each of S sequences begins, and the last one's end
ARGUMENTS: Arguments = {
    "query": T("Tq H D", where=("1 <= D <= 256",)),
    "key": T("Tk Hkv D", like="query", where=("divides(Hkv, H)", "Hkv == H or enable_gqa")),
    "value": T("Tk Hkv D", like="query"),
    "cu_seq_q": ENDS, "cu_seq_k": ENDS,
    "max_q": Int64(least=0), "max_k": Int64(least=0), "scale": SCALE, "window_size": WindowSize(), "enable_gqa": Flag(),
    "with_lse": Flag(),
}  # fmt: skip
check = check_of(ARGUMENTS, {"scale": None, "window_size": (-1, -1), "enable_gqa": False, "with_lse": False})


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


# ---------------------------------------------------------------- the definition


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


def sees(queries: int, keys: int, window_size: Window, device: Any = None) -> Tensor:
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


def edges(window_size: Window, tokens: int) -> tuple[bool, int, int]:
    """The window as kernels of attention have it: whether there is a last key, how far it lies beyond the query's own
    position, and how many keys are seen up to it (0: all)."""
    left, right = (min(side, tokens) for side in window_size)  # what is wider than all tokens hides nothing
    offset = max(right, 0)
    return right >= 0, offset, 0 if left < 0 else left + offset + 1


def _one(
    query: Tensor, key: Tensor, value: Tensor, at: tuple[slice, slice], scale: float | None, window_size: Window
) -> dict[str, Any]:
    """One sequence as a call of attention."""
    q, k, v = heads_first(query[at[0]]), heads_first(key[at[1]]), heads_first(value[at[1]])
    return {
        "q": q, "k": k, "v": v, "causal": None, "window": None, "scale": scale,
        "mask": sees(q.shape[2], k.shape[2], window_size, query.device), "softcap": None, "sinks": None,
    }  # fmt: skip


def reference(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
    scale: float | None = None, window_size: Window = (-1, -1), enable_gqa: bool = False, with_lse: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    outputs, lses = [query[:0]], [query.new_empty(query.shape[1], 0)]
    for at in by_sequence(cu_seq_q, cu_seq_k):
        output, lse = attention_of_one(**_one(query, key, value, at, scale, window_size), with_lse=True)
        outputs.append(tokens_first(output))
        lses.append(lse[0])
    return (torch.cat(outputs), torch.cat(lses, 1)) if with_lse else (torch.cat(outputs),)


# ---------------------------------------------------------------- bounds


def _calls(args: dict[str, Any]) -> Iterator[tuple[slice, slice, dict[str, Any]]]:
    for at in by_sequence(args["cu_seq_q"], args["cu_seq_k"]):
        one = _one(args["query"], args["key"], args["value"], at, args.get("scale"), args["window_size"])
        yield *at, one


def bound(
    args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype, inner: str = "float32"
) -> tuple[Tensor, ...]:
    """Each sequence's as attention's own."""
    found = [torch.zeros_like(output) for output in outputs]
    for queries, _, one in _calls(args):
        given = (heads_first(outputs[0][queries]), *(lse[None, :, queries] for lse in outputs[1:]))
        limits = bound_of_one(one, given, dtype, inner)
        found[0][queries] = tokens_first(limits[0])
        for limit, of_one in zip(found[1:], limits[1:], strict=True):
            limit[:, queries] = of_one[0]
    return tuple(found)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype,
    inner: str = "float32",
) -> dict[str, Tensor]:  # fmt: skip
    """Each sequence's as attention's own: no sum goes beyond one."""
    found = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
    for queries, keys, one in _calls(args):
        places = {"query": ("q", queries), "key": ("k", keys), "value": ("v", keys)}
        of_one = {short: heads_first(gradients[name][at]) for name, (short, at) in places.items()}
        limits = gradient_bound_of_one(one, (heads_first(grads[0][queries]),), of_one, dtype, inner)
        for name, (short, at) in places.items():
            found[name][at] = tokens_first(limits[short])
    return found


# ---------------------------------------------------------------- cost


def seen_pairs(queries: int, keys: int, window_size: Window) -> int:
    """How many (query, key) pairs the window leaves of one sequence."""
    causal, offset, window = edges(window_size, queries + keys)
    end = keys - queries + offset + 1
    seen = _clamped_sum(end, queries, keys) if causal else queries * keys
    return seen - (_clamped_sum(end - window, queries, keys) if window else 0)


def count_pairs(args: Mapping[str, Any]) -> dict[str, Any]:
    """How long each sequence is, how many pairs are seen in one head of each, and in all heads together."""
    queries, keys = ([b - a for a, b in pairwise(args[name].tolist())] for name in ("cu_seq_q", "cu_seq_k"))
    pairs = [seen_pairs(n, of, args["window_size"]) for n, of in zip(queries, keys, strict=True)]
    lengths = {"T": queries, "Tk": keys, "pairs": pairs}
    return {"pairs": args["query"].shape[1] * sum(pairs), "lengths": lengths}


def cost(request: Request) -> Cost:
    """By the pairs that were counted; else as if all sequences were of one length: mixed ones have more pairs."""
    query, key, value, ends = (request.args[name] for name in ("query", "key", "value", "cu_seq_q"))
    tokens, heads, dim = query.shape
    sequences = max(ends.shape[0] - 1, 1)
    window = request.args["window_size"]
    alike = heads * sequences * max(seen_pairs(tokens // sequences, key.shape[0] // sequences, window), 0)
    pairs = request.values.get("pairs", alike)
    read = query.nbytes + key.nbytes + value.nbytes + 2 * ends.nbytes
    if request.pass_ == "backward":  # five products of 2 D flop a pair; reads grad and output besides
        written = query.nbytes + key.nbytes + value.nbytes
        return Cost(10.0 * dim * pairs, pairs, read + 2 * query.nbytes + 4.0 * heads * tokens, written)
    return Cost(4.0 * dim * pairs, pairs, read, query.nbytes)


def dims(request: Request) -> dict[str, int]:
    query, key, window = (request.args[name] for name in ("query", "key", "window_size"))
    return {
        "T": query.shape[0], "Tk": key.shape[0], "N": request.args["cu_seq_q"].shape[0] - 1, "H": query.shape[1],
        "Hkv": key.shape[1], "D": query.shape[2], "causal": int(window[1] >= 0), "window": max(window[0], 0),
    }  # fmt: skip


# ---------------------------------------------------------------- errors


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        ends_q, ends_k = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 4, 6], dtype=torch.int32)
        tensors = {"query": torch.ones(5, 4, 8), "key": torch.ones(6, 2, 8), "value": torch.ones(6, 2, 8)}
        ends = {"cu_seq_q": ends_q, "cu_seq_k": ends_k, "max_q": 3, "max_k": 4}
        return tensors | ends | {"enable_gqa": True} | changed

    return make


def _ends(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


ERRORS: tuple[Error, ...] = (
    *errors_of(ARGUMENTS, enable_gqa=True),
    ("grouped heads unsaid", _with(enable_gqa=False), ValueError, "Hkv == H or enable_gqa"),
    ("heads that do not divide", _with(query=torch.ones(5, 3, 8)), ValueError, "divides(Hkv, H)"),
    ("a first sequence beyond 0", _with(cu_seq_q=_ends(1, 2, 5)), IndexError, "cu_seq_q must begin with 0"),
    ("tokens of no sequence", _with(cu_seq_k=_ends(0, 4, 5)), IndexError, "end with 6, the tokens"),
    ("ends that fall", _with(cu_seq_q=_ends(0, 6, 5), max_q=9), IndexError, "cu_seq_q must not fall"),
    (
        "max_k below the longest sequence",
        _with(max_k=3),
        IndexError,
        "max_k must be at least the longest sequence's length, 4",
    ),
)

CONTRACT = Contract(
    name="varlen_attn",
    family="attention",
    arithmetic="products",
    formula="output = softmax(scale query key^T, over the keys of the query's own sequence in its window) value; 0 for "
    "a query that sees none",
    source="torch.nn.attention.varlen.varlen_attn; Dao et al., FlashAttention, 2022 (arXiv:2205.14135)",
    outputs=("output", "lse"),
    results={"lse": Result(torch.float32, when="with_lse")},
    differentiable=("query", "key", "value"),
    check=check,
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    bucket=lambda request: {"D": request.args["query"].shape[2]},  # each has kernels of its own, in torch as here
    cases=CASES,
    bench_cases=BENCH_CASES,
    device_cases=DEVICE_CASES,
    device_bench_cases=DEVICE_BENCH_CASES,
    errors=ERRORS,
    limits={"cu_seq_q": Ends("query", 0, from_zero=True), "cu_seq_k": Ends("key", 0, from_zero=True)},
    values=Values(count_pairs, "if all sequences are as long"),
)
