"""Known-wrong versions of grouped_linear. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.routing.grouped_linear.contract import groups_of, reference
from kernelworks.templates.mutants import VECTOR

__all__ = ["MUTANTS"]


def _exact(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None) -> Tensor:
    offset = None if bias is None else bias.double()
    return reference(x.double(), weight.double(), offsets.clamp(0, x.shape[0]), offset)[0]


def _before(change: Callable[..., tuple[Any, ...]]) -> Callable[..., Tensor]:
    """The right computation of changed arguments."""
    return lambda x, *rest: _exact(*change(x, *rest)).to(x.dtype)


def _after(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The right computation, changed; of the result and the offsets."""
    return lambda x, weight, offsets, bias: change(_exact(x, weight, offsets, bias), offsets).to(x.dtype)


def _ends(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Groups that end elsewhere; those that have no rows stay so."""
    return _before(lambda x, weight, offsets, bias: (x, weight, change(offsets).cummax(0).values, bias))


def _next_group(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None) -> tuple[Any, ...]:
    return x, weight.roll(1, 0), offsets, bias


def _counted(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None) -> tuple[Any, ...]:
    """Each group takes the weight of the first group that has rows and none before it took."""
    full = [g for g, rows in enumerate(groups_of(offsets)) if rows.stop > rows.start]
    moved = weight.clone()
    moved[full] = weight[: len(full)]
    return x, moved, offsets, bias


def _first_bias(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None) -> tuple[Any, ...]:
    return x, weight, offsets, bias if bias is None or not len(bias) else bias[:1].expand_as(bias)


def _begins(offsets: Tensor) -> Tensor:
    return torch.cat([offsets[:0].new_zeros(min(1, len(offsets))), offsets[:-1]])


def _even(offsets: Tensor) -> Tensor:
    last, count = offsets[-1:], len(offsets)
    return (last * torch.arange(1, count + 1) // max(count, 1)).to(offsets.dtype)


def _short_k(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None) -> tuple[Any, ...]:
    k = x.shape[1]
    kept = k // VECTOR * VECTOR if k > VECTOR else k
    return x[:, :kept], weight[..., :kept], offsets, bias


def _last_row(y: Tensor, offsets: Tensor) -> Tensor:
    """A group's last row takes what the row before it has."""
    y = y.clone()
    for rows in groups_of(offsets):
        if rows.stop - rows.start > 1:
            y[rows.stop - 1] = y[rows.stop - 2]
    return y


def _stale_column(y: Tensor, offsets: Tensor) -> Tensor:
    y = y.clone()
    if y.shape[1] % VECTOR:
        y[:, -1] = 0.0
    return y


def _unwritten(y: Tensor, offsets: Tensor) -> Tensor:
    """Rows of no group hold what lay there."""
    y = y.clone()
    if len(offsets):
        y[int(offsets[-1]) :] = 7.0
    return y


def _hot(y: Tensor, offsets: Tensor) -> Tensor:
    """A group of more rows than are shared out together loses those beyond."""
    y = y.clone()
    for rows in groups_of(offsets):
        y[rows.start + 512 : rows.stop] = 0.0
    return y


def _every_weight(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None) -> Tensor:
    """All groups for all rows, the others times 0: NaN and infinities of a group that a row has nothing with."""
    others = (x.double() @ weight.double().mT).sum(0) * 0.0 if len(weight) else 0.0
    return (_exact(x, weight, offsets, bias) + others).to(x.dtype)


def _bfloat16_sums(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None) -> Tensor:
    parts = []
    for group, rows in enumerate(groups_of(offsets)):
        total = torch.zeros(rows.stop - rows.start, weight.shape[1], dtype=torch.bfloat16)
        for k in range(x.shape[1]):
            total = (total.float() + x[rows, k, None].float() * weight[group, :, k].float()).bfloat16()
        parts.append(total.double() + (0.0 if bias is None else bias[group].double()))
    after = x.shape[0] - sum(len(p) for p in parts)
    return torch.cat([*parts, torch.zeros(after, weight.shape[1], dtype=torch.float64)]).to(x.dtype)


MUTANTS = (
    Mutant("the next group's weight", _before(_next_group), "groups are counted from 1"),
    Mutant("groups without rows are not counted", _before(_counted), "empty groups take no weight with them"),
    Mutant("groups end where they begin", _ends(_begins), "offsets are read as where groups begin"),
    Mutant("groups end a row late", _ends(lambda offsets: offsets + 1), "a group takes the next one's first row"),
    Mutant("groups end a row early", _ends(lambda o: (o - 1).clamp(min=0)), "a group loses its last row"),
    Mutant("even groups", _ends(_even), "all groups are as long"),
    Mutant("missing bias", _before(lambda x, weight, offsets, bias: (x, weight, offsets, None)), "no bias is added"),
    Mutant("the first group's bias", _before(_first_bias), "the bias is not the group's own"),
    Mutant("short K", _before(_short_k), "the tail of K that fills no vector is left out"),
    Mutant("last row of a group", _after(_last_row), "the rest of a tile takes a row of the tile"),
    Mutant("stale column", _after(_stale_column), "the last column of a partial tile is not written"),
    Mutant("rows of no group unwritten", _after(_unwritten), "rows beyond the last offset keep what lay there"),
    Mutant("hot group cut", _after(_hot), "no more than 512 rows of a group are multiplied"),
    Mutant("every weight is read", _every_weight, "a weight whose group has no rows spoils the others"),
    Mutant("bfloat16 accumulation", _bfloat16_sums, "the sum is kept in bfloat16"),
    Mutant("zeros", _after(lambda y, offsets: torch.zeros_like(y)), "nothing is written"),
)  # fmt: skip
