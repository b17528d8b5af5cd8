"""Known-wrong versions of varlen_attn. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelworks.contract import Mutant
from kernelworks.ops.attention.varlen_attn.contract import CONTRACT, TEMPLATE
from kernelworks.templates.attention.mutants import Mutations, move_ends, unwrite_last
from kernelworks.templates.attention.reference import by_sequence

__all__ = ["MUTANTS"]

WRONG = Mutations(TEMPLATE, CONTRACT)


def _one_sequence(a: dict[str, Any]) -> dict[str, Any]:
    return {name: a[name][[0, -1]] for name in ("cu_seq_q", "cu_seq_k")}


def _ends_of_queries(a: dict[str, Any]) -> dict[str, Any]:
    return {"cu_seq_k": a["cu_seq_q"].clamp(max=a["key"].shape[0])}


def _side(place: int, change: Callable[[int], int]) -> Callable[..., Any]:
    """One side of the window changed where it has a limit: 0 is the left one."""

    def changed(a: dict[str, Any]) -> dict[str, Any]:
        return {"window_size": tuple(change(n) if i == place and n >= 0 else n for i, n in enumerate(a["window_size"]))}

    return WRONG.before(changed)


def _top_left(*given: Any) -> Any:
    """The first query stands at the first key."""
    a = TEMPLATE.named_arguments(given)
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
        output, lse = WRONG.exact(one)
        outputs.append(output)
        lses.append(lse)
    if not outputs:
        return WRONG.exact(a)
    return (torch.cat(outputs), torch.cat(lses, 1)) if a["with_lse"] else torch.cat(outputs)


MUTANTS = (
    Mutant("one sequence", WRONG.before(_one_sequence), "every query sees all tokens"),
    Mutant("queries end late", WRONG.before(move_ends("cu_seq_q")), "a sequence's last query is the next one's first"),
    Mutant("keys end late", WRONG.before(move_ends("cu_seq_k")), "a sequence sees the next one's first key"),
    Mutant("ends of queries", WRONG.before(_ends_of_queries), "keys end where queries do"),
    Mutant("top left", _top_left, "causal and windows begin at the first key, not end at the last"),
    Mutant("window ignored", _side(0, lambda left: -1), "no limit to the left"),
    Mutant("causal ignored", _side(1, lambda right: -1), "no limit to the right"),
    Mutant("window one more", _side(0, lambda left: left + 1), "a key too many to the left"),
    Mutant("window one less", _side(0, lambda left: max(left - 1, 0)), "a key too few to the left"),
    Mutant("causal sees one more", _side(1, lambda right: right + 1), "a key beyond the last one seen"),
    Mutant("last sequence unwritten", WRONG.after(unwrite_last), "tokens of the last sequence stay as they were"),
    Mutant("scale ignored", WRONG.before(lambda a: {"scale": None}), "always 1 / sqrt(D)"),
    Mutant("lse of heads turned", WRONG.after(lambda s, a: s.flip(0), 1), "the second output's heads in another order"),
    *WRONG.of_dense(
        "missing scale", "wrong key-value head", "short tile", "sum not rescaled", "output not rescaled",
        "bfloat16 weights", "NaN for no keys", "stale tail", "zeros", "lse in base 2",
    ),
)  # fmt: skip
