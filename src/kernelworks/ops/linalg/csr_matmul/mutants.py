"""Known-wrong versions of csr_matmul. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.linalg.csr_matmul.contract import reference, row_of_each
from kernelworks.templates.mutants import stale_end

__all__ = ["MUTANTS"]

CallArguments = dict[str, Any]


def _changed(how: Callable[[CallArguments], CallArguments], after: Callable[[Tensor], Tensor] = lambda y: y) -> Any:
    """The definition in float64 of arguments that ``how`` changes."""

    def run(crow_indices: Tensor, col_indices: Tensor, values: Tensor, dense: Tensor) -> Tensor:
        given: CallArguments = {
            "crow_indices": crow_indices, "col_indices": col_indices, "values": values.double(),
            "dense": dense.double(),
        }  # fmt: skip
        return after(reference(**given | how(given))[0]).to(dense.dtype)

    return run


def _late(given: CallArguments) -> CallArguments:
    """Each row but the first begins an entry late."""
    crow, n = given["crow_indices"], given["values"].numel()
    return {"crow_indices": torch.where(crow > 0, (crow + 1).clamp(max=n), crow)}


def _without_last(given: CallArguments) -> CallArguments:
    n = max(given["values"].numel() - 1, 0)
    return {
        "crow_indices": given["crow_indices"].clamp(max=n), "col_indices": given["col_indices"][:n],
        "values": given["values"][:n],
    }  # fmt: skip


def _next_column(given: CallArguments) -> CallArguments:
    return {"col_indices": (given["col_indices"] + 1) % max(len(given["dense"]), 1)}


def _last_of_equals(given: CallArguments) -> CallArguments:
    """Of the entries of one place the last alone counts."""
    row, column = row_of_each(given["crow_indices"], given["values"].numel()), given["col_indices"].long()
    place = (row * max(len(given["dense"]), 1) + column).tolist()
    last = {p: i for i, p in enumerate(place)}
    kept = torch.tensor([last[p] == i for i, p in enumerate(place)], dtype=torch.bool)
    return {"values": torch.where(kept, given["values"], torch.zeros_like(given["values"]))}


def _rows_by_order(given: CallArguments) -> CallArguments:
    """Rows without entries are left out of the count."""
    crow = given["crow_indices"]
    starts = torch.unique(crow)
    return {"crow_indices": torch.cat([starts, starts[-1:].expand(len(crow) - len(starts))])}


def _narrowed(name: str) -> Any:
    return _changed(lambda given: {name: given[name].bfloat16().double()})


MUTANTS = (
    Mutant("next column", _changed(_next_column), "every column is off by one"),
    Mutant("late", _changed(_late), "rows begin an entry late"),
    Mutant("last entry missing", _changed(_without_last), "the last entry is in no row"),
    Mutant("ones", _changed(lambda g: {"values": torch.ones_like(g["values"])}), "values are not looked at"),
    Mutant("last of equals", _changed(_last_of_equals), "a column that is named twice counts once"),
    Mutant("empty rows skipped", _changed(_rows_by_order), "a row without entries gets the next one's"),
    Mutant("values reversed", _changed(lambda g: {"values": g["values"].flip(0)}), "values stand in another order"),
    Mutant("stale end", _changed(lambda g: {}, stale_end), "the last output is never written"),
    Mutant("dense through bfloat16", _narrowed("dense"), "rows of dense lose bits"),
    Mutant("values through bfloat16", _narrowed("values"), "values lose bits"),
    Mutant("NaN swallowed", _changed(lambda g: {"dense": g["dense"].nan_to_num(0.0)}), "NaN becomes 0"),
    Mutant("zeros", _changed(lambda g: {}, torch.zeros_like), "nothing is written"),
)  # fmt: skip
