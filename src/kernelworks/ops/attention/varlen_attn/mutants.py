"""Known-wrong versions of varlen_attn. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.attention.attention.mutants import MUTANTS as OF_ONE
from kernelworks.ops.attention.varlen_attn.contract import by_sequence, heads_first, reference, sees, tokens_first

__all__ = ["MUTANTS"]

NAMES = (
    "query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k", "scale", "window_size", "enable_gqa", "with_lse",
)  # fmt: skip


def _exact(args: dict[str, Any]) -> Any:
    dtype = args["query"].dtype
    found = reference(**(args | {name: args[name].float() for name in ("query", "key", "value")}))
    result = (found[0].to(dtype), *(lse.float() for lse in found[1:]))
    return result if args["with_lse"] else result[0]


def _before(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
    """The right computation of changed arguments."""

    def run(*given: Any) -> Any:
        args = dict(zip(NAMES, given, strict=True))
        return _exact(args | change(args))

    return run


def _after(change: Callable[[Tensor, dict[str, Any]], Tensor], index: int = 0) -> Callable[..., Any]:
    """One output of the right computation, changed."""

    def run(*given: Any) -> Any:
        args = dict(zip(NAMES, given, strict=True))
        result = _exact(args)
        if isinstance(result, tuple):
            return tuple(change(t, args) if i == index else t for i, t in enumerate(result))
        return change(result, args) if index == 0 else result

    return run


def _each(name: str) -> Callable[..., Any]:
    """A mutant of attention's, in every sequence."""
    wrong = next(mutant.run for mutant in OF_ONE if mutant.name == name)

    def run(*given: Any) -> Any:
        a = dict(zip(NAMES, given, strict=True))
        outputs, lses = [a["query"][:0]], [torch.empty(a["query"].shape[1], 0)]
        for queries, keys in by_sequence(a["cu_seq_q"], a["cu_seq_k"]):
            q, k, v = (heads_first(a[n][at]) for n, at in (("query", queries), ("key", keys), ("value", keys)))
            mask = sees(q.shape[2], k.shape[2], a["window_size"])
            result = wrong(q, k, v, None, None, a["scale"], mask, a["with_lse"], None, None)
            outputs.append(tokens_first(result[0] if a["with_lse"] else result))
            lses += [result[1][0]] if a["with_lse"] else []
        return (torch.cat(outputs), torch.cat(lses, 1)) if a["with_lse"] else torch.cat(outputs)

    return run


def _one_sequence(a: dict[str, Any]) -> dict[str, Any]:
    return {name: a[name][[0, -1]] for name in ("cu_seq_q", "cu_seq_k")}


def _moved(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Sequences end one token late, but for the last."""

    def change(a: dict[str, Any]) -> dict[str, Any]:
        ends = a[name].clone()
        ends[1:-1] = (ends[1:-1] + 1).clamp(max=int(ends[-1]))
        return {name: ends}

    return change


def _ends_of_queries(a: dict[str, Any]) -> dict[str, Any]:
    return {"cu_seq_k": a["cu_seq_q"].clamp(max=a["key"].shape[0])}


def _side(place: int, change: Callable[[int], int]) -> Callable[..., Any]:
    """One side of the window changed where it has a limit: 0 is the left one."""

    def changed(a: dict[str, Any]) -> dict[str, Any]:
        return {"window_size": tuple(change(n) if i == place and n >= 0 else n for i, n in enumerate(a["window_size"]))}

    return _before(changed)


def _top_left(*given: Any) -> Any:
    """The first query stands at the first key."""
    a = dict(zip(NAMES, given, strict=True))
    outputs, lses = [], []
    for queries, keys in by_sequence(a["cu_seq_q"], a["cu_seq_k"]):
        ahead = keys.stop - keys.start - (queries.stop - queries.start)  # is moved into the window
        left, right = a["window_size"]
        moved = (left + ahead if left >= 0 else -1, right - ahead if right >= 0 else -1)
        if min(moved) < -1 or (right >= 0 and moved[1] < 0) or (left >= 0 and moved[0] < 0):
            moved = a["window_size"]
        ends = {"cu_seq_q": [0, queries.stop - queries.start], "cu_seq_k": [0, keys.stop - keys.start]}
        one = a | {name: torch.tensor(ends[name]) for name in ends} | {"window_size": moved}
        one |= {"query": a["query"][queries], "key": a["key"][keys], "value": a["value"][keys], "with_lse": True}
        output, lse = _exact(one)
        outputs.append(output)
        lses.append(lse)
    if not outputs:
        return _exact(a)
    return (torch.cat(outputs), torch.cat(lses, 1)) if a["with_lse"] else torch.cat(outputs)


def _without_last(output: Tensor, a: dict[str, Any]) -> Tensor:
    output = output.clone()
    if len(a["cu_seq_q"]) > 1:
        output[int(a["cu_seq_q"][-2]) :] = 0.0
    return output


MUTANTS = (
    Mutant("one sequence", _before(_one_sequence), "every query sees all tokens"),
    Mutant("queries end late", _before(_moved("cu_seq_q")), "a sequence's last query is the next one's first"),
    Mutant("keys end late", _before(_moved("cu_seq_k")), "a sequence sees the next one's first key"),
    Mutant("ends of queries", _before(_ends_of_queries), "keys end where queries do"),
    Mutant("top left", _top_left, "causal and windows begin at the first key, not end at the last"),
    Mutant("window ignored", _side(0, lambda left: -1), "no limit to the left"),
    Mutant("causal ignored", _side(1, lambda right: -1), "no limit to the right"),
    Mutant("window one more", _side(0, lambda left: left + 1), "a key too many to the left"),
    Mutant("window one less", _side(0, lambda left: max(left - 1, 0)), "a key too few to the left"),
    Mutant("causal sees one more", _side(1, lambda right: right + 1), "a key beyond the last one seen"),
    Mutant("last sequence unwritten", _after(_without_last), "tokens of the last sequence stay as they were"),
    Mutant("scale ignored", _before(lambda a: {"scale": None}), "always 1 / sqrt(D)"),
    Mutant("lse of heads turned", _after(lambda lse, a: lse.flip(0), 1), "the second output's heads in another order"),
    *(
        Mutant(name, _each(name), f"in each sequence: {next(m.why for m in OF_ONE if m.name == name)}")
        for name in (
            "missing scale", "wrong key-value head", "short tile", "sum not rescaled", "output not rescaled",
            "bfloat16 weights", "NaN for no keys", "stale tail", "zeros", "lse in base 2",
        )
    ),
)  # fmt: skip
