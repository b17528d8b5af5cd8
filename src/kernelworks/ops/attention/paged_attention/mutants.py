"""Known-wrong versions of paged_attention. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.attention.paged_attention.contract import CONTRACT, TEMPLATE, sequences_of
from kernelworks.templates.attention.mutants import Change, Mutations, move_ends, unwrite_last

__all__ = ["MUTANTS"]

WRONG = Mutations(TEMPLATE, CONTRACT)
_before = WRONG.before
CACHES = ("key_cache", "value_cache")


def _table(change: Callable[[Tensor, dict[str, Any]], Tensor]) -> Change:
    """Another table; of a block that is none of the cache, the first."""

    def changed(a: dict[str, Any]) -> dict[str, Any]:
        table = change(a["block_table"].clone(), a)
        return {"block_table": torch.where((table < 0) | (table >= len(a["key_cache"])), 0, table)}

    return changed


def _lengths(change: Callable[[Tensor, int], Tensor]) -> Change:
    """Other lengths, of keys that the table and the cache have."""

    def changed(a: dict[str, Any]) -> dict[str, Any]:
        page, table = a["key_cache"].shape[1], a["block_table"]
        most = table.shape[1] * page if len(a["key_cache"]) else 0
        return _table(lambda table, _: table)(a) | {"seqused_k": change(a["seqused_k"], page).clamp(0, most)}

    return changed


def _top_left(*given: Any) -> Any:
    """The first query stands at the first key."""
    a = TEMPLATE.named_arguments(given)
    outputs = [a["query"][:0]]
    for at, key, value in sequences_of(*given[1:6]):
        q = a["query"][at]
        keys = min(len(key), len(q))  # the keys that some query sees
        few = a | {
            "query": q, "key_cache": key[None, :keys] if keys else key[None].new_ones(1, 1, *key.shape[1:]),
            "value_cache": value[None, :keys] if keys else value[None].new_ones(1, 1, *value.shape[1:]),
            "cu_seq_q": torch.tensor([0, len(q)]), "seqused_k": torch.tensor([keys]),
            "block_table": torch.tensor([[0]]),
        }  # fmt: skip
        first = WRONG.exact(few | {"query": q[:keys], "cu_seq_q": torch.tensor([0, keys])})
        outputs += [first, WRONG.exact(few)[keys:]]
    return torch.cat(outputs)


def _run_on(cache: Tensor, table: Tensor, tile: int) -> Tensor:
    """A cache for each sequence, [S, M P], in which a tile of keys goes on behind the first one's row in memory."""
    count, page = cache.shape[:2]
    key = torch.arange(table.shape[1] * page)
    begin = key // tile * tile
    first = table.long().clamp(0, max(count - 1, 0))[:, begin // page] * page + begin % page
    rows = cache.flatten(0, 1)
    return rows[(first + key % tile).clamp(max=max(len(rows) - 1, 0))]


def _tiles_run_on(a: dict[str, Any]) -> dict[str, Any]:
    if not (a["key_cache"].numel() and len(a["seqused_k"])):
        return {}
    own = torch.arange(len(a["seqused_k"])).unsqueeze(1)
    return {name: _run_on(a[name], a["block_table"], 64) for name in CACHES} | {"block_table": own}


def _page_of(page: int) -> Change:
    """Pages taken to be of another size, where the cache can be read so."""

    def change(a: dict[str, Any]) -> dict[str, Any]:
        count, own, *rest = a["key_cache"].shape
        if own == page or count * own % page or not a["block_table"].numel():
            return {}
        found = {name: a[name].reshape(-1, page, *rest) for name in CACHES}
        table = a["block_table"].repeat_interleave(max(1, own // page), 1)
        return found | {"block_table": table.clamp(0, count * own // page - 1)}

    return change


def _values_in_order(a: dict[str, Any]) -> dict[str, Any]:
    """Only keys go by the table: what stands in the values' block is what lies at its place in the sequence."""
    found = a["value_cache"].clone()
    for blocks in a["block_table"].tolist():
        for j, block in enumerate(blocks):
            if block >= 0:
                found[block] = a["value_cache"][j % len(found)]
    return {"value_cache": found}


MUTANTS = (
    Mutant("table ignored", _before(_table(lambda t, a: torch.arange(t.numel()).view(t.shape))), "blocks in order"),
    Mutant("one table", _before(_table(lambda t, a: t[:1].expand_as(t))), "every sequence has the first one's blocks"),
    Mutant("next block", _before(_table(lambda t, a: t.roll(-1, 1))), "block j + 1 in the place of block j"),
    Mutant("values in order", _before(_values_in_order), "values are not looked up in the table"),
    Mutant("tiles run on", _before(_tiles_run_on), "a tile that begins in a page goes on behind it in memory"),
    Mutant("pages of 16", _before(_page_of(16)), "the size of a page is taken to be 16"),
    Mutant("pages of 1", _before(_page_of(1)), "the size of a page is taken to be 1"),
    Mutant("whole pages", _before(_lengths(lambda n, page: -(-n // page) * page)), "the last page is read to its end"),
    Mutant("a key more", _before(_lengths(lambda n, page: n + 1)), "one key behind the last is seen"),
    Mutant("a key less", _before(_lengths(lambda n, page: n - 1)), "the newest key is not seen"),
    Mutant("lengths before", _before(_lengths(lambda n, page: n.roll(1))), "the keys of the sequence before"),
    Mutant("queries end late", _before(move_ends("cu_seq_q")), "a sequence's last query is the next one's first"),
    Mutant("top left", _top_left, "causal and windows begin at the first key, not end at the last"),
    Mutant("window ignored", _before(lambda a: {"window": None}), "no limit to the left"),
    Mutant("window one more", _before(lambda a: {"window": a["window"] and a["window"] + 1}), "one key too many"),
    Mutant("scale ignored", _before(lambda a: {"scale": None}), "always 1 / sqrt(D)"),
    Mutant("last sequence unwritten", WRONG.after(unwrite_last), "tokens of the last sequence stay as they were"),
    *WRONG.of_dense(
        "causal sees one more", "causal sees one less", "missing scale", "wrong key-value head", "short tile",
        "sum not rescaled", "output not rescaled", "bfloat16 weights", "NaN for no keys", "stale tail", "zeros",
    ),
)  # fmt: skip
